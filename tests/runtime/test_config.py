"""The configuration: what is right is read, what is wrong is said, all of it, and the page is what the code says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs
import pytest

from machines.protocol.params import FACTS, PARAMS, Policy
from machines.protocol.runs import BREAKING, SOUND
from runtime import config
from runtime.calrt import Device
from runtime.config import Config, ConfigError, load_config
from runtime.vendor_probe.command import Evidence
from runtime.vendor_probe.experiments import Finding

DOCUMENT = Path(__file__).parents[2] / "docs" / "config.md"
DURATIONS = [name for name in config.KEYS if "_ms" in name]
DAY_MS = 86_400_000
WORST = {f.name: bool(f.default) for f in FACTS}


def written(folder: Path, text: str) -> Path:
    path = folder / "calexec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def findings(folder: Path, text: str) -> tuple[str, ...]:
    """What is said about a file with this text; each line begins with the file's name."""
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.lines == tuple(str(caught.value).split("\n"))
    assert all(line.startswith(f"{path}: ") for line in caught.value.lines)
    return caught.value.findings


def made(**keys: Any) -> tuple[str, ...]:
    """What is said about a Config made in Python."""
    with pytest.raises(ConfigError) as caught:
        Config(manifest="m.json", **keys)
    return caught.value.findings


# -- what is right -----------------------------------------------------------------------------------------------------
def test_the_manifest_alone_will_do(tmp_path: Path) -> None:
    read = load_config(written(tmp_path, 'manifest = "m.json"'))
    assert read == Config(manifest=str(tmp_path / "m.json"))
    assert read.inflight == 1  # §6.4: Phase A
    assert not read.dump  # S12
    assert read.policy == "exit"
    assert read.facts == WORST


def test_every_key_can_be_given(tmp_path: Path) -> None:
    """One value for each key, none of them the default; read from a file and given in Python they are the same."""
    values: dict[str, Any] = {
        "manifest": "/m.json", "library": "/l.so", "device": 3, "slots": 5, "inflight": 2, "jobs_max": 7,
        "sequences_max": 8, "bypass_max": 0, "admission_ms": 1, "queue_ms": 2, "execution_ms": 3,
        "request_ms_max": DAY_MS, "grace_ms": 5, "close_ms": 6, "stuck_ms": 7, "reset_ms": 8, "configure_ms": 9,
        "golden_ms": 10, "backoff_ms": 11, "kv_retry_ms": 12, "policy": "reuse", "rungs": ["reset_ccu", "reset"],
        "strikes_max": 0, "recoveries_max": 1, "abandoned_max": 0, "trust_submit": True, "trust_exception": True,
        "switches": True, "facts": {f.name: True for f in FACTS}, "log_level": "debug", "incident_directory": "/i",
        "incidents_max": 1, "dump": True, "dump_directory": "/d", "dump_bytes_max": 1,
    }  # fmt: skip
    assert list(values) == list(config.KEYS)
    text = "\n".join(f"{k} = {json.dumps(v)}" for k, v in values.items() if k != "facts")
    facts = "\n[facts]\n" + "\n".join(f"{fact} = true" for fact in values["facts"])
    read = load_config(written(tmp_path, text + facts))
    assert read == Config(**values)
    assert {k: v for k, v in attrs.asdict(read, recurse=False).items() if v == config.KEYS[k].default} == {}
    assert read.rungs == ("reset_ccu", "reset")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = 'manifest = "models/m.json"\nlibrary = "/abs/l.so"\nincident_directory = "i"\n'
    read = load_config(written(tmp_path, text))
    assert read.manifest == str(tmp_path / "models" / "m.json")
    assert read.library == "/abs/l.so"
    assert read.incident_directory == str(tmp_path / "i")
    assert read.dump_directory == ""
    assert Config(manifest=Path("a") / "b").manifest == str(Path("a") / "b")  # type: ignore[arg-type]


def test_nothing_can_be_changed() -> None:
    made = Config(manifest="m.json")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.slots = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.facts["reset_is_honest"] = True  # type: ignore[index]


# -- what is wrong -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", DURATIONS)
@pytest.mark.parametrize(
    "value", ["-1", "0", "-0.0", "nan", "-nan", "inf", "-inf", "1.5", "1e3", "86_400_001", "9" * 30, "true", '"5"',
              "[5]", "2026-01-01"],
)  # fmt: skip
def test_what_is_no_duration_is_said(tmp_path: Path, key: str, value: str) -> None:
    """F39: from a file."""
    (finding,) = findings(tmp_path, f'manifest = "m.json"\n{key} = {value}')
    assert finding.startswith(f"{key} is ")
    assert finding.endswith(f"; expected a whole number from 1 to {DAY_MS}")


@pytest.mark.parametrize("key", DURATIONS)
@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, -math.inf, 0.5, 1000.0, 2**63, 10**400, True, "5", None])
def test_what_is_no_duration_is_said_to_a_caller(key: str, value: Any) -> None:
    """F39: from Python."""
    (finding,) = made(**{key: value})
    assert finding.startswith(f"{key} is ")
    assert len(finding) < 200


