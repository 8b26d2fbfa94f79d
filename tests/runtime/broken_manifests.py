"""Manifests that must be refused, as tables: what is wrong, and what each line must say about it."""

from __future__ import annotations

import copy
from typing import Any

from attrs import frozen
from manifests import GOOD_TEXT, Mutation, both, drop, parent_of, put

IDS, EMBEDS, DECODE = "submodels.0", "submodels.1", "submodels.2"


def swap(a: str, b: str) -> Mutation:
    """Exchange two values."""

    def mutate(data: Any) -> None:
        (x, i), (y, j) = parent_of(data, a), parent_of(data, b)
        x[i], y[j] = y[j], x[i]

    return mutate


def again(where: str) -> Mutation:
    """Append a copy of one item of a list."""

    def mutate(data: Any) -> None:
        items, i = parent_of(data, where)
        items.append(copy.deepcopy(items[i]))

    return mutate


def rename(old: str, new: str) -> Mutation:
    """Another key for the same value."""
    return lambda data: data.update({new: data.pop(old)})


@frozen
class Broken:
    """A mutation of the good manifest, and a line for each finding: pieces in their order, `...` between them."""

    name: str
    mutation: Mutation
    lines: tuple[str, ...]

    def __init__(self, name: str, mutation: Mutation, *lines: str) -> None:
        self.__attrs_init__(name, mutation, lines)  # type: ignore[attr-defined]


@frozen
class NotJson:
    """A file that is no manifest at all, and its line."""

    name: str
    content: bytes
    line: str


