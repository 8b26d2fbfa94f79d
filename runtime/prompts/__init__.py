"""Prompts: a UTF-8 text file, one prompt a line, and the tokeniser of the simulated model.

The simulated language model has no vocabulary of text. Its tokeniser is the plainest that takes any text: the UTF-8
bytes are the token ids 0..255. What the model answers are ids of its whole vocabulary, which stand for nothing.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

__all__ = ["PROMPTS", "Prompt", "PromptError", "read_prompts", "tokenise"]

PROMPTS = Path(__file__).parent / "prompts.txt"  # §13.1: the fixed 100 prompts
FILE_BYTES_MAX = 1 << 22
PROMPTS_MAX = 10_000
TOKENS_MAX = 4_096


class PromptError(ValueError):
    """A prompt file that cannot be used; says the file, the line and what is allowed."""


@frozen
class Prompt:
    line: int  # from 1
    text: str
    tokens: tuple[int, ...]


def tokenise(text: str) -> tuple[int, ...]:
    """The token ids of a text: its UTF-8 bytes."""
    return tuple(text.encode("utf-8"))


def read_prompts(path: str | Path = PROMPTS, tokens_max: int = TOKENS_MAX) -> tuple[Prompt, ...]:
    """All prompts of a file, in its order. Lines end in LF or CR LF; the last one may lack it.

    Raises PromptError when the file is missing, larger than 4 MiB, empty, not UTF-8 or holds more than 10,000 lines;
    or when a line is empty or white space only, or has more than `tokens_max` bytes.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise PromptError(f"{path}: more than {FILE_BYTES_MAX} bytes, which is the limit")
    lines = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise PromptError(f"{path}: is empty; one prompt a line is needed")
    if len(lines) > PROMPTS_MAX:
        raise PromptError(f"{path}: {len(lines)} lines; at most {PROMPTS_MAX} are allowed")
    return tuple(_prompt(f"{path}:{n}", n, line.removesuffix(b"\r"), tokens_max) for n, line in enumerate(lines, 1))


def _prompt(where: str, number: int, line: bytes, tokens_max: int) -> Prompt:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{where}: not UTF-8 at byte {error.start + 1}: {error.reason}") from error
    if not text.strip():
        raise PromptError(f"{where}: an empty line; every line is a prompt")
    if len(line) > tokens_max:
        raise PromptError(f"{where}: {len(line)} bytes; a prompt has at most {tokens_max} (one token a byte)")
    return Prompt(number, text, tokenise(text))
