// The host side of CalRT: call order, resets, waiting, the end of handles.
#include <algorithm>
#include <string>

#include "card.hpp"

namespace calrt::sim {

namespace {

std::string refused(const char* table, const char* state, const char* event) {
    return std::string(table) + ": " + event + " is impossible in state " + state;
}

// An event that the table does not have here changes nothing (it was recorded when the call came).
void move_to(int next, int* state) {
    if (next >= 0) *state = next;
}

// Whatever is in flight becomes an orphan of this reset.
void orphan_all(Card& card) {
    for (const auto& output : card.in_flight) {
        buffer_moves(*output, abi_output_on_orphan);
        buffer_moves(*output->partner, abi_input_on_orphan);
        output->partner = nullptr;
    }
    card.in_flight.clear();
}

void forget_configuration(Card& card) {
    ++card.configuration;
    card.calbin = nullptr;
    card.parallel = false;
}

}  // namespace

bool device_may(Card& card, int event) {
    if (abi_device_next[card.device_state][event] >= 0) return true;
    card.violation(ViolationKind::call_order, 0,
                   refused("abi_device", abi_device_state_names[card.device_state], abi_device_event_names[event]));
    return false;
}

bool buffer_may(Card& card, const Buffer& buffer, int event) {
    const auto* const next = buffer.is_output ? abi_output_next[buffer.state] : abi_input_next[buffer.state];
    if (next[event] >= 0) return true;
    card.violation(ViolationKind::call_order, buffer.job,
                   buffer.is_output
                       ? refused("abi_output", abi_output_state_names[buffer.state], abi_output_event_names[event])
                       : refused("abi_input", abi_input_state_names[buffer.state], abi_input_event_names[event]));
    return false;
}

void device_moves(Card& card, int event) { move_to(abi_device_next[card.device_state][event], &card.device_state); }

void buffer_moves(Buffer& buffer, int event) {
    const auto* const next = buffer.is_output ? abi_output_next[buffer.state] : abi_input_next[buffer.state];
    move_to(next[event], &buffer.state);
}

bool is_dead(const Card& card, const Buffer& buffer) {
    return buffer.epoch != card.epoch || buffer.configuration != card.configuration;
}

ReturnCode configure_card(Card& card, const std::shared_ptr<const SimCalbin>& calbin) {
    const bool possible = device_may(card, abi_device_on_configure);
    if (!calbin) return IllegalCalbin;
    if (card.calbin) return AlreadyConfigured;
    if (!possible) return Unexpected;
    card.calbin = calbin;
    return CalrtSuccess;
}

void went_into_flight(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output) {
    buffer_moves(*input, abi_input_on_infer);
    buffer_moves(*output, abi_output_on_infer);
    output->partner = input;
    card.in_flight.push_back(output);
}

ReturnCode wait_for(Card& card, Lock& lock, const Buffer& output, std::uint32_t* extra_completions) {
    if (output.running && *extra_completions > 0) {
        --*extra_completions;
        return CalrtSuccess;
    }
    const std::uint64_t job = output.job;
    const std::int64_t limit_us = card.settings[Key::wait_timeout_us];
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(limit_us);
    const std::int64_t stepped_deadline_us = card.stepped_now_us + limit_us;
    const auto running = [&] { return output.running && output.job == job; };
    while (running()) {
        if (card.stepped()) {
            if (!card.settings.on(Key::wait_blocks)) return Timeout;
            if (limit_us > 0 && card.stepped_now_us >= stepped_deadline_us) return Timeout;
            card.changed.wait(lock);
        } else if (limit_us == 0) {
            card.changed.wait(lock);
        } else if (card.changed.wait_until(lock, deadline) == std::cv_status::timeout && running()) {
            return Timeout;
        }
    }
    return output.job == job ? output.code : CalrtSuccess;
}

void was_waited_for(Card& card, Buffer& output) {
    if (output.state == abi_output_InFlight && output.partner) buffer_moves(*output.partner, abi_input_on_retire);
    buffer_moves(output, abi_output_on_wait);
    output.partner = nullptr;
    const auto is_it = [&](const auto& other) { return other.get() == &output; };
    card.in_flight.erase(std::remove_if(card.in_flight.begin(), card.in_flight.end(), is_it), card.in_flight.end());
}

ReturnCode reset_device(Card& card, Lock& lock, const Fault& fault) {
    if (fault.action == Action::fail) return SoftResetFailed;
    if (fault.action == Action::ignore) return CalrtSuccess;
    if (card.broken && !card.lied && !card.settings.on(Key::reset_is_honest)) {
        card.lied = true;
        return CalrtSuccess;
    }
    ++card.frozen;
    card.idle.wait(lock, [&] { return !card.moving; });
    --card.frozen;
    ++card.generation;
    card.stop_jobs();
    card.broken = card.lied = false;
    if (card.settings.on(Key::reset_clears_kv)) card.kv.sequences.clear();
    card.idle.notify_all();
    return CalrtSuccess;
}

void reset_runtime(Card& card, CallKind kind) {
    orphan_all(card);
    if (kind == CallKind::reset_ccu) {
        device_moves(card, abi_device_on_reset_ccu);
        return;
    }
    device_moves(card, kind == CallKind::reset ? abi_device_on_reset : abi_device_on_reset_configuration);
    forget_configuration(card);
}

void close_card(Card& card) {
    if (!card.jobs.empty() && !card.settings.on(Key::mutant_forget_live_range)) {
        card.violation(ViolationKind::destroyed, card.jobs.begin()->first, "VirtualDevice closed with jobs in flight");
    }
    device_moves(card, abi_device_on_close);
    orphan_all(card);
    forget_configuration(card);
    ++card.generation;
    card.kv.sequences.clear();
    card.open_handle = 0;
}

}  // namespace calrt::sim