# fmt: off
BROKEN = (
    # exact names (§10.2); the good ones are tiny_prefill, tiny_prefill_embeds, tiny_decode
    Broken(
        "name: one character wrong (FI01)", put(f"{DECODE}.exact_name", "tiny_decodf"),
        'submodels[2].exact_name is "tiny_decodf" ... "tiny_decode" ... one character (character 11: U+0066 ... U+0065',
    ),
    Broken(
        "name: a character too few", put(f"{DECODE}.exact_name", "tiny_decde"),
        'submodels[2].exact_name ... "tiny_decde" ... one character ... nothing where U+006F LATIN SMALL LETTER O is',
    ),
    Broken(
        "name: a character too many", put(f"{DECODE}.exact_name", "tiny_decoode"),
        'submodels[2].exact_name ... "tiny_decoode" ... one character ... U+006F LATIN SMALL LETTER O where nothing is',
    ),
    Broken(
        "name: case", put(f"{DECODE}.exact_name", "tiny_Decode"),
        'submodels[2].exact_name ... expected ... "tiny_decode" ... differs in case ... character 6',
    ),
    Broken(
        "name: a Cyrillic letter", put(f"{IDS}.exact_name", "tiny_pr\u0435fill"),
        "submodels[0].exact_name ... \\u0435 ... look alike ... U+0435 CYRILLIC SMALL LETTER IE where U+0065 LATIN",
    ),
    Broken(
        "name: Cyrillic a", put(f"{IDS}.csr_total_seq", "tot\u0430l_seq"),
        "submodels[0].csr_total_seq ... U+0430 CYRILLIC SMALL LETTER A where U+0061 LATIN SMALL LETTER A is",
    ),
    Broken(
        "name: a blank at the end", put(f"{DECODE}.exact_name", "tiny_decode "),
        'submodels[2].exact_name ... "tiny_decode " ... white space at its ends ... U+0020 SPACE where nothing is',
    ),
    Broken(
        "name: a full-width letter", put(f"{DECODE}.exact_name", "tiny_\uff44ecode"),
        "submodels[2].exact_name ... NFKC ... U+FF44 FULLWIDTH LATIN SMALL LETTER D",
    ),
    Broken(
        "name: an invisible character", put(f"{DECODE}.exact_name", "tiny_\u200bdecode"),
        "submodels[2].exact_name ... not seen ... U+200B ZERO WIDTH SPACE where nothing is",
    ),
    Broken(
        "name: a line break", put(f"{DECODE}.exact_name", "tiny\ndecode"),
        'submodels[2].exact_name ... "tiny\\ndecode" ... U+000A',
    ),
    Broken(
        "name: a NUL", put(f"{DECODE}.exact_name", "tiny_decode\0junk"),
        'submodels[2].exact_name is "tiny_decode\\u0000junk" ... expected no control character ... 12 is U+0000',
    ),
    Broken(
        "name of a tensor: an escape", put(f"{IDS}.position.name", "position_ids\x1b[31m"),
        "submodels[0].position.name is ... expected no control character, and character 13 is U+001B",
    ),
    Broken(
        "name of a CSR: a NUL", put(f"{EMBEDS}.csr_cur_seq", "cur\0seq"),
        'submodels[1].csr_cur_seq is "cur\\u0000seq"; expected no control character, and character 4 is U+0000',
    ),
    Broken(
        "name: only its beginning", put(f"{DECODE}.exact_name", "tiny_dec"),
        'submodels[2].exact_name ... "tiny_dec" ... expected ... "tiny_decode" ... cut off',
    ),
    Broken(
        "name: goes on", put(f"{DECODE}.exact_name", "tiny_decode_v2"),
        "submodels[2].exact_name ... goes on too long",
    ),
    Broken(
        "name: unlike any", put(f"{DECODE}.exact_name", "llama"),
        'submodels[2].exact_name ... "llama" ... expected ... tiny_prefill_embeds',
        'the calbin has the submodel "tiny_decode" ... expected none that the manifest does not name',
    ),
    Broken(
        "name: a part of two (S08)", put(f"{EMBEDS}.exact_name", "tiny_prefill"),
        'exact_name "tiny_prefill" ... 2 times ... submodels[0] and submodels[1] ... expected once',
    ),
    # which submodels
    Broken("a submodel too few", drop(EMBEDS), 'the calbin has the submodel "tiny_prefill_embeds" ... expected none'),
    Broken("no Decode", drop(DECODE), "submodels has PrefillIds, PrefillEmbeds ... expected one of kind Decode"),
    Broken(
        "no prefill", both(drop(EMBEDS), drop(IDS)),
        "submodels has Decode ... expected one of kind PrefillIds or PrefillEmbeds",
    ),
    Broken(
        "no submodel", put("submodels", []),
        "no submodel ... expected one of kind Decode",
        "no submodel ... expected one of kind PrefillIds or",
    ),
    Broken(
        "a submodel twice", again(DECODE),
        'kind "Decode" ... 2 times ... submodels[2] and submodels[3]',
        'exact_name "tiny_decode" ... 2 times',
    ),
    Broken(
        "Vision", put(f"{EMBEDS}.kind", "Vision"),
        "submodels[1].kind is Vision ... expected PrefillIds, PrefillEmbeds or Decode",
    ),
    Broken(
        "two of a kind", put(f"{EMBEDS}.kind", "PrefillIds"),
        "submodels[1].token_or_embed.dtype is BF16 ... expected S32",
        "submodels[1].token_or_embed.shape is [1, 256, 64] of rank 3 ... expected [1, 256] of rank 2",
        'kind "PrefillIds" ... 2 times ... submodels[0] and submodels[1] ... expected once',
    ),
    Broken("kind: case", put(f"{DECODE}.kind", "decode"), 'submodels[2].kind ... "decode" ... "Decode" ... case'),
    Broken("kind: number", put(f"{DECODE}.kind", 2), 'submodels[2].kind is 2 ... expected one of ... "Decode"'),
    # tensors
    Broken(
        "dtype of tokens", put(f"{IDS}.token_or_embed.dtype", "F32"),
        "submodels[0].token_or_embed.dtype is F32 ... expected S32",
    ),
    Broken(
        "dtype of embeddings", put(f"{EMBEDS}.token_or_embed.dtype", "F32"),
        "submodels[1].token_or_embed.dtype is F32 ... expected BF16",
    ),
    Broken(
        "dtype of logits", put(f"{DECODE}.logits.dtype", "F32"),
        "submodels[2].logits.dtype is F32 ... expected BF16",
    ),
    Broken(
        "unknown dtype", put(f"{IDS}.position.dtype", "INT32"),
        'submodels[0].position.dtype ... "INT32" ... expected one of "S32", "BF16", "F32"',
    ),
    Broken(
        "rank of logits", put(f"{DECODE}.logits.shape", [1, 512]),
        "submodels[2].logits.shape is [1, 512] of rank 2 ... expected [1, 1, vocabulary] of rank 3",
    ),
    Broken(
        "rank 0", put(f"{DECODE}.position.shape", []),
        "submodels[2].position.shape is [] of rank 0 ... expected [1, 1] of rank 2",
    ),
    Broken(
        "shape of positions", put(f"{IDS}.position.shape", [1, 255]),
        "submodels[0].position.shape is [1, 255] ... expected [1, 256]",
    ),
    Broken(
        "shape: a batch of two", put(f"{DECODE}.token_or_embed.shape", [2, 1]),
        "submodels[2].token_or_embed.shape is [2, 1] ... expected [1, 1]",
    ),
    Broken(
        "hidden size",
        both(put(f"{EMBEDS}.token_or_embed.shape.2", 32), put(f"{EMBEDS}.token_or_embed.byte_size", 256 * 32 * 2)),
        "submodels[1].token_or_embed.shape is [1, 256, 32] ... expected [1, 256, 64] ... the calbin's",
        "submodels[1].token_or_embed.byte_size is 16384 ... expected 32768 ... the calbin's",
    ),
    Broken(
        "a dimension of 0", put(f"{IDS}.logits.shape.2", 0),
        "submodels[0].logits.shape[2] is 0 ... expected a whole number from 1 to 18446744073709551615",
    ),
    Broken(
        "dimensions that overflow 64 bits", put(f"{IDS}.token_or_embed.shape", [2**63, 2**63]),
        "submodels[0].token_or_embed.shape is [9223372036854775808, 9223372036854775808] ... expected [1, 256]",
    ),
    Broken(
        "ByteSize of tokens", put(f"{IDS}.token_or_embed.byte_size", 1023),
        "submodels[0].token_or_embed.byte_size is 1023 ... expected 1024: [1, 256] of 4 bytes",
    ),
    Broken(
        "ByteSize of logits", put(f"{IDS}.logits.byte_size", 1024),
        "submodels[0].logits.byte_size is 1024 ... expected 16384: logits_tile_d0 16 x vocabulary 512 x 2 bytes",
    ),
    Broken(
        "sliceable input", put(f"{IDS}.position.sliceable", False),
        "submodels[0].position.sliceable is false ... expected true",
    ),
    Broken(
        "sliceable logits", put(f"{IDS}.logits.sliceable", True),
        "submodels[0].logits.sliceable is true ... expected false ... the calbin's",
    ),
    Broken(
        "tensor name", put(f"{IDS}.logits.name", "logit"),
        'submodels[0].logits.name ... "logit" ... expected a tensor of ... "logits" ... one character',
    ),
    Broken(
        "tensor named twice", put(f"{IDS}.position.name", "input_ids"),
        'submodels[0] names 2 of its tensors ... "input_ids" ... expected three different names',
    ),
    Broken(
        "input and output confused", swap(f"{DECODE}.position.name", f"{DECODE}.logits.name"),
        "submodels[2].position.dtype is S32 ... expected BF16, the calbin's",
        "submodels[2].position.shape is [1, 1] ... expected [1, 1, 512] of rank 3, the calbin's",
        "submodels[2].position.byte_size is 4 ... expected 1024, the calbin's",
        "submodels[2].position.sliceable is true ... expected false, the calbin's",
        "submodels[2].position is an input ... expected an output",
        "submodels[2].logits.dtype is BF16 ... expected S32, the calbin's",
        "submodels[2].logits.shape is [1, 1, 512] of rank 3 ... expected [1, 1] of rank 2, the calbin's",
        "submodels[2].logits.byte_size is 1024 ... expected 4, the calbin's",
        "submodels[2].logits.sliceable is false ... expected true, the calbin's",
        "submodels[2].logits is an output ... expected an input",
    ),
    # CSRs (FI02 is the same for a job)
    Broken(
        "CSR name", put(f"{IDS}.csr_cur_seq", "curseq"),
        'submodels[0].csr_cur_seq ... "curseq" ... expected a CSR of ... "cur_seq"',
    ),
    Broken(
        "one CSR for both", put(f"{IDS}.csr_cur_seq", "total_seq"),
        'submodels[0].csr_cur_seq and csr_total_seq ... "total_seq" ... expected two CSRs',
    ),
    # sizes
    Broken("max_batch 2", put(f"{IDS}.max_batch", 2), "submodels[0].max_batch is 2 ... expected 1"),
    Broken("max_batch 0", put(f"{IDS}.max_batch", 0), "submodels[0].max_batch is 0 ... expected a whole number from 1"),
    Broken("max_seq 0", put(f"{DECODE}.max_seq", 0), "submodels[2].max_seq is 0 ... expected a whole number from 1"),
    Broken(
        "max_seq of one submodel", put(f"{DECODE}.max_seq", 255),
        'max_seq is 256 in "tiny_prefill" ... 255 in "tiny_decode" ... expected the same in every submodel',
    ),
    Broken(
        "max_seq beyond S32", put(f"{DECODE}.max_seq", 2**31),
        "submodels[2].max_seq is 2147483648 ... expected at most 2147483647",
        "max_seq is 256 in",
    ),
    Broken(
        "vocabulary of one submodel",
        both(put(f"{DECODE}.logits.shape.2", 511), put(f"{DECODE}.logits.byte_size", 1022)),
        'vocabulary is 512 in "tiny_prefill" ... 511 in "tiny_decode" ... expected the same in every submodel',
    ),
    # the tile: only the metadata decides (§4.1)
    Broken(
        "tile 0", put(f"{IDS}.logits_tile_d0", 0),
        "submodels[0].logits_tile_d0 is 0 ... expected a whole number from 1",
    ),
    Broken(
        "tile missing", drop(f"{IDS}.logits_tile_d0"),
        "submodels[0].logits_tile_d0 is missing ... expected ... default",
    ),
    Broken(
        "tile that does not divide the size", put(f"{IDS}.logits_tile_d0", 3),
        "submodels[0].logits.byte_size is 16384 ... expected 3072: logits_tile_d0 3 x vocabulary 512 x 2 bytes",
    ),
    Broken(
        "tile other than the metadata's", both(put(f"{IDS}.logits_tile_d0", 8), put(f"{IDS}.logits.byte_size", 8192)),
        "submodels[0].logits.byte_size is 8192 ... expected 16384 ... the calbin's",
        "submodels[0].logits_tile_d0 is 8 ... expected 16 ... the calbin's",
    ),
    # file, digest, version
    Broken(
        "SHA-256 too short", put("calbin_sha256", lambda s: s[:-1]),
        "calbin_sha256 ... 63 characters ... expected 64 lower-case hexadecimal digits",
    ),
    Broken(
        "SHA-256 in upper case", put("calbin_sha256", str.upper),
        "calbin_sha256 ... expected 64 lower-case hexadecimal digits",
    ),
    Broken(
        "SHA-256 with a letter that is no digit", put("calbin_sha256", lambda s: "g" + s[1:]),
        "calbin_sha256 ... expected 64 lower-case hexadecimal digits",
    ),
    Broken(
        "SHA-256 of another file", put("calbin_sha256", "0" * 64),
        "calbin_sha256 ... expected \"a08175d23286b3af ... the file's",
    ),
    Broken(
        "version", put("calrt_version", "0.7.5"),
        "calrt_version is \"0.7.5\" ... expected \"0.7.6\" ... the library's",
    ),
    Broken("version as a number", put("calrt_version", 0.7), "calrt_version is 0.7 ... expected a text"),
    Broken(
        "calbin in a directory", put("calbin", "a/tiny.calbin"),
        'calbin ... "a/tiny.calbin" ... expected a file name',
    ),
    Broken("calbin above", put("calbin", "../tiny.calbin"), "calbin ... expected a file name alone"),
    Broken("calbin: the directory", put("calbin", "."), 'calbin is "." ... expected a file name alone'),
    Broken("calbin with a backslash", put("calbin", "a\\tiny.calbin"), "calbin ... expected a file name alone"),
    Broken("calbin with a NUL", put("calbin", "tiny\0.calbin"), "calbin ... expected a file name alone"),
    Broken(
        "calbin that no file system has", put("calbin", "\ud800"),
        "the calbin ... cannot be read ... expected it beside",
    ),
    Broken("calbin name too long", put("calbin", "x" * 5000), "the calbin ... cannot be read: File name too long"),
    Broken(
        "calbin missing", put("calbin", "none.calbin"),
        "the calbin ... none.calbin ... cannot be read: No such file",
    ),
    Broken("calbin empty name", put("calbin", ""), 'calbin is "" ... expected a text of at least one character'),
    # JSON types
    Broken("true for 1", put(f"{IDS}.max_batch", True), "submodels[0].max_batch is true ... expected a whole number"),
    Broken(
        "text for a number", put(f"{IDS}.max_seq", "256"),
        'submodels[0].max_seq is "256" ... expected a whole number',
    ),
    Broken("1.0 for 1", put(f"{IDS}.max_batch", 1.0), "submodels[0].max_batch is 1.0 ... expected a whole number"),
    Broken(
        "1 for true", put(f"{IDS}.logits.sliceable", 1),
        "submodels[0].logits.sliceable is 1 ... expected true or false",
    ),
    Broken("null", put(f"{IDS}.exact_name", None), "submodels[0].exact_name is null ... expected a text"),
    Broken("NaN", put(f"{IDS}.max_seq", float("nan")), "submodels[0].max_seq is NaN ... expected a whole number"),
    Broken("infinity", put(f"{IDS}.max_seq", float("inf")), "submodels[0].max_seq is Infinity ... expected a whole"),
    Broken(
        "negative", put(f"{IDS}.logits.byte_size", -1),
        "submodels[0].logits.byte_size is -1 ... expected a whole number",
    ),
    Broken("33 bits", put(f"{IDS}.max_seq", 2**32), "submodels[0].max_seq is 4294967296 ... to 4294967295"),
    Broken(
        "65 bits", put(f"{IDS}.logits.byte_size", 2**64),
        "byte_size is 18446744073709551616 ... to 18446744073709551615",
    ),
    Broken(
        "1000 digits", put(f"{IDS}.max_seq", 10**999),
        "submodels[0].max_seq is a number of 1000 digits ... expected a",
    ),
    Broken("shape as text", put(f"{IDS}.logits.shape", "1,1,512"), 'submodels[0].logits.shape is "1,1,512" ... a list'),
    Broken(
        "shape as an object", put(f"{IDS}.logits.shape", {"0": 1}),
        "submodels[0].logits.shape is ... expected a list",
    ),
    Broken(
        "shape of many", put(f"{IDS}.logits.shape", [1] * 17),
        "submodels[0].logits.shape has 17 items ... at most 16",
    ),
    Broken("tensor as a list", put(f"{IDS}.logits", []), "submodels[0].logits is [] ... expected an object"),
    Broken("submodel as text", put(DECODE, "Decode"), 'submodels[2] is "Decode" ... expected an object'),
    Broken("submodels as an object", put("submodels", {}), "submodels is {} ... expected a list"),
    # keys
    Broken(
        "unknown key", put("comment", "x"),
        'the file has the unknown key ... "comment" ... expected "calbin", "calbin_sha256"',
    ),
    Broken(
        "unknown key, deep", put(f"{IDS}.logits.bytes", 1),
        'submodels[0].logits has the unknown key ... "bytes" ... expected "name", "shape"',
    ),
    Broken("a field of ours as a key", put("path", "/"), 'the file has the unknown key ... "path"'),
    Broken(
        "a key in another case", rename("calbin", "Calbin"),
        "calbin is missing",
        'the file has the unknown key ... "Calbin" ... differs in case',
    ),
    Broken("a key missing", drop("calrt_version"), "calrt_version is missing ... expected"),
    Broken("a key missing, deep", drop(f"{EMBEDS}.logits.dtype"), "submodels[1].logits.dtype is missing ... expected"),
)

