"""The configuration: one TOML file, or the same keys in Python. docs/config.md is generated from this file.

Theory. Every key says its default, its range and what it means, once, in its field; the unit is in its name. A value of
another type or out of its range is refused, never rounded or clipped: all findings at once, one line each, whether the
value came from a file or from a caller (F39: a deadline that is negative, zero, NaN or infinite is no deadline). The
vendor facts (§14) are the worst case unless they are declared, in the file or by an evidence file of
`calexec vendor-probe`; what was not determined there is the worst case as well.

Nothing is decided here: the rulebook takes its parameters from `Config.parameters()`.
"""
# ruff: noqa: RUF009 (`_key` is attrs' `field`)

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import attrs
from attrs import evolve, field, frozen

from machines.abi import DEVICE
from machines.protocol import params as p
from machines.protocol.params import FACTS, Policy
from machines.protocol.runs import SOUND
from runtime.names import hint, listed, plain, shown
from runtime.strict_json import FILE_BYTES_MAX, Choice, JsonError, Number, Object, read_limited, structure, type_name

__all__ = ["RESETS", "Config", "ConfigError", "load_config"]

DAY_MS = 24 * 60 * 60 * 1000
RESETS = tuple(event for event in DEVICE.events if event.startswith("reset"))  # from the mildest on (machines/abi.py)
POLICIES = {policy.name.lower(): policy for policy in Policy}

Ms = Annotated[int, Number(1, DAY_MS, "milliseconds")]
Bytes = Annotated[int, Number(1, 2**40, "bytes")]
Count = Annotated[int, Number(1, 1 << 16, "number")]
Limit = Annotated[int, Number(0, 1 << 16, "number")]
Threads = Annotated[int, Number(1, 64, "number")]
Permits = Annotated[int, Number(p.INFLIGHT.lo, p.INFLIGHT.hi, "number")]
DeviceIndex = Annotated[int, Number(0, 2**32 - 1, "number")]
PolicyName = Annotated[str, Choice(tuple(POLICIES))]
Rung = Annotated[str, Choice(RESETS)]
LogLevel = Annotated[str, Choice(("debug", "info", "warning", "error"))]


class ConfigError(JsonError):
    """The configuration cannot be used. `findings`: one line each. subject: the file; "" for one made in Python."""

    def __init__(self, findings: Iterable[str], subject: str = "") -> None:
        super().__init__(findings)
        self.subject = subject
        self.lines = tuple(f"{plain(subject)}: {f}" if subject else f for f in self.findings)
        self.args = ("\n".join(self.lines),)


def _key(about: str, default: Any = attrs.NOTHING, path: bool = False, **more: Any) -> Any:
    """A key of the file. path: in a file, it is relative to the file's folder."""
    if path:
        more["converter"] = _text_of_path
    return field(default=default, metadata={"about": about, "path": path}, **more)


def _text_of_path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, Path) else value


