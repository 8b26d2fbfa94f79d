"""What the specification asks for: each line of it that can be shown, with an id, declared once.

Theory. The specification (Chinese, not part of this repository) has tables and lists: code problems (§2), invariants
and locks (§5), error classes (§8), steps (§11), faults to inject (§12), acceptance (§13), what only the vendor knows
(§14). Each of their lines is a `Requirement`. A test says which it shows (`@pytest.mark.shows("FI05")`), a property of
the rulebook does by what it cites; docs/conformance.md is what follows. A line with several demands has *parts*: each
must be shown, under an id such as `PR5.TSAN`. What cannot be shown here `needs` something, and no test may claim it.

Rows of §8 and of the lock table are derived from where they are declared, so they are not typed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import field, frozen

from machines.errors import CLASSES, CODES, CodeClass, ErrorClass
from machines.protocol.params import FACTS
from machines.protocol.variables import LOCKS
from machines.rulebook import Property

__all__ = ["GROUPS", "NEEDS", "Group", "Requirement", "claimable", "shows_property"]

NEEDS = ("24 h", "real hardware", "Phase B", "the vendor's SDK")


@frozen
class Requirement:
    """One line of the specification.

    line: how it begins there; says: what it demands; parts: if it demands several things, their names; missing: what
    of it is not shown here, in words; needs: why none of it can be (of NEEDS); instead: what there is here that comes
    near and does not show it; facts: vendor facts on which it depends (machines/protocol/params.py).
    """

    id: str
    line: str
    says: str
    parts: tuple[str, ...] = field(default=(), kw_only=True)
    missing: str = field(default="", kw_only=True)
    needs: tuple[str, ...] = field(default=(), kw_only=True)
    instead: str = field(default="", kw_only=True)
    facts: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def ids(self) -> tuple[str, ...]:
        """What a test may claim: each part, or the id itself."""
        return tuple(f"{self.id}.{part}" for part in self.parts) or (self.id,)


@frozen
class Group:
    """A table or a list of the specification."""

    cites: str
    title: str
    rows: tuple[Requirement, ...]


R = Requirement

PROBLEMS = (
    R("S01", "`KvManager::Apply()` 失败后 `do...while(!ok)`",
      "Waiting for KV has a deadline, can be cancelled, and sleeps."),
    R("S02", "infer 后二次 `Apply()` 失败 `abort()`", "A failed second Apply() costs its job, never the process."),
    R("S03", "`SetCsrByName()` 返回码未检查", "A CSR that cannot be set stops the job before the submit."),
    R("S04", "`infer()` 返回码未检查", "A submit that failed is not waited for as if it had succeeded."),
    R("S05", "`Wait()` 返回码未检查", "A timeout or a CCU exception is never a success."),
    R("S06", "context 只有一组 prefill/decode vectors", "Each job has memory of its own; no other writes into it."),
    R("S07", "每次创建 Runtime buffer", "Buffers are made once for a generation, none for a job."),
    R("S08", "substring 选择子模型且最后匹配覆盖前者", "A submodel is found by its exact name alone."),
    R("S09", "prefill output `D0=16`",
      "The tile of the logits is the manifest's; the right row is read for every length."),
    R("S10", "整个 BF16 vocab 先转临时 FP32 vector",
      "Logits are converted straight into their target, without a copy between."),
    R("S11", "计时存在 `std::map` 且按 seq 共享", "Times belong to their job; nothing remains of an earlier one."),
    R("S12", "dump 路径硬编码用户目录",
      "Dumps are off by default, private, bounded, and where the configuration says."),
)  # fmt: skip

INVARIANTS = (
    R("I1", "`DeviceExecutor` 独占 `VirtualDevice`、`Calbin` 和 `KvManager`。",
      "The executor alone uses device, calbin and KvManager; a restart has them for itself."),
    R("I2", "只有 submitter 线程调用 `infer()`", "Only the submitter calls infer(), only completion waits for jobs."),
    R("I3", "一个 `BufferSlot` 同一时刻最多属于一个 `JobContext`。", "A slot belongs to one job at a time."),
    R("I4", "`MapBuf()` 后 host vector 在完成前不得 resize、move、swap 或释放。",
      "Mapped memory stays where it is until the device is done."),
    R("I5", "job 的 `generation_id` 必须与 pool/model generation 一致。",
      "A job, its pool and its model are of one generation."),
    R("I6", "KV reserve 成功不等于 KV commit",
      "KV is committed only after the device is done and the output was judged."),
    R("I7", "cancel 不释放底层资源，只阻止结果交付",
      "A cancel withholds the result and releases nothing before Wait()."),
    R("I8", "reset 后所有旧 generation buffer 一律 quarantine 并重建。",
      "After a reset every buffer of the old generation is in quarantine, and a new pool is made.",
      missing="what was free when its generation ended is released; only what the device may be using is kept"),
)  # fmt: skip

_LOCKS = {
    "lifecycle": "Generation and Ready/Draining/Recovering change as one; configure and reset hold no other lock.",
    "admission": "The line for KV and its budget change as one; no call of CalRT is made meanwhile.",
    "pool": "Free, leased and quarantined slots change as one; no call of CalRT is made meanwhile.",
    "submit": "The submit queue changes as one; no call of CalRT is made meanwhile.",
    "completion": "The queue of submitted jobs changes as one; it is not held during Wait().",
}
LOCK_ROWS = (
    *(R(f"§5.2.{lock}", f"`{lock}_mu`", _LOCKS[lock]) for lock in LOCKS),
    R("§5.2.order", "若一次操作需要多个锁，固定顺序为",
      "Locks are taken in one order, and Wait() is called with none held."),
)  # fmt: skip


_OTHERWISE = {ErrorClass.Unknown: "admission is stopped, as after a device error, and not only paused"}


def _row(row: CodeClass) -> Requirement:
    """§8's row of a class, from machines/errors.py."""
    codes = [str(c.number) for c in CODES if c.kind is row.kind and not c.name.startswith("Undocumented")]
    says = f"The job {row.job}; admission: {row.admission}; {row.action}."
    return R(f"§8.{row.kind.name}", f"CalRT {', '.join(codes)}", says, missing=_OTHERWISE.get(row.kind, ""))


