// The frame around every call of CalRT: the card's mutex, the record in the trace, the planned fault, the state it moves.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "card.hpp"

namespace calrt::sim {

struct Entry {
    CallKind kind;
    std::uint64_t handle = 0, other = 0;
    std::int64_t a = 0, b = 0;
    std::string text = {};
    Buffer* buffer = nullptr;  // whose state `event` moves when the call succeeded
    int event = -1;
    int device_event = -1;  // the same for the device
};

struct Call {
    Card& card;
    Lock& lock;
    Fault fault;
    std::int64_t number;

    calrtsim_call* record() { return card.trace.find(number); }
    void note_handle(std::uint64_t handle) {
        if (auto* const r = record()) r->handle = handle;
    }
    void note_a(std::int64_t a) {
        if (auto* const r = record()) r->a = a;
    }
};

// The host's monotonic clock: what the host's own stamps are compared with.
inline std::int64_t host_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

inline std::int64_t begin_record(Card& card, const Entry& entry) {
    calrtsim_call record{};
    record.thread = syscall(SYS_gettid);
    record.begin_us = card.now_us();
    record.end_us = record.end_ns = -1;
    record.begin_ns = host_ns();
    record.handle = entry.handle;
    record.other = entry.other;
    record.a = entry.a;
    record.b = entry.b;
    copy_text(name_of(entry.kind), record.call);
    copy_text(entry.text, record.text);
    return card.trace.add(record, card.settings[Key::trace_limit]);
}

[[noreturn]] inline void throw_planned(std::int64_t which) {
    if (which == 1) throw std::bad_alloc();
    if (which == 2) throw 42;
    throw std::runtime_error("calrt simulator: a planned exception");
}

// infer() and Wait() know themselves what a planned return code means for the device.
inline bool handles_return_itself(CallKind kind) { return kind == CallKind::infer || kind == CallKind::wait; }

// Nothing but a planned exception leaves; memory that is not there is a code where there is one.
template <class Result, class Body>
Result without_exceptions(Body& body, Call& call) {
    ReturnCode code = CalrtSuccess;
    try {
        return body(call);
    } catch (const std::bad_alloc&) {
        code = MemoryAllocationFailed;
    } catch (const std::exception&) {
        code = UnknownError;
    }
    if constexpr (std::is_same_v<Result, ReturnCode>) return code;
    return Result{};
}

template <class Body>
auto traced(Card& card, const Entry& entry, Body body) -> std::invoke_result_t<Body, Call&> {
    using Result = std::invoke_result_t<Body, Call&>;
    Lock lock(card.mutex);
    const std::uint64_t epoch = card.epoch;
    Call call{card, lock, {}, begin_record(card, entry)};
    call.fault = card.faults.next(entry.kind);
    const auto finish = [&](std::int64_t result) {
        auto* const record = epoch == card.epoch ? call.record() : nullptr;
        if (!record) return;
        record->end_us = card.now_us();
        record->end_ns = host_ns();
        record->result = result;
    };
    if (call.fault.action == Action::throw_exception) {
        finish(-1);
        lock.unlock();
        throw_planned(call.fault.a);
    }
    Result result{};
    if (call.fault.action == Action::return_code && !handles_return_itself(entry.kind)) {
        if (call.fault.b == 1) without_exceptions<Result>(body, call);
        result = static_cast<Result>(call.fault.a);
    } else {
        result = without_exceptions<Result>(body, call);
    }
    const bool success = !std::is_same_v<Result, ReturnCode> || static_cast<int>(result) == CalrtSuccess;
    if (success && entry.buffer) buffer_moves(*entry.buffer, entry.event);
    if (success && entry.device_event >= 0) device_moves(card, entry.device_event);
    finish(static_cast<std::int64_t>(result));
    return result;
}

}  // namespace calrt::sim
