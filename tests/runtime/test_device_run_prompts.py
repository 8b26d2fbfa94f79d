"""The prompt file and its reader."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from runtime.prompts import FILE_BYTES_MAX, PROMPTS_MAX, PromptError, read_prompts, tokenise

# First words of the names that Unicode gives the letters.
SCRIPTS = {
    "LATIN", "CYRILLIC", "GREEK", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI",
    "ETHIOPIC", "GEORGIAN", "ARMENIAN", "TAMIL", "BENGALI", "KHMER", "MYANMAR",
}  # fmt: skip


def test_there_are_100_different_prompts_in_many_scripts() -> None:
    """§13.1: 100 fixed prompts; here of all kinds that a text path gets wrong."""
    prompts = read_prompts()
    text = "\n".join(p.text for p in prompts)
    assert len({p.text for p in prompts}) == len(prompts) == 100
    assert {unicodedata.name(c).split()[0] for c in text if c.isalpha()} >= SCRIPTS
    assert "\N{ROCKET}" in text
    assert "\N{ZERO WIDTH JOINER}" in text
    assert "\N{RIGHT-TO-LEFT MARK}" in text
    assert any(unicodedata.combining(c) for c in text)
    assert unicodedata.normalize("NFC", text) != text  # the same word in two spellings


def test_tokens_are_bytes() -> None:
    assert tokenise("aé\N{ROCKET}") == (0x61, 0xC3, 0xA9, 0xF0, 0x9F, 0x9A, 0x80)
    for prompt in read_prompts():
        assert bytes(prompt.tokens).decode("utf-8") == prompt.text


@pytest.mark.parametrize("data", [b"a\nb", b"a\nb\n", b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb\n"])
def test_line_ends_and_byte_order_mark(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    assert [(p.line, p.text) for p in read_prompts(path)] == [(1, "a"), (2, "b")]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    """Text holds other separators, which str.splitlines() would split at."""
    path = tmp_path / "p.txt"
    path.write_text("a\u2028b\x85c\x0bd", encoding="utf-8")
    assert len(read_prompts(path)) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"a\n\nb\n", r"p.txt:2: an empty line"),
        (b"a\n \t\n", r"p.txt:2: an empty line"),
        (b"a\n\n", r"p.txt:2: an empty line"),
        (b"ok\nab\xff\n", r"p.txt:2: not UTF-8 at byte 3"),
        (b"12345\n1234567\n", r"p.txt:2: 7 bytes; a prompt has at most 5"),
        (b"a\n" * (PROMPTS_MAX + 1), "at most 10000 are allowed"),
        (b"a" * (FILE_BYTES_MAX + 1), "which is the limit"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    with pytest.raises(PromptError, match=message):
        read_prompts(path, tokens_max=5)


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / name)