ERRORS = (
    *(_row(row) for row in CLASSES if row.kind is not ErrorClass.Success),
    R("§8.HTTP", "推荐 HTTP/gRPC 映射", "Each kind of failure has its HTTP and gRPC code.",
      parts=("400", "429", "504", "503", "500")),
)  # fmt: skip

STEPS = (
    R("PR1", "error wrapper、所有返回码、metrics guard", "Error mapping; the golden run as before.",
      parts=("mapping", "golden")),
    R("PR2", "manifest exact lookup、tensor/layout 校验", "Injected: model missing, name twice, shape, dtype.",
      parts=("missing", "twice", "shape", "dtype")),
    R("PR3", "KV 有界 admission、移除 abort", "Deadline, cancel, capacity used up.",
      parts=("deadline", "cancel", "capacity")),
    R("PR4", "BufferPool + move-only lease", "Addresses stay; what is given back is reset; quarantine.",
      parts=("addresses", "reset", "quarantine")),
    R("PR5", "JobContext + submit/completion，in-flight=1", "TSAN, cancel, shutdown, 1000 loops.",
      parts=("TSAN", "cancel", "shutdown", "loops"),
      missing="ThreadSanitizer sees the native parts; it cannot see Python's threads"),
    R("PR6", "logits 直接转换", "Bitwise or error, bounds, performance.", parts=("bitwise", "bounds", "performance")),
    R("PR7", "ping/pong runner，默认关闭", "Two sequences without crosstalk, states, faults, on both engines.",
      needs=("Phase B", "real hardware"), instead="two in flight on the simulated device, off by default (F14)"),
    R("PR8", "产品灰度 `max_inflight=2`", "Soak of 24 h, P99, falling back by itself.", needs=("Phase B", "24 h")),
)  # fmt: skip

FAULTS = (
    R("FI01", "exact lookup", "One wrong character in the manifest: the start fails, nothing is configured."),
    R("FI02", "CSR", "A CSR that is not there: the job fails in prepare, nothing is submitted."),
    R("FI03", "tensor slice", "A slice of ByteSize + 1: refused here, CalRT is not called."),
    R("FI04", "KV capacity", "canAllocate says no: it waits until the deadline, and sleeps."),
    R("FI05", "wrapper 返回 `DeviceBusy`", "infer() returns Busy: the job is rolled back, nobody waits.",
      facts=("busy_starts_nothing",)),
    R("FI06", "wrapper 返回 `DeviceUnavailable`", "infer() returns Unavailable: admission stops, recovery begins.",
      facts=("submit_error_starts_nothing",)),
    R("FI07", "返回 `Timeout`", "Wait() times out: buffers and KV in quarantine, no logits."),
    R("FI08", "`DONE_CCU_EXCEPTION`", "A CCU exception fails the job though Wait() succeeded, and recovery begins."),
    R("FI09", "tensor size 小于 vocab",
      "An output smaller than the vocabulary is seen, and nothing is written beyond."),
    R("FI10", "注入 NaN/Inf", "NaN or Inf: the generation is set apart, the golden run is made again."),
    R("FI11", "cancel before submit", "Cancelled before the submit: the device never sees it, all is given back."),
    R("FI12", "cancel after submit",
      "Cancelled after it: still waited for, the result is dropped, all is given back."),
    R("FI13", "shutdown", "Closing with one queued and one submitted: one is cancelled, one drained."),
    R("FI14", "stale completion", "A completion of before the reset writes nothing into the new generation."),
    R("FI15", "pool reset", "A slice that was not undone is seen when the slot comes back: quarantine."),
)  # fmt: skip