def _tuple_of_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _all_facts(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({fact.name: bool(fact.default) for fact in FACTS} | dict(given))


@frozen(kw_only=True)
class Config:
    """What an executor is made with. Raises ConfigError with everything that is wrong.

    facts: every vendor fact by name; given are only those that differ from the worst case."""

    manifest: str = _key("the model's manifest (docs/manifest.md)", path=True)
    library: str = _key("libcalrt_c.so; without it that of CALRT_LIBRARY, or else the built one", "", path=True)
    device: DeviceIndex = _key("the device's number", 0)

    slots: Threads = _key("buffer slots, each with memory for every submodel; made once per generation (S07)", 2)
    inflight: Permits = _key("jobs on the device at once; 2 only where vendor and soak test allow it (§6.4)", 1)
    jobs_max: Count = _key("jobs that are known at once, the admission line included; one more is refused (429)", 64)
    sequences_max: Count = _key("sequences that may hold KV at once; one more is refused (429)", 16)
    bypass_max: Limit = _key("how often the head of the admission line may be overtaken (F32)", 4)

    admission_ms: Ms = _key("from the request's entry until it has KV and buffers (§9.1)", 10_000)
    queue_ms: Ms = _key("from there until infer() has accepted it (§9.1)", 10_000)
    execution_ms: Ms = _key("from there until Wait() returns; then the device drains (§9.1)", 30_000)
    request_ms_max: Ms = _key("longest deadline of a request, and that of a request that names none", 120_000)
    grace_ms: Ms = _key("how long a drain waits for what is still on the device (§9.1)", 5_000)
    close_ms: Ms = _key("how long closing waits for submitted jobs (FI13)", 30_000)
    stuck_ms: Ms = _key("after how long a call that should not block counts as stuck", 10_000)
    reset_ms: Ms = _key("how long one reset may take", 30_000)
    configure_ms: Ms = _key("how long configuring may take", 120_000)
    golden_ms: Ms = _key("how long a golden run may take", 60_000)
    backoff_ms: Ms = _key("how long admission is reduced after a transient error (§8)", 200)
    kv_retry_ms: Ms = _key("after a refused Apply, how long until the next one if nothing is freed (§7)", 50)

    policy: PolicyName = _key(
        "what follows when the device is in doubt: the process ends; a reset, and what was in doubt is not used again; "
        "a reset, and after a golden run it is",
        "exit",
    )
    rungs: tuple[Rung, ...] = _key("the resets to try, from the mildest on", RESETS, converter=_tuple_of_list)
    strikes_max: Limit = _key("transient errors that are tolerated before a drain (§8)", 3)
    recoveries_max: Limit = _key("resets in the life of the process; then Failed (F40)", 3)
    abandoned_max: Limit = _key("Wait() calls that a reset may leave behind; more: Failed", 2)
    trust_submit: bool = _key("take every failed infer() as not started; needs submit_error_starts_nothing", False)
    trust_exception: bool = _key("use a slot again after a CCU exception; needs exception_stops_dma", False)
    switches: bool = _key("allow planned switches to another model", False)
    facts: Mapping[str, bool] = _key(
        "vendor facts (§14): an evidence file of `calexec vendor-probe --out`, or a table of the facts below",
        factory=dict, converter=_all_facts, hash=False,
    )  # fmt: skip

    log_level: LogLevel = _key("the least level that is logged", "info")
    incident_directory: str = _key("where a report of each incident is written; without it, none is", "", path=True)
    incidents_max: Count = _key("reports that are kept there; the oldest goes first", 20)
    dump: bool = _key("write inputs and outputs of jobs to files: they hold what users said (S12)", False)
    dump_directory: str = _key("where; needed by dump, and there is no default", "", path=True)
    dump_bytes_max: Bytes = _key("bytes that all dumps together may take; then no more are written", 1 << 30)

    def __attrs_post_init__(self) -> None:
        if findings := tuple(_wrong(self)) or tuple(_contradictions(self)):
            raise ConfigError(findings)

    def parameters(self) -> dict[str, int]:
        """The rulebook's parameters by name. No run is calm, and faults are the checker's: here the world has them."""
        sizes = {
            p.JOBS: self.jobs_max, p.SEQUENCES: self.sequences_max, p.SLOTS: self.slots, p.KV: self.sequences_max,
            p.INFLIGHT: self.inflight, p.FAULTS: 0, p.RECOVERIES: self.recoveries_max, p.RUNGS: len(self.rungs),
            p.STRIKES: self.strikes_max, p.ABANDONED: self.abandoned_max, p.BYPASS: self.bypass_max,
        }  # fmt: skip
        policies = {
            p.POLICY: POLICIES[self.policy].code, p.TRUST_SUBMIT: self.trust_submit,
            p.TRUST_EXCEPTION: self.trust_exception, p.SWITCHES: self.switches, p.CALM: 0,
        }  # fmt: skip
        facts = {fact: self.facts[fact.name] for fact in FACTS}
        return {param.name: int(value) for param, value in (sizes | policies | facts).items()}

    def unproved(self) -> tuple[str, ...]:
        """Empty when the policy is proved sound under the declared facts (§14); else a line for each way to make it so.
        An executor must not start like that."""
        ways = [way for way in WAYS if way.policy == self.policy]
        lacking = [[fact for fact in way.facts if not self.facts[fact]] for way in ways]
        if not all(lacking):
            return ()
        return tuple(f"policy {self.policy} also needs the facts {listed(facts)}" for facts in lacking)


@frozen
class Way:
    """A set of facts under which a policy is proved sound (machines/protocol/runs.py)."""

    policy: str
    facts: tuple[str, ...]


_ALWAYS = tuple(fact.name for fact in FACTS if fact.default)  # every proof takes these for granted
WAYS = tuple(
    Way(name, (*(fact for fact in facts if fact != p.POLICY.name), *_ALWAYS))
    for facts in SOUND.values()
    for name, policy in POLICIES.items()
    if policy.code == facts[p.POLICY.name]
)

KEYS = {a.name: a for a in attrs.fields(attrs.resolve_types(Config, include_extras=True))}


# -- is it right -------------------------------------------------------------------------------------------------------
def _wrong(config: Config) -> Iterator[str]:
    """Keys whose value is of another type, or out of range."""
    for name, key in KEYS.items():
        value = getattr(config, name)
        if value != key.default or type(value) is not type(key.default):
            yield from _wrong_value(name, value, key.type)
    for fact in config.facts:
        names = [f.name for f in FACTS]
        if fact not in names:
            yield f"facts has the unknown key {shown(fact)}; expected {listed(names)}{hint(fact, names)}"


def _wrong_value(name: str, value: Any, tp: Any) -> tuple[str, ...]:
    plain_value = list(value) if isinstance(value, tuple) else value
    try:
        structure(plain_value, tp, name)
    except JsonError as e:
        return e.findings
    return ()


def _contradictions(config: Config) -> Iterator[str]:
    if config.inflight > config.slots:
        yield f"inflight is {config.inflight}; expected at most slots, {config.slots}: a job in flight has a slot"
    order = [RESETS.index(rung) for rung in config.rungs]
    if not order or order != sorted(set(order)):
        yield f"rungs is {shown(list(config.rungs))}; expected some of {listed(RESETS)}, in this order, each once"
    if config.dump and not config.dump_directory:
        yield "dump is true, but dump_directory is missing; expected a directory: there is no default (S12)"
    sees = p.GOLDEN_SEES.name
    if config.switches and POLICIES[config.policy] is Policy.Exit and not config.facts[sees]:
        why = "policy exit never resets, and without a reset only a golden run that sees tells whether the device works"
        yield f"switches is true, but the fact {sees} is not declared; expected it in facts: {why}"
    for trust, fact in (("trust_submit", p.SUBMIT_ERROR_STARTS_NOTHING), ("trust_exception", p.EXCEPTION_STOPS_DMA)):
        if getattr(config, trust) and not config.facts[fact.name]:
            yield f"{trust} is true, but the fact {fact.name} is not declared; expected it in facts"


# -- the file ----------------------------------------------------------------------------------------------------------
def load_config(path: Path) -> Config:
    """The file as a Config; its paths are relative to its folder. Raises ConfigError with everything that is wrong."""
    findings: tuple[str, ...] = ()
    try:
        table = _parsed(read_limited(path, FILE_BYTES_MAX))
        if isinstance(table.get("facts"), str):
            findings = _read_evidence(table, path.parent)
        config: Config = structure(table, Config)
    except JsonError as e:
        raise ConfigError((*findings, *e.findings), str(path)) from None
    if findings:
        raise ConfigError(findings, str(path))
    given: dict[str, str] = {name: getattr(config, name) for name, key in KEYS.items() if key.metadata["path"]}
    paths: dict[str, Any] = {name: str(path.parent / value) for name, value in given.items() if value}
    return evolve(config, **paths)


def _parsed(content: bytes) -> Object:
    try:
        text = content.decode("utf-8")
        return Object(list(tomllib.loads(text).items()))
    except UnicodeDecodeError as e:
        raise JsonError([f"byte {e.start} is 0x{content[e.start]:02x}, which is not UTF-8; expected UTF-8"]) from None
    except ValueError as e:  # TOMLDecodeError, or Python's refusal of very long numbers
        raise JsonError([f"not TOML: {e}"]) from None
    except RecursionError:
        raise JsonError(["is nested too deeply; expected keys and tables"]) from None


def _read_evidence(table: Object, folder: Path) -> tuple[str, ...]:
    """Puts what the evidence file says in place of its name; what is wrong with that file. Only a fact that was seen to
    hold is declared."""
    name = table["facts"]
    table["facts"] = {}
    try:
        found = json.loads(read_limited(folder / name, FILE_BYTES_MAX))["facts"]
        holds = {fact.name: found[fact.name]["holds"] for fact in FACTS}
    except JsonError as e:
        return tuple(f"facts: {plain(name)} {finding}" for finding in e.findings)
    except (ValueError, KeyError, TypeError, RecursionError):
        return (f"facts: {plain(name)} is no evidence file; expected what `calexec vendor-probe --out` wrote",)
    if bad := [fact for fact, value in holds.items() if value not in (True, False, None)]:
        return (f"facts: {plain(name)} says neither yes, no nor unknown of {listed(bad)}",)
    table["facts"] = {fact: value is True for fact, value in holds.items()}
    return ()


# -- the page ----------------------------------------------------------------------------------------------------------
DOCUMENT = Path(__file__).parents[1] / "docs" / "config.md"

SECTIONS = {
    "manifest": "What is run",
    "slots": "How much at once",
    "admission_ms": "How long",
    "policy": "When something fails",
    "log_level": "What is written down",
}  # the key that each begins with


def page() -> str:
    """docs/config.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# The configuration",
        "",
        "GENERATED from runtime/config.py by `python -m runtime.config`. Do not edit: a test compares.",
        "",
        "One TOML file in UTF-8, at most 1 MiB. Unknown keys, values of another type and values out of range are",
        "refused, all at once, one line each. Relative paths are relative to the file. Only `manifest` has no default.",
        "Milliseconds are whole numbers: a deadline that is negative, zero, NaN or infinite is refused.",
        "",
        "```toml",
        'manifest = "qwen3.json"',
        "slots = 4",
        "execution_ms = 20_000",
        'policy = "rebuild"',
        'facts = "evidence.json"',
        "```",
    )
    for name, key in KEYS.items():
        if name in SECTIONS:
            yield from ("", f"## {SECTIONS[name]}", "", *_head("key", "takes", "default", "meaning"))
        yield f"| `{name}` | {_takes(key.type)} | {_default(key)} | {key.metadata['about']} |"
    yield from (
        "",
        "## Vendor facts",
        "",
        "Nobody may infer them (§14). Without evidence the worst case counts. An evidence file declares those facts",
        "that its experiments saw to hold. A policy is proved sound only under some of them (`Config.unproved`):",
        "",
        *(f"- `{way.policy}` needs {', '.join(f'`{f}`' for f in way.facts)}" for way in WAYS),
        "",
        *_head("fact", "without evidence", "meaning"),
    )
    yield from (f"| `{f.name}` | {_toml(bool(f.default))} | {f.about} |" for f in FACTS)


def _head(*titles: str) -> tuple[str, str]:
    return f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"


def _takes(tp: Any) -> str:
    if tp == Mapping[str, bool]:
        return "string, or table of true / false"
    limits = tp.__metadata__[0] if hasattr(tp, "__metadata__") else None
    if isinstance(limits, Number):
        return f"{limits.lo} to {limits.hi}"
    return type_name(tp).replace("|", "\\|").replace("true \\| false", "true / false")


def _default(key: Any) -> str:
    if key.default is attrs.NOTHING:
        return "none: needed"
    if key.name == "facts":
        return "the worst case"
    return _toml(key.default) if key.default != "" else "none"


def _toml(value: Any) -> str:
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


if __name__ == "__main__":
    DOCUMENT.write_text(page(), encoding="utf-8")
    print(f"wrote {DOCUMENT.name}")
