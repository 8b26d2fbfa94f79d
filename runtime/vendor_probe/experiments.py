"""One experiment per vendor fact: what it provokes, what it looks at, and what follows from it.

Theory. A fact is asked by doing what it speaks of and watching memory and KV. True needs a device that could have
misbehaved: where the provocation did not come about (the job was over before the reset, nothing survives a reset) the
answer is None, never True. The executor treats None like the worst case. The functions know nothing of the simulator.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from attrs import frozen

from machines.errors import classify, code_named
from machines.protocol import params as p
from machines.protocol.params import FACTS
from runtime.calrt import BufStatus, Input, Output, TaskType
from runtime.manifest import CalTaskKind
from runtime.vendor_probe.rig import DeviceTrouble, Job, Outcome, Rig, pattern

__all__ = ["EXPERIMENTS", "OBSERVATIONS", "Finding"]

CHILD_S_MAX = 60.0  # a child that takes longer hangs
PAIRS = 5  # of measurements
JOB_S_MIN = 0.002  # a shorter job is over before anybody looks
LOOKS_MIN = 2
TRIES = 5  # an experiment whose moment was missed is tried again
BUSY = code_named("DeviceBusy").number


@frozen
class Finding:
    """What one experiment says. holds: None where there was no occasion to see it; evidence: why, in a sentence;
    moot: there can be none, because of another fact."""

    holds: bool | None
    evidence: str
    moot: bool = False


def _code(number: int) -> str:
    return f"{classify(number).name} ({number})"


def _status(outcome: Outcome) -> str:
    return getattr(outcome.status, "name", str(outcome.status))


def busy_starts_nothing(rig: Rig) -> Finding:
    """Submit while another job runs, and see whether the refused one writes anything."""
    for _ in range(TRIES):
        running = rig.submit(rig.new_sequence(), 0, rig.deep_tokens)
        sequence = rig.new_sequence()
        refused = rig.submit(sequence, 0, rig.deep_tokens)
        rig.finish(running)
        if refused.submit_code == BUSY:
            return _started_anything(rig, refused, sequence, _code(BUSY))
        if refused.submit_code:
            raise DeviceTrouble("infer while another job runs", refused.submit_code)
        rig.finish(refused)
    return Finding(None, "the device was never busy")


def submit_error_starts_nothing(rig: Rig) -> Finding:
    """Provoke an error of infer(), and see whether the job runs all the same."""
    for provoke in (_second_engine, _too_little_room):
        sequence = rig.new_sequence()
        refused = provoke(rig, sequence)
        if refused.submit_code not in (0, BUSY):
            return _started_anything(rig, refused, sequence, _code(refused.submit_code))
        rig.recover()
    return Finding(None, "infer() returned no error, whatever was wrong")


def _second_engine(rig: Rig, sequence: int) -> Job:
    """The second engine, outside parallel mode."""
    call = rig.device.infer_with_fixed_task_type
    return rig.submit(sequence, 0, rig.deep_tokens, infer=lambda m, i, o: call(rig.calbin, m, i, o, TaskType.PONG))


def _too_little_room(rig: Rig, sequence: int) -> Job:
    """More tokens than KV was reserved for."""

    def infer(model: int, given: Input, taken: Output) -> int:
        rig.reserve(sequence, 1)
        return rig.device.infer(rig.calbin, model, given, taken)

    return rig.submit(sequence, 0, rig.deep_tokens, infer=infer)


def _started_anything(rig: Rig, refused: Job, sequence: int, what: str) -> Finding:
    rig.settle()
    if refused.touched():
        return Finding(False, f"infer() returned {what} and the device wrote the output")
    again = rig.finish(rig.submit(sequence, 0, rig.deep_tokens))
    if not again.good:
        return Finding(False, f"infer() returned {what} and the sequence's KV had changed")
    return Finding(True, f"infer() returned {what}; output and KV were untouched")


def exception_stops_dma(rig: Rig) -> Finding:
    """A CCU exception (a past length that is not the device's), then watch the output.

    What the device writes before we look cannot be told from what it wrote before the exception. So a look counts only
    if it came early in the time that a job takes, one look that sees nothing is no proof, and a device whose jobs are
    too short to be watched is not judged.
    """
    looks = 0
    for _ in range(TRIES):
        job = _break(rig)
        if job is None:
            return Finding(None, "a wrong past length raised no exception")
        before, looked_s = job.snapshot(), time.monotonic() - job.ended_at
        looks += rig.job_s >= JOB_S_MIN and looked_s < rig.job_s / 4
        rig.settle()
        if job.snapshot() != before:
            return Finding(False, "the output changed after the exception had been reported")
        if not rig.recover():
            break
    if looks < LOOKS_MIN:
        return Finding(None, f"a job takes {1000 * rig.job_s:.1f} ms, too short to see what is written after it")
    return Finding(True, f"the output did not change after the exception ({looks} looks)")


def _break(rig: Rig) -> Job | None:
    """Provoke a CCU exception; None where the device takes the lie."""
    job = rig.submit(rig.new_sequence(), 0, rig.deep_tokens, claimed_past=5)
    return job if rig.finish(job).status == BufStatus.DONE_CCU_EXCEPTION else None


def reset_stops_dma(rig: Rig) -> Finding:
    """Reset under a running job, on every rung, and watch the output."""
    seen = []
    for rung in (rig.device.reset_ccu, rig.device.reset_configuration, rig.device.reset):
        job = _job_under_reset(rig, rung)
        name = rung.__name__
        if job is None:
            return Finding(None, f"no job could be caught under {name}")
        rig.settle()
        if job.snapshot() != job.at_reset:
            return Finding(False, f"the output changed after {name} had returned success")
        seen.append(name)
        if not rig.recover():
            break
    return Finding(True, f"the output did not change after {', '.join(seen)}")


def _job_under_reset(rig: Rig, reset: Callable[[], int], early: bool = False) -> Job | None:
    """A job that was running while `reset` succeeded; None when it was always too late. early: in its first quarter."""
    for _ in range(TRIES):
        job = rig.submit(rig.new_sequence(), 0, rig.deep_tokens)
        if job.submit_code:
            raise DeviceTrouble("infer", job.submit_code)
        _, status = job.output.get_status()
        code = reset()
        if code:
            raise DeviceTrouble("reset under a running job", code)
        job.at_reset, reset_s = job.snapshot(), time.monotonic() - job.submitted_at
        too_late = early and (reset_s > rig.job_s / 4 or job.touched())
        if status == BufStatus.RUNNING and job.at_reset.endswith(job.untouched_end()) and not too_late:
            return job
        rig.recover()
    return None


def no_late_completion(rig: Rig) -> Finding:
    """Wait() on a job that a reset killed."""
    job = _job_under_reset(rig, rig.device.reset)
    if job is None:
        return Finding(None, "no job could be caught under reset")
    rig.settle()
    if job.complete():
        return Finding(None, "a reset kills no job: it ran to its end", moot=True)
    code, _ = job.output.wait()
    if code == 0:
        return Finding(False, "Wait() returned success although the output is incomplete")
    return Finding(True, f"Wait() returned {_code(code)}")


def reset_clears_kv(rig: Rig) -> Finding:
    """Fill a sequence, reset, and continue it."""
    sequence = rig.new_sequence()
    first = rig.finish(rig.submit(sequence, 0, rig.deep_tokens))
    if not first.good:
        raise DeviceTrouble("prefill", first.code)
    if code := rig.device.reset():
        raise DeviceTrouble("reset", code)
    rig.configure()
    after = rig.finish(rig.submit(sequence, rig.deep_tokens, 1))
    if after.good:
        return Finding(False, "a decode after the reset continued the old sequence")
    return Finding(True, f"a decode after the reset ended in status {_status(after)}")


def reset_is_honest(rig: Rig) -> Finding:
    """Break the device, reset it once, and compare a deep run with the healthy one."""
    if not _broken(rig):
        return Finding(None, "an exception does not break this device, so a reset has nothing to repair")
    if code := rig.device.reset():
        return Finding(None, f"reset itself says that it failed: {_code(code)}")
    rig.configure()
    if not rig.is_right("deep"):
        return Finding(False, "a reset returned success and the device was still broken")
    return Finding(True, "after a reset the broken device computed rightly again")


def _broken(rig: Rig) -> bool:
    return _break(rig) is not None and not rig.is_right("deep")


def golden_sees_broken_device(rig: Rig) -> Finding:
    """Break the device and run the golden prompt before any reset."""
    if not _broken(rig):
        return Finding(None, "an exception does not break this device")
    if rig.is_right("golden"):
        return Finding(False, "the golden run passed on a device whose deep run was wrong")
    return Finding(True, "the golden run failed on the broken device")


def leftover_harmless(rig: Rig) -> Finding:
    """Let a job survive a reset, and use its sequence in the new generation.

    Only a job whose output is untouched when the reset returns will do, and one that was submitted a moment before: KV
    that it wrote before the reset is not in question, and would be taken for it where a reset keeps KV.
    """
    job = _job_under_reset(rig, rig.device.reset, early=True)
    if job is None:
        return Finding(None, "no job could be caught under reset")
    rig.configure()
    rig.settle()
    if not job.complete():
        return Finding(None, "no job survives a reset", moot=True)
    again = rig.finish(rig.submit(job.sequence, 0, rig.deep_tokens))
    if not again.good:
        return Finding(False, "a job that ran on over the reset wrote KV of the new generation")
    return Finding(True, "a job ran on over the reset and the new generation's KV was untouched")


# It leaves while the job has at least three quarters of its time before it; what is written later, the device wrote.
CHILD = """
import mmap, os, sys, time
import numpy as np
from runtime.vendor_probe.command import rig_of
path, *arguments = sys.argv[1:]
with rig_of(arguments) as rig, open(path, "r+b") as file:
    rig.learn()
    shared = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    job = rig.submit(rig.new_sequence(), 0, rig.deep_tokens, logits=shared)
    early = time.monotonic() - job.submitted_at < rig.job_s / 4 and not job.touched()
    print(job.submit_code, early, rig.job_s, flush=True)
    os._exit(0)
"""


def process_exit_stops_dma(rig: Rig, arguments: Sequence[str]) -> Finding:
    """Another process submits into shared memory and leaves; we watch the memory. The device must be closed here."""
    size = rig.contract(CalTaskKind.PrefillIds).logits.byte_size
    for _ in range(TRIES):
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(size)
            code, early, job_s = _child(file.name, arguments)
            rig.job_s = float(job_s)
            rig.settle()
            written = (np.fromfile(file.name, np.uint8) != pattern(size)).any()
        if code != "0":
            raise DeviceTrouble("infer in a process of its own", int(code))
        if early == "True":
            if written:
                return Finding(False, "memory shared with a process that had left was written")
            return Finding(True, "nothing was written after the process had left")
    return Finding(None, "the process never left early enough in a job's time")


def _run_child(path: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, path, *arguments]
    home = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S_MAX, check=False, cwd=home)


def _child(path: str, arguments: Sequence[str]) -> list[str]:
    """What the child said before it left: infer's code, whether it left early, the time of a job (s).

    Raises DeviceTrouble with its last words when it failed.
    """
    try:
        done = _run_child(path, arguments)
    except subprocess.TimeoutExpired:
        raise DeviceTrouble(f"the child process did not end within {CHILD_S_MAX:.0f} s", 0) from None
    if done.returncode or not done.stdout:
        raise DeviceTrouble(f"the child process failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}", 0)
    return done.stdout.split()


# The experiment of each fact; `process_exit_stops_dma` needs the device closed and is run by `command`.
EXPERIMENTS: dict[str, Callable[[Rig], Finding]] = {
    p.SUBMIT_ERROR_STARTS_NOTHING.name: submit_error_starts_nothing,
    p.BUSY_STARTS_NOTHING.name: busy_starts_nothing,
    p.EXCEPTION_STOPS_DMA.name: exception_stops_dma,
    p.RESET_STOPS_DMA.name: reset_stops_dma,
    p.RESET_CLEARS_KV.name: reset_clears_kv,
    p.RESET_IS_HONEST.name: reset_is_honest,
    p.LEFTOVER_HARMLESS.name: leftover_harmless,
    p.GOLDEN_SEES.name: golden_sees_broken_device,
    p.NO_LATE_COMPLETION.name: no_late_completion,
}


# -- what §14 asks beyond the rulebook's facts: observed, not judged ---------------------------------------------------
INFLIGHT_MAX = 8  # submitted at once at most, to see where Busy begins


def parallel_jobs_max(rig: Rig) -> str:
    """EnableParallelMode(true), then submit until the device is busy."""
    if code := rig.device.enable_parallel_mode(True):
        return f"EnableParallelMode(true) returned {_code(code)}"
    jobs: list[Job] = []
    while len(jobs) < INFLIGHT_MAX:
        job = rig.submit(rig.new_sequence(), 0, rig.deep_tokens)
        if job.submit_code:
            break
        jobs.append(job)
    ends = [rig.finish(job).good for job in jobs]
    return f"{len(jobs)} at once, {sum(ends)} of them ended well"


def engines_overlap(rig: Rig) -> str:
    """The time of two jobs on two engines against the time of the same two one after the other; medians."""
    if code := rig.device.enable_parallel_mode(True):
        return f"EnableParallelMode(true) returned {_code(code)}"
    together, apart = [], []
    for _ in range(PAIRS):
        apart.append(_timed(lambda: [rig.finish(rig.submit(rig.new_sequence(), 0, rig.deep_tokens)) for _ in range(2)]))
        together.append(_timed(lambda: _both(rig)))
    return f"two jobs together took {median(together) / median(apart):.2f} of their time apart"


def _both(rig: Rig) -> None:
    jobs = [rig.submit(rig.new_sequence(), 0, rig.deep_tokens) for _ in range(2)]
    for job in jobs:
        rig.finish(job)


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def kv_after_exception(rig: Rig) -> str:
    """A sequence with KV, a CCU exception in it, and then a decode at the length it had."""
    sequence = rig.new_sequence()
    rig.finish(rig.submit(sequence, 0, rig.deep_tokens))
    raised = rig.finish(rig.submit(sequence, rig.deep_tokens, 1, claimed_past=rig.deep_tokens - 3))
    if raised.status != BufStatus.DONE_CCU_EXCEPTION:
        return "a wrong past length raised no exception"
    after = rig.finish(rig.submit(sequence, rig.deep_tokens, 1))
    return "its length is unchanged" if after.good else "its length has changed"


OBSERVATIONS: dict[str, Callable[[Rig], str]] = {
    "parallel_jobs_max": parallel_jobs_max,
    "engines_overlap": engines_overlap,
    "kv_after_exception": kv_after_exception,
}


def unprobed() -> list[str]:
    """Facts without an experiment; must be none."""
    known = {*EXPERIMENTS, p.EXIT_STOPS_DMA.name}
    return [f.name for f in FACTS if f.name not in known]
