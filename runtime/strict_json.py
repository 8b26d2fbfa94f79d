"""A JSON file into attrs classes, with nothing guessed: every fault is one line that says where it is.

Theory. `json` and cattrs are both lenient: the last of two equal keys wins, `"1"` and `true` pass for 1, NaN is a
number, an unknown key is ignored, and a wrong type ends in a traceback. A file that decides what is run on a device
must be refused for each of these. So JSON is read into `Object`s that remember keys that came twice, and cattrs is
given hooks that accept exactly the JSON type that a field says; what it then raises is walked and put in words.
"""

from __future__ import annotations

import enum
import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import attrs
from attrs import frozen
from cattrs import AttributeValidationNote, Converter, ForbiddenExtraKeysError, IterableValidationNote
from cattrs.errors import BaseValidationError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from runtime.names import hint, listed, shown

__all__ = ["U32", "U64", "Choice", "JsonError", "Number", "dumps", "load", "read_limited", "structure", "type_name"]

T = TypeVar("T")
FILE_BYTES_MAX = 1 << 20
LIST_ITEMS_MAX = 16
DIGITS_MAX = 40  # longer numbers are kept as text: they are out of every range, and Python would refuse to print them


class JsonError(ValueError):
    """The file is not what it should be. `findings`: one line each."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(self.findings))


@frozen
class Number:
    """The whole numbers that a field takes, both ends included."""

    lo: int
    hi: int
    name: str


@frozen
class Choice:
    """The texts that a field takes."""

    names: tuple[str, ...]


U32 = Annotated[int, Number(1, 2**32 - 1, "uint32")]
U64 = Annotated[int, Number(1, 2**64 - 1, "uint64")]


class Object(dict[str, Any]):
    """A JSON object, with the keys that it has more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = tuple(dict.fromkeys(n for n in names if names.count(n) > 1)) if len(self) < len(names) else ()


class Digits(str):
    """A number too long to be one."""

    __slots__ = ()


# -- reading ---------------------------------------------------------------------------------------------------------
def load(path: Path, cls: type[T]) -> T:
    """The file as an instance of `cls`, an attrs class. Raises JsonError with everything that is wrong."""
    loaded: T = structure(_parse(read_limited(path, FILE_BYTES_MAX)), cls)
    return loaded


def structure(value: Any, tp: Any, where: str = "") -> Any:
    """What was read as an instance of `tp`; its objects are `Object`s. where: the key that had it, "" for the file.

    Raises JsonError with everything that is wrong."""
    try:
        return _CONVERTER.structure(value, tp)
    except BaseValidationError as e:
        raise JsonError(_findings(e, where)) from None
    except ValueError as e:
        raise JsonError([f"{where or 'the file'} {e}"]) from None


def check_regular(path: Path) -> None:
    """Raises JsonError in words unless there is a regular file: opening a pipe, for one, would wait for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as e:
        raise JsonError([f"cannot be read: {_reason(e)}"]) from None
    if not stat.S_ISREG(mode):
        raise JsonError([f"is {'a directory' if stat.S_ISDIR(mode) else 'a device, pipe or socket'}; expected a file"])


def read_limited(path: Path, bytes_max: int) -> bytes:
    """The bytes of a regular file of at most `bytes_max`. Raises JsonError."""
    check_regular(path)
    try:
        with path.open("rb") as f:
            content = f.read(bytes_max + 1)
    except OSError as e:
        raise JsonError([f"cannot be read: {_reason(e)}"]) from None
    if len(content) > bytes_max:
        raise JsonError([f"has more than {bytes_max} bytes; expected at most that many"])
    return content


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _parse(content: bytes) -> Any:
    if not content.strip():
        raise JsonError(["is empty; expected a JSON object"])
    if content.startswith(b"\xef\xbb\xbf"):
        raise JsonError(["begins with a byte order mark; expected UTF-8 without one"])
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=Object, parse_int=_whole)
    except UnicodeDecodeError as e:
        raise JsonError([f"byte {e.start} is 0x{content[e.start]:02x}, which is not UTF-8; expected UTF-8"]) from None
    except json.JSONDecodeError as e:
        raise JsonError([f"line {e.lineno} column {e.colno}: not JSON: {e.msg}"]) from None
    except RecursionError:
        raise JsonError(["is nested too deeply; expected objects and lists a few levels deep"]) from None


def _whole(digits: str) -> int | Digits:
    return int(digits) if len(digits) <= DIGITS_MAX else Digits(digits)


def dumps(value: Any) -> str:
    """The JSON text of an attrs instance, as `load` reads it; a list of numbers stays on its line. A key that is the
    empty text, its default, is left out: `load` refuses empty texts."""
    found = {key: value for key, value in _CONVERTER.unstructure(value).items() if value != ""}
    text = json.dumps(found, indent=2)
    return re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


# -- what a field takes ----------------------------------------------------------------------------------------------
def type_name(tp: Any) -> str:
    """A field's type as JSON and the specification call it."""
    if get_origin(tp) is Annotated:
        limits = get_args(tp)[1]
        return limits.name if isinstance(limits, Number) else " | ".join(f'"{n}"' for n in limits.names)
    if get_origin(tp) is tuple:
        return f"list of {type_name(get_args(tp)[0])}"
    if attrs.has(tp):
        return f"object {tp.__name__}"
    if issubclass(tp, enum.Enum):
        return " | ".join(f'"{m.name}"' for m in tp)
    return {str: "string", bool: "true | false"}[tp]