@pytest.mark.parametrize(("key", "value"), [("inflight", True), ("device", False), ("dump", 0), ("strikes_max", 3.0)])
def test_what_only_equals_the_default_is_said(key: str, value: Any) -> None:
    (finding,) = made(**{key: value})
    assert finding.startswith(f"{key} is {json.dumps(value)}; expected ")


def test_the_ends_of_a_range_belong_to_it(tmp_path: Path) -> None:
    read = load_config(written(tmp_path, f'manifest = "m"\nqueue_ms = 1\nexecution_ms = {DAY_MS}\nslots = 64'))
    assert (read.queue_ms, read.execution_ms, read.slots) == (1, DAY_MS, 64)


BROKEN = {
    "unknown key": ("sloots = 3", ['unknown key "sloots"', 'nearest is "slots"']),
    "key in another case": ("Slots = 3", ['unknown key "Slots"', "differs in case"]),
    "unknown policy": ('policy = "rebuilt"', ["policy is", 'one of "exit", "rebuild", "reuse"', 'nearest is "reb']),
    "policy in another case": ('policy = "Exit"', ["differs in case"]),
    "unknown rung": ('rungs = ["reset_cuu"]', ["rungs[0] is", 'nearest is "reset_ccu"']),
    "rungs as text": ('rungs = "reset"', ["rungs is", "a list"]),
    "no rungs": ("rungs = []", ["rungs is []"]),
    "rungs in another order": ('rungs = ["reset", "reset_ccu"]', ["rungs is", "in this order"]),
    "a rung twice": ('rungs = ["reset", "reset"]', ["each once"]),
    "three in flight": ("inflight = 3", ["inflight is 3; expected a whole number from 1 to 2"]),
    "more in flight than slots": ("inflight = 2\nslots = 1", ["inflight is 2; expected at most slots, 1"]),
    "dump to nowhere": ("dump = true", ["dump_directory is missing", "no default"]),
    "number for a switch": ("dump = 1", ["dump is 1; expected true or false"]),
    "empty path": ('library = ""', ["library is", "at least one character"]),
    "log level": ('log_level = "warn"', ['nearest is "warning"']),
    "unknown fact": ("[facts]\nreset_is_honset = true", ['facts has the unknown key "reset_is_honset"']),
    "fact near another": ("[facts]\nreset_is_hones = true", ['nearest is "reset_is_honest"']),
    "fact as a number": ("[facts]\nreset_is_honest = 1", ["facts[reset_is_honest] is 1; expected true or false"]),
    "facts as a number": ("facts = 3", ["facts "]),
    "a switch that would have to reset": ("switches = true", ["golden_sees_broken_device is not declared"]),
    "trusted without the fact": ("trust_submit = true", ["submit_error_starts_nothing is not declared"]),
    "trusted without the other": ("trust_exception = true", ["exception_stops_dma is not declared"]),
    "key twice": ("slots = 1\nslots = 2", ["not TOML"]),
    "not TOML": ("slots: 1", ["not TOML", "line 2"]),
    "digits without end": (f"slots = {'9' * 5000}", ["not TOML"]),
    "nested without end": ("slots = " + "[" * 100_000, ["nested too deeply"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    text, pieces = BROKEN[name]
    (finding,) = findings(tmp_path, f'manifest = "m.json"\n{text}')
    assert [piece for piece in pieces if piece not in finding] == []
    assert "\n" not in finding


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    found = findings(tmp_path, 'queue_ms = 0\nslots = "two"\npolicy = "stay"\nx = 1\n[facts]\nreset_is_honest = 2')
    subjects = [f.split(" is ")[0].split(" has ")[0] for f in found]
    assert sorted(subjects) == ["facts[reset_is_honest]", "manifest", "policy", "queue_ms", "slots", "the file"]
    assert len(made(queue_ms=0, slots="two", policy="stay", facts={"x": True, "reset_is_honest": 2})) == 5
    assert len(made(dump=True, inflight=2, slots=1, rungs=(), trust_submit=True)) == 4


@pytest.mark.parametrize("content", [b'manifest = "\xff"', b'\xef\xbb\xbfmanifest = "m"', b"#" * (1 << 20) + b"#"])
def test_a_file_that_is_no_text_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert len(caught.value.findings) == 1


def test_no_file_and_an_empty_one_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path)
    assert findings(tmp_path, "") == ("manifest is missing; expected it to be there (it has no default)",)


# -- the rulebook ------------------------------------------------------------------------------------------------------
def test_the_rulebook_gets_every_parameter() -> None:
    values = Config(
        manifest="m", jobs_max=11, sequences_max=12, slots=13, inflight=2, recoveries_max=14, rungs=("reset",),
        strikes_max=15, abandoned_max=16, bypass_max=17, policy="rebuild", switches=True,
        facts={"reset_is_honest": True},
    ).parameters()  # fmt: skip
    assert list(values) == [param.name for param in PARAMS]
    assert values == {
        "jobs": 11, "sequences": 12, "slots": 13, "kv": 12, "inflight": 2, "faults": 0, "recoveries_max": 14,
        "rungs": 1, "strikes_max": 15, "abandoned": 16, "bypass": 17, "policy": Policy.Rebuild.code,
        "trust_submit": 0, "trust_exception": 0, "switches": 1, "calm": 0,
        **{f.name: f.default for f in FACTS}, "reset_is_honest": 1,
    }  # fmt: skip
    assert {type(value) for value in values.values()} == {int}


@pytest.mark.parametrize("policy", list(Policy))
def test_each_policy_has_its_name(policy: Policy) -> None:
    assert Config(manifest="m", policy=policy.name.lower()).parameters()["policy"] == policy.code


def test_the_rungs_are_calls_of_the_device() -> None:
    assert config.RESETS == ("reset_ccu", "reset_configuration", "reset")
    assert all(callable(getattr(Device, rung)) for rung in config.RESETS)


# -- the facts ---------------------------------------------------------------------------------------------------------
def facts_of(run: dict[str, int]) -> dict[str, bool]:
    return {name: bool(value) for name, value in run.items() if name != "policy"}


@pytest.mark.parametrize("name", SOUND)
def test_what_was_proved_is_sound_and_every_fact_of_it_is_needed(name: str) -> None:
    """Each policy under the smallest facts of the campaign, and without each of those that refute it there."""
    policy = list(Policy)[SOUND[name]["policy"]].name.lower()
    assert Config(manifest="m", policy=policy, facts=facts_of(SOUND[name])).unproved() == ()
    for fact in [*BREAKING[name], "busy_starts_nothing"]:
        lacking = Config(manifest="m", policy=policy, facts={**facts_of(SOUND[name]), fact: False}).unproved()
        assert any(fact in line for line in lacking)
        assert all(line.startswith(f"policy {policy} also needs") for line in lacking)


def test_the_worst_case_allows_no_policy() -> None:
    assert all(Config(manifest="m", policy=policy.name.lower()).unproved() for policy in Policy)


def evidence(folder: Path, **holds: Any) -> str:
    """A file as `calexec vendor-probe` writes it."""
    facts = {f.name: Finding(holds.get(f.name), "seen") for f in FACTS}
    found = Evidence("0.7.6", "0" * 64, 0, True, "2026-08-02T00:00:00+00:00", facts, {})
    (folder / "evidence.json").write_text(json.dumps(attrs.asdict(found)), encoding="utf-8")
    return 'manifest = "m.json"\nfacts = "evidence.json"'


def test_evidence_declares_what_was_seen_to_hold(tmp_path: Path) -> None:
    """Also Busy: what was not determined is the worst case, whatever the default is."""
    text = evidence(tmp_path, reset_is_honest=True, reset_clears_kv=False)
    read = load_config(written(tmp_path, text))
    assert read.facts == {f.name: f.name == "reset_is_honest" for f in FACTS}


@pytest.mark.parametrize(
    ("content", "piece"),
    [
        ("", "is no evidence file"),
        ("[]", "is no evidence file"),
        ("{}", "is no evidence file"),
        ('{"facts": {}}', "is no evidence file"),
        ("[" * 100_000, "is no evidence file"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_evidence_is_said(tmp_path: Path, content: str | None, piece: str) -> None:
    """Together with what else is wrong."""
    if content is not None:
        (tmp_path / "evidence.json").write_text(content, encoding="utf-8")
    about_facts, about_slots = findings(tmp_path, 'manifest = "m.json"\nfacts = "evidence.json"\nslots = 0')
    assert "evidence.json" in about_facts
    assert piece in about_facts
    assert "slots is 0" in about_slots
    assert len(findings(tmp_path, 'manifest = "m.json"\nfacts = "evidence.json"')) == 1


def test_evidence_that_says_something_else_is_refused(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, evidence(tmp_path, reset_is_honest="yes"))
    assert "reset_is_honest" in finding


# -- the page ----------------------------------------------------------------------------------------------------------
def test_the_page_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == config.page(), "run `python -m runtime.config`"


def test_every_key_and_fact_is_on_the_page() -> None:
    rows = [line for line in config.page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [*config.KEYS, *(f.name for f in FACTS)]
    assert all(key.metadata["about"] for key in config.KEYS.values())
    assert list(config.SECTIONS) == [name for name in config.KEYS if name in config.SECTIONS]


def test_the_example_on_the_page_can_be_read(tmp_path: Path) -> None:
    example = config.page().split("```toml\n")[1].split("```")[0]
    evidence(tmp_path)
    assert load_config(written(tmp_path, example)).policy == "rebuild"


def test_numbers_have_their_unit_in_their_name() -> None:
    named = {key: config._takes(a.type) for key, a in config.KEYS.items()}
    assert {key for key, takes in named.items() if takes == f"1 to {DAY_MS}"} == set(DURATIONS)