ACCEPTANCE = (
    R("§13.1-1", "固定 100 个 prompt", "100 fixed prompts give the greedy tokens of before, all of them."),
    R("§13.1-2", "输入长度覆盖 1、2、15、16、17", "Input lengths from 1 to 40959; 40960 and a decode are refused."),
    R("§13.1-3", "两个 seq id 交替 1000 token", "Two sequences alternate for 1000 tokens without crosstalk."),
    R("§13.2-1", "Phase A 24h，零进程 abort", "24 h without an abort, an endless wait or an unexplained CCU exception.",
      needs=("24 h", "real hardware"), instead="`calexec soak --hours 24`, which nobody has run here"),
    R("§13.2-2", "RSS、Runtime device memory 和 pool leased 数",
      "Memory and leases do not grow; at the end none is leased.",
      missing="over 100,000 jobs on the simulated device, not over 24 h"),
    R("§13.2-3", "取消/超时/错误注入 1000 次后",
      "After 1000 cancels, timeouts and errors: the golden run passes, or Failed and the supervisor starts anew.",
      parts=("injected", "supervisor")),
    R("§13.3-1", "PR1-PR5 行为重构阶段",
      "TTFT and TPOT: P50 at most 3 % worse, P99 at most 5 %.",
      needs=("real hardware",), instead="`make bench` measures both on the simulated device"),
    R("§13.3-2", "logits 直接转换单独报告 CPU time", "CPU time and allocations of the conversion are told apart.",
      missing="the report has times of this host, and no column of allocations (S10: there are none)"),
    R("§13.3-3", "Phase B 只有在 aggregate tokens/s 提升至少 10%",
      "Phase B by default only if it is 10 % faster and as sound.",
      needs=("Phase B", "real hardware", "24 h")),
)  # fmt: skip

BLOCKERS = (
    R("§14-1", "`EnableParallelMode(true)` 的线程安全",
      "Parallel mode: thread safety, most in flight, drain when it ends.",
      needs=("the vendor's SDK", "Phase B"), instead="`calexec vendor-probe` observes how many jobs run at once"),
    R("§14-2", "PING/PONG 是否真的重叠", "Whether both engines overlap, and when a slot may be used again.",
      needs=("the vendor's SDK", "Phase B")),
    R("§14-3", "execution timeout 后安全 cancel 方法。", "How to cancel safely after an execution timeout.",
      needs=("the vendor's SDK",), facts=("process_exit_stops_dma",),
      instead="the executor asks for no cancel: a reset, or the end of the process"),
    R("§14-4", "submit 已成功但 Wait 失败时 KV 是否部分更新。", "Whether a failed Wait() leaves KV partly updated.",
      needs=("the vendor's SDK",), facts=("exception_stops_dma",),
      instead="KV is in doubt then, whatever is true (proved: `kv.doubt`, `kv.unknown`)"),
    R("§14-5", "`ResetCCU`、`ResetConfiguration`、`Reset`",
      "What each reset does to DMA, KV, the other die and host memory.",
      needs=("the vendor's SDK",),
      facts=("reset_stops_dma", "reset_clears_kv", "reset_is_honest", "leftover_harmless", "no_late_completion")),
    R("§14-6", "厂商交付必须包含最小 runner",
      "The vendor's runner, timing diagram, injected errors, golden after recovery.",
      needs=("the vendor's SDK", "real hardware"), facts=("golden_sees_broken_device",),
      instead="`calexec vendor-probe` is such a runner; no vendor has run it"),
)  # fmt: skip

GROUPS = (
    Group("§2", "Problems of the code before", PROBLEMS),
    Group("§5.1", "Invariants", INVARIANTS),
    Group("§5.2", "Locks and their order", LOCK_ROWS),
    Group("§8", "Error classes", ERRORS),
    Group("§11", "What each step must test", STEPS),
    Group("§12", "Faults to inject", FAULTS),
    Group("§13", "Acceptance", ACCEPTANCE),
    Group("§14", "What only the vendor knows", BLOCKERS),
)


def rows(groups: Iterable[Group] = GROUPS) -> Iterator[Requirement]:
    return (row for group in groups for row in group.rows)


def claimable(groups: Iterable[Group] = GROUPS) -> dict[str, Requirement]:
    """Every id that a marker may name, and whose it is; also those that no test may claim."""
    return {name: row for row in rows(groups) for name in row.ids}


def shows_property(row: Requirement, prop: Property) -> bool:
    """Whether a property of the rulebook is about this line: by its own id (I4.memory) or by what it cites."""
    number = row.id.removeprefix("I")
    return prop.id.startswith(f"{row.id}.") or prop.cites in {row.id, f"§5.1-{number}"}


def problems(groups: Iterable[Group] = GROUPS) -> list[str]:
    """What is wrong in the data alone."""
    found, seen = [], [row.id for row in rows(groups)]
    found += [f"{name} is declared twice" for name in sorted({n for n in seen if seen.count(n) > 1})]
    for row in rows(groups):
        found += [f"{row.id} needs {n!r}; known are {', '.join(NEEDS)}" for n in row.needs if n not in NEEDS]
        found += [f"{row.id} assumes {f!r}, no vendor fact" for f in row.facts if f not in {p.name for p in FACTS}]
        if row.needs and (row.missing or row.parts):
            found.append(f"{row.id} is not shown, so nothing of it is missing in part")
        if row.instead and not row.needs:
            found.append(f"{row.id} can be shown, so there is nothing instead")
    return found