def _is(found: Any, expected: str) -> ValueError:
    text = found if isinstance(found, Digits) else None
    return ValueError(f"is {f'a number of {len(text)} digits' if text else shown(found)}; expected {expected}")


def _take_text(value: Any, _: Any) -> str:
    if type(value) is not str or not value:
        raise _is(value, "a text of at least one character")
    return value


def _take_bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise _is(value, "true or false")
    return value


def _take_limited(value: Any, tp: Any) -> Any:
    limits = get_args(tp)[1]
    return _take_number(value, limits) if isinstance(limits, Number) else _take_choice(value, limits.names)


def _take_number(value: Any, limits: Number) -> int:
    if type(value) is not int or not limits.lo <= value <= limits.hi:
        raise _is(value, f"a whole number from {limits.lo} to {limits.hi}")
    return value


def _take_member(value: Any, tp: type[enum.Enum]) -> enum.Enum:
    return tp[_take_choice(value, [m.name for m in tp])]


def _take_choice(value: Any, names: Sequence[str]) -> str:
    if type(value) is str and value in names:
        return value
    raise _is(value, f"one of {listed(names)}{hint(value, names)}")


def _tuple_hook(tp: Any) -> Callable[[Any, Any], Any]:
    (item, _) = get_args(tp)
    take_list = _CONVERTER.get_structure_hook(list[item])  # type: ignore[valid-type]

    def take(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise _is(value, "a list")
        if len(value) > LIST_ITEMS_MAX:
            raise ValueError(f"has {len(value)} items; expected at most {LIST_ITEMS_MAX}")
        return tuple(take_list(value, list[item]))  # type: ignore[valid-type]

    return take


def _class_hook(cls: Any) -> Callable[[Any, Any], Any]:
    take_object = make_dict_structure_fn(cls, _CONVERTER, _cattrs_forbid_extra_keys=True, **_omitted(cls))

    def take(value: Any, _: Any) -> Any:
        if not isinstance(value, Object):
            raise _is(value, "an object")
        if value.twice:
            raise ValueError(f"has the key {listed(value.twice)} more than once; expected every key once")
        return take_object(value, cls)

    return take


def _omitted(cls: Any) -> dict[str, Any]:
    """Fields that are not in the file: those whose metadata does not say what they mean."""
    return {a.name: override(omit=True) for a in attrs.fields(cls) if "about" not in a.metadata}


def _is_made_of(tp: Any, origin: Any) -> bool:
    return get_origin(tp) is origin


def _converter() -> Converter:
    c = Converter(forbid_extra_keys=True, detailed_validation=True)
    c.register_structure_hook(str, _take_text)
    c.register_structure_hook(bool, _take_bool)
    c.register_structure_hook_func(lambda t: _is_made_of(t, Annotated), _take_limited)
    for base in (enum.Enum, enum.IntEnum):  # cattrs looks at the bases first, and takes an IntEnum for an int
        c.register_structure_hook(base, _take_member)
        c.register_unstructure_hook(base, lambda member: member.name)
    c.register_structure_hook_factory(lambda t: _is_made_of(t, tuple), _tuple_hook)
    c.register_structure_hook_factory(attrs.has, _class_hook)
    c.register_unstructure_hook_factory(attrs.has, lambda cls: make_dict_unstructure_fn(cls, c, **_omitted(cls)))
    return c


_CONVERTER = _converter()


# -- what was wrong, in words ----------------------------------------------------------------------------------------
NOTES = (AttributeValidationNote, IterableValidationNote)  # where cattrs was when it met an error


def _findings(error: BaseException, where: str) -> Iterator[str]:
    if not isinstance(error, BaseValidationError):
        yield from _say(error, where)
        return
    for e in error.exceptions:
        notes = [n for n in getattr(e, "__notes__", ()) if isinstance(n, NOTES)]
        yield from _findings(e, _step(where, notes[-1]) if notes else where)


def _step(where: str, note: AttributeValidationNote | IterableValidationNote) -> str:
    if isinstance(note, IterableValidationNote):
        return f"{where}[{note.index}]"
    return f"{where}.{note.name}" if where else str(note.name)


def _say(error: BaseException, where: str) -> Iterator[str]:
    subject = where or "the file"
    if isinstance(error, ForbiddenExtraKeysError):
        known = [a.name for a in attrs.fields(error.cl) if "about" in a.metadata]
        for key in sorted(error.extra_fields):
            yield f"{subject} has the unknown key {shown(key)}; expected {listed(known)}{hint(key, known)}"
    elif isinstance(error, KeyError):
        yield f"{subject} is missing; expected it to be there (it has no default)"
    elif isinstance(error, JsonError):  # an object that judges itself
        yield from error.findings
    else:
        yield f"{subject} {error}"