NOT_JSON = (
    NotJson("empty", b"", "is empty ... expected a JSON object"),
    NotJson("blank", b" \n\t", "is empty ... expected a JSON object"),
    NotJson("not JSON", b"calbin: tiny\n", "line 1 column 1 ... not JSON"),
    NotJson("cut off", GOOD_TEXT.encode()[:-20], "line ... not JSON"),
    NotJson("a comma too many", GOOD_TEXT.replace("\n}", ",\n}").encode(), "line ... not JSON"),
    NotJson("a second object", GOOD_TEXT.encode() + b"{}", "line ... not JSON: Extra data"),
    NotJson("a comment", b"// good\n" + GOOD_TEXT.encode(), "line 1 column 1 ... not JSON"),
    NotJson("a list", b"[]", "the file is [] ... expected an object"),
    NotJson("a number", b"1", "the file is 1 ... expected an object"),
    NotJson("null", b"null", "the file is null ... expected an object"),
    NotJson("byte order mark", b"\xef\xbb\xbf" + GOOD_TEXT.encode(), "begins with a byte order mark ... expected"),
    NotJson("UTF-16", GOOD_TEXT.encode("utf-16"), "byte 0 is 0xff ... expected UTF-8"),
    NotJson("Latin-1", GOOD_TEXT.encode().replace(b"tiny_decode", b"tiny_d\xe9code"), "is 0xe9 ... expected UTF-8"),
    NotJson("nested deeply", b"[" * 200_000 + b"]" * 200_000, "is nested too deeply ... expected"),
    NotJson("huge", b" " * (1 << 20) + GOOD_TEXT.encode(), "has more than 1048576 bytes ... expected"),
    NotJson(
        "a key twice",
        GOOD_TEXT.replace('"calbin":', '"calbin": "x", "calbin":').encode(),
        'the file has the key ... "calbin" ... more than once ... expected every key once',
    ),
    NotJson(
        "a key twice, deep, with equal values",
        GOOD_TEXT.replace('"max_batch": 1,', '"max_batch": 1, "max_batch": 1,', 1).encode(),
        'submodels[0] has the key ... "max_batch" ... more than once',
    ),
    NotJson(
        "a key twice, once escaped",
        GOOD_TEXT.replace('"calbin":', '"c\\u0061lbin": "x", "calbin":').encode(),
        'the file has the key ... "calbin" ... more than once',
    ),
)
# fmt: on
