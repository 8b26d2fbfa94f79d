"""§13.1 and §13.2 on the running executor: the tokens of before, every input length, no crosstalk, a thousand faults.

"Before" is what the product does today (runtime/legacy.py), on its own device; the oracle shares code with neither.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from executing import Bench, executing, unused
from moments import end, says

from runtime.calbin import Sample, files, sample
from runtime.calrt import Library
from runtime.cli import run
from runtime.device_run import greedy
from runtime.executor import Refused
from runtime.exits import Exit
from runtime.lane import Lane
from runtime.legacy import Legacy
from runtime.manifest import load_manifest
from runtime.prompts import Prompt, read_prompts
from runtime.status import StatusKind

LENGTHS = (1, 2, 15, 16, 17, 127, 128, 1024, 4095, 4096, 40959)  # §13.1
MAX_SEQ = 40960
PROMPTS = read_prompts()


def different(library: Library, b: Bench, model: str, prompts: list[Prompt], count: int) -> list[int]:
    """Lines of the prompts whose greedy tokens are not the baseline's and the oracle's."""
    found = []
    with Legacy(library, load_manifest(sample(model).with_suffix(".json")), unused(library).index) as legacy:
        for prompt in prompts:
            said = b.tokens(prompt.line, prompt.tokens, count)
            assert b.executor.seq_rm(prompt.line).ok
            if not said == greedy(legacy, prompt.tokens, count) == b.oracle.tokens(prompt.tokens, count):
                found.append(prompt.line)
    return found


@pytest.mark.shows("§13.1-1", "PR1.golden")
@pytest.mark.parametrize(("model", "count"), [("tiny", 6), pytest.param("qwen3-tile16", 40, marks=pytest.mark.nightly)])
def test_100_prompts_give_the_tokens_of_before(library: Library, model: str, count: int) -> None:
    assert len(PROMPTS) == 100
    with executing(library, model=sample(model)) as b:
        assert different(library, b, model, PROMPTS, count) == []
    assert b.sim.violations() == ()


def test_control_another_row_of_the_tile_is_seen(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Lane.read
    with executing(library) as b:
        monkeypatch.setattr(Lane, "read", lambda lane, count, target: read(lane, count + 1, target))
        assert different(library, b, "tiny", PROMPTS[:3], 2) == [p.line for p in PROMPTS[:3]]


def some_tokens(length: int) -> list[int]:
    return [(7 * i + length) % 151_936 for i in range(length)]


@pytest.mark.shows("§13.1-2", "S09")
@pytest.mark.parametrize("model", ["qwen3-tile16", "qwen3-tile8"])
def test_every_input_length(library: Library, model: str) -> None:
    """A prefill and a decode on top of it, each row to the bit; the tile is another one for each model."""
    with executing(library, model=sample(model)) as b:
        for sequence, length in enumerate(LENGTHS):
            prompt = some_tokens(length)
            assert says(b, b.run(sequence, prompt), prompt), length
            assert says(b, b.run(sequence, [9], past=length), [*prompt, 9]), length
            assert b.executor.seq_rm(sequence).ok
    assert b.sim.violations() == ()


@pytest.mark.shows("§13.1-2", "§8.HTTP.400")
def test_40960_and_a_decode_are_refused(library: Library) -> None:
    """Before any call; what just fits is served."""
    with executing(library, model=sample("qwen3-tile16")) as b:
        prompt = some_tokens(MAX_SEQ)
        assert says(b, b.run(1, prompt), prompt)
        calls = len(b.calls())
        for values, past in (([1], MAX_SEQ), (some_tokens(MAX_SEQ + 1), 0)):
            with pytest.raises(Refused, match=r"make 40961; allowed: .*40960|40961 tokens make 40961") as refused:
                b.enqueue(1, values, past)
            assert (refused.value.status.kind, refused.value.status.http) == (StatusKind.INVALID_ARGUMENT, 400)
        assert len(b.calls()) == calls


def alternate(b: Bench, prompts: tuple[list[int], ...], count: int) -> list[list[int]]:
    """Tokens of sequences that take turns; the jobs of one turn are in the queue at the same time."""
    said: list[list[int]] = [[] for _ in prompts]
    values, pasts = list(prompts), [0 for _ in prompts]
    for _ in range(count):
        handles = [b.enqueue(i, values[i], pasts[i]) for i in range(len(prompts))]
        for i, handle in enumerate(handles):
            logits = end(handle).logits
            assert logits is not None
            said[i].append(int(logits.argmax()))
            pasts[i], values[i] = pasts[i] + len(values[i]), said[i][-1:]
    return said


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A small model with room for long sequences."""
    for name, content in files([Sample("long", "tiny", 512, 1024, 16, 1)]):
        (tmp_path / name).write_bytes(content)
    return tmp_path / "long.calbin"


TWO = ([1, 2, 3], [4, 5, 6])
TOKENS = 1000


@pytest.mark.shows("§13.1-3")
def test_two_sequences_alternate_without_crosstalk(library: Library, long: Path) -> None:
    with executing(library, model=long) as b:
        assert alternate(b, TWO, TOKENS) == [b.oracle.tokens(prompt, TOKENS) for prompt in TWO]
        lengths = [b.sim.kv(kv_id)[0] for kv_id in b.executor.calls._kv_ids.values()]
        assert lengths == [len(prompt) + TOKENS - 1 for prompt in TWO]
    assert b.sim.violations() == ()


@pytest.mark.shows("§13.2-3.injected")
@pytest.mark.nightly
def test_a_thousand_cancels_deadlines_and_faults_in_one_process(
    library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """A storm counts nothing as good that is not: it compares logits, explains each failure, and in the end a client is
    served (so a golden run has passed), or the device is Failed by a fault that is named."""
    device = str(unused(library).index)
    exit_ = run(["storm", "--seed", "3", "--events", "5000", "--device", device, "--json"])
    found = json.loads(capsys.readouterr().out)
    if exit_ is Exit.FAILED:
        assert found["ended_by"]
        return
    assert exit_ is Exit.OK, found["findings"]
    assert found["served_after"]
    assert sum(found["events"][name] for name in ("cancel", "deadline", "fault")) >= 1000
    assert found["resets"] > 50


def test_control_sequences_that_are_mixed_up_are_seen(library: Library, long: Path) -> None:
    with executing(library, model=long) as b:
        reserve, known, swapped = b.executor._table["reserve"], b.executor.calls._kv_ids, []

        def mixed_up(job: Any) -> str:
            if job.tag.request.past_len == 5 and not swapped:
                swapped.append(True)
                known[0], known[1] = known[1], known[0]
            return str(reserve(job))

        b.executor._table["reserve"] = mixed_up  # type: ignore[index]
        right = [b.oracle.tokens(prompt, 6) for prompt in TWO]
        said = alternate(b, TWO, 6)
        assert [tokens[:3] for tokens in said] == [tokens[:3] for tokens in right]
        assert all(tokens[3] != other[3] for tokens, other in zip(said, right, strict=True))
