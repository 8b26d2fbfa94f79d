"""For each row of §12 lines of the executor which, when they are wrong, make that row's test fail.

Declared once: test_mutations.py makes each of them and expects red, docs/conformance.md names them.
"""

from __future__ import annotations

from attrs import frozen

__all__ = ["MUTATIONS", "Mutation"]


@frozen
class Mutation:
    """row: the id of the row (requirements.py). file: below runtime/. old: a text on one line, which is there once;
    new: what it becomes; wrong: what the executor then does; nightly: seen by waiting for what never comes."""

    row: str
    file: str
    old: str
    new: str
    wrong: str = ""
    nightly: bool = False


_INFER, _WAIT = 'return observed("infer", code)', 'return observed("wait", code)'
MUTATIONS = (
    Mutation(
        "FI01", "manifest.py", "elif n == 0:", "elif n == 0 and not nearest(name, spare):",
        "a name that is nearly right is taken for right",
    ),
    Mutation(
        "FI02", "prepare.py", 'yield failed(f"set CSR {csr}", lane.input.set_csr(csr, value), library)',
        "yield lane.input.set_csr(csr, value) and None", "the code of set CSR is not looked at",
    ),
    Mutation(
        "FI03", "lane.py", "* size > tensor.byte_size:", "* size > tensor.byte_size + size:",
        "a slice may be one byte an element too long",
    ),
    Mutation(
        "FI04", "cast.py", '"clock.kv_retry": fixed(config.kv_retry_ms)', '"clock.kv_retry": fixed(0)',
        "it asks for KV again at once",
    ),
    Mutation("FI05", "calls.py", _INFER, 'return "ok"', "a submit that failed counts as submitted"),
    Mutation(
        "FI06", "calls.py", "code = int(getattr(self.device, name)())", "code = 0",
        "a recovery that does not reset the device",
    ),
    Mutation(
        "FI06", "calls.py", _INFER, 'return "busy" if code else "ok"', "an unavailable device counts as busy",
        nightly=True,
    ),
    Mutation("FI07", "calls.py", _WAIT, 'return "ok"', "a Wait() that failed counts as done"),
    Mutation(
        "FI08", "calls.py", 'return "exception" if status == BufStatus.DONE_CCU_EXCEPTION else "error"', 'return "ok"',
        "the buffer's status is not looked at",
    ),
    Mutation(
        "FI09", "lane.py", "if size != c.logits.byte_size:", "if size > c.logits.byte_size:",
        "an output that is too small is read",
    ),
    Mutation(
        "FI10", "lane.py", 'return failed("logits", code, self.library)', "return None",
        "what the conversion found is not told",
    ),
    Mutation(
        "FI11", "calls.py", "failure = self._kv().unreserve(context.kv_id, context.request.past_len)",
        "failure = None", "reserved KV is not given back",
    ),
    Mutation(
        "FI12", "executor.py", "context.logits if status.ok else None", "context.logits",
        "a cancelled job's logits are delivered",
    ),
    Mutation(
        "FI13", "cast.py", '"clock.grace.close": fixed(config.close_ms)', '"clock.grace.close": fixed(0)',
        "closing does not wait for what is submitted",
    ),
    Mutation(
        "FI14", "calls.py", "self._kv_ids[seq_id] = next(self._next_kv_id)", "self._kv_ids[seq_id] = seq_id",
        "a new generation uses the old one's names in KV",
    ),
    Mutation("FI15", "buffers.py", "good = failure is None", "good = True", "a slot that is sliced is lent again"),
)  # fmt: skip
