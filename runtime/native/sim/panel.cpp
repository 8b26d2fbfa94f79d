// calrt_sim.h: the control panel.
#include <algorithm>
#include <array>
#include <string>

#include "calrt_sim.h"
#include "card.hpp"
#include "model.hpp"

using namespace calrt::sim;

namespace {

thread_local std::array<char, 256> last_error{};

int refuse(const std::string& why) {
    const std::size_t length = std::min(why.size(), last_error.size() - 1);
    std::copy_n(why.data(), length, last_error.data());
    last_error[length] = 0;
    return -1;
}

// The last argument of each: what to do with the locked card. Returns what that returns.
template <class Body>
int with_card(std::uint32_t number, Body body) noexcept {
    try {
        Card* const card = Card::get(number);
        if (!card) return refuse("there is no device " + std::to_string(number) + "; they are 0..63");
        Lock lock(card->mutex);
        return body(*card, lock);
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

bool busy_with(const Card& card, const std::string& key) {
    if (key == "clock") return !card.jobs.empty();
    return (key == "kv_units" || key == "kv_block_tokens") && !card.kv.sequences.empty();
}

std::int64_t events_pending(const Card& card) {
    const auto has_event = [](const auto& entry) { return entry.second->next_us != never_us; };
    return std::count_if(card.jobs.begin(), card.jobs.end(), has_event);
}

std::int64_t next_event_us(Card& card) {
    const Job* const next = card.next_job();
    return next ? next->next_us : -1;
}

struct Truth {
    const char* name;
    std::int64_t (*value)(Card&);
};

const Truth truths[] = {
    {"now_us", [](Card& c) { return c.now_us(); }},
    {"broken", [](Card& c) { return std::int64_t{c.broken}; }},
    {"jobs_running", [](Card& c) { return static_cast<std::int64_t>(c.jobs.size()); }},
    {"jobs_started", [](Card& c) { return c.counters.jobs_started; }},
    {"jobs_completed", [](Card& c) { return c.counters.jobs_completed; }},
    {"busy_us", [](Card& c) { return c.counters.busy_us; }},
    {"idle_gap_us", [](Card& c) { return c.counters.idle_gap_us; }},
    {"buffers_created", [](Card& c) { return c.counters.buffers_created; }},
    {"buffers_alive", [](Card& c) { return c.counters.buffers_alive; }},
    {"memory_used", [](Card& c) { return static_cast<std::int64_t>(c.memory_used()); }},
    {"kv_units_free", [](Card& c) { return std::int64_t{c.kv.units_free()}; }},
    {"events_pending", [](Card& c) { return events_pending(c); }},
    {"next_event_us", [](Card& c) { return next_event_us(c); }},
    {"traffic_bytes", [](Card& c) { return c.counters.traffic_bytes; }},
};

int not_stepped() { return refuse("the clock is not stepped (key \"clock\" = 1)"); }

}  // namespace

extern "C" {

int calrtsim_power_cycle(std::uint32_t device) {
    return with_card(device, [](Card& card, Lock& lock) {
        return card.power_cycle(lock) ? 0 : refuse("a VirtualDevice handle is open");
    });
}

int calrtsim_key(std::uint32_t i, calrtsim_key_info* out) {
    if (i >= key_count || !out) return refuse("there is no such key");
    const KeyInfo& key = keys()[i];
    *out = {};
    copy_text(key.name, out->name);
    copy_text(key.about, out->about);
    out->default_value = key.default_value;
    out->minimum = key.minimum;
    out->maximum = key.maximum;
    return 0;
}

int calrtsim_set(std::uint32_t device, const char* key, std::int64_t value) {
    if (!key) return refuse("the key is null");
    return with_card(device, [&](Card& card, Lock&) {
        std::string why;
        if (busy_with(card, key)) return refuse(std::string(key) + " cannot be set while the device holds jobs or KV");
        card.account(card.now_us());
        if (!card.settings.set(key, value, &why)) return refuse(why);
        if (std::string(key) == "clock") card.restart_clock();
        if (card.kv.sequences.empty()) card.fit_kv();
        card.trace.keep(card.settings[Key::trace_limit]);
        card.ended.keep(card.settings[Key::trace_limit]);
        card.violations.keep(card.settings[Key::violation_limit]);
        card.changed.notify_all();
        card.engine_wakes.notify_one();
        return 0;
    });
}

int calrtsim_get(std::uint32_t device, const char* key, std::int64_t* value) {
    if (!key || !value) return refuse("the key or the place for its value is null");
    return with_card(device, [&](Card& card, Lock&) {
        std::string why;
        return card.settings.get(key, value, &why) ? 0 : refuse(why);
    });
}

int calrtsim_truth(std::uint32_t device, const char* name, std::int64_t* value) {
    if (!name || !value) return refuse("the name or the place for its value is null");
    return with_card(device, [&](Card& card, Lock&) {
        card.account(card.now_us());
        for (const Truth& truth : truths) {
            if (std::string(name) != truth.name) continue;
            *value = truth.value(card);
            return 0;
        }
        return refuse("no truth is called '" + std::string(name) + "'; calrt_sim.h lists them");
    });
}

int calrtsim_kv(std::uint32_t device, std::int32_t sequence, std::int64_t* length, std::uint64_t* digest) {
    if (!length || !digest) return refuse("the place for length or digest is null");
    return with_card(device, [&](Card& card, Lock&) {
        const auto found = card.kv.sequences.find(sequence);
        const bool held = found != card.kv.sequences.end();
        *length = held ? std::int64_t{card.kv.length(sequence)} : -1;
        *digest = held ? history(0, found->second.entries) : 0;
        return 0;
    });
}

int calrtsim_step(std::uint32_t device, int* moved) {
    return with_card(device, [&](Card& card, Lock& lock) {
        if (!card.stepped()) return not_stepped();
        const bool did = card.run_next(lock, never_us - 1);
        if (moved) *moved = did;
        card.changed.notify_all();
        return 0;
    });
}

int calrtsim_advance(std::uint32_t device, std::int64_t us) {
    return with_card(device, [&](Card& card, Lock& lock) {
        constexpr std::int64_t longest_us = std::int64_t{1} << 50, latest_us = std::int64_t{1} << 60;
        if (!card.stepped()) return not_stepped();
        if (us < 0 || us > longest_us) return refuse("us = " + std::to_string(us) + " is not within 0..2^50");
        if (card.stepped_now_us > latest_us - us) return refuse("the stepped clock ends at 2^60 us");
        const std::int64_t until_us = card.stepped_now_us + us;
        while (card.run_next(lock, until_us)) {
        }
        card.stepped_now_us = std::max(card.stepped_now_us, until_us);
        card.account(card.stepped_now_us);
        card.changed.notify_all();
        return 0;
    });
}

int calrtsim_action(std::uint32_t i, calrtsim_action_info* out) {
    if (i >= actions().size() || !out) return refuse("there is no such action");
    *out = {};
    copy_text(actions()[i].name, out->name);
    copy_text(actions()[i].calls, out->calls);
    copy_text(actions()[i].about, out->about);
    return 0;
}

int calrtsim_fault(std::uint32_t device, const char* call, std::int64_t nth, const char* action, std::int64_t a,
                   std::int64_t b) {
    if (!call || !action) return refuse("the call or the action is null");
    return with_card(device, [&](Card& card, Lock&) {
        std::string why;
        return card.faults.plan(call, nth, action, a, b, &why) ? 0 : refuse(why);
    });
}

int calrtsim_fault_seed(std::uint32_t device, std::uint64_t seed, std::int64_t per_million) {
    return with_card(device, [&](Card& card, Lock&) {
        std::string why;
        return card.faults.seed(seed, per_million, &why) ? 0 : refuse(why);
    });
}

int calrtsim_faults_clear(std::uint32_t device) {
    return with_card(device, [](Card& card, Lock&) {
        card.faults.clear();
        return 0;
    });
}

int calrtsim_faults_fired(std::uint32_t device, std::int64_t* count) {
    if (!count) return refuse("the place for the count is null");
    return with_card(device, [&](Card& card, Lock&) {
        *count = card.faults.fired;
        return 0;
    });
}

int calrtsim_trace(std::uint32_t device, std::int64_t from, std::uint32_t capacity, calrtsim_call* out,
                   std::uint32_t* read, std::int64_t* total) {
    if (!read || !total || (!out && capacity)) return refuse("the place for records, read or total is null");
    return with_card(device, [&](Card& card, Lock&) {
        *read = card.trace.read(from, capacity, out);
        *total = card.trace.total();
        return 0;
    });
}

int calrtsim_violation_kind(std::uint32_t i, char* name, std::size_t bytes) {
    if (i >= static_cast<std::uint32_t>(ViolationKind::count) || !name) return refuse("there is no such violation");
    const std::string text = name_of(static_cast<ViolationKind>(i));
    if (bytes <= text.size()) return refuse("the place for the name is too small");
    std::copy_n(text.c_str(), text.size() + 1, name);
    return 0;
}

int calrtsim_violations(std::uint32_t device, std::int64_t from, std::uint32_t capacity, calrtsim_violation* out,
                        std::uint32_t* read, std::int64_t* total) {
    if (!read || !total || (!out && capacity)) return refuse("the place for records, read or total is null");
    return with_card(device, [&](Card& card, Lock&) {
        *read = card.violations.read(from, capacity, out);
        *total = card.violations.total();
        return 0;
    });
}

int calrtsim_jobs(std::uint32_t device, std::int64_t from, std::uint32_t capacity, calrtsim_job* out,
                  std::uint32_t* read, std::int64_t* total) {
    if (!read || !total || (!out && capacity)) return refuse("the place for records, read or total is null");
    return with_card(device, [&](Card& card, Lock&) {
        *read = card.ended.read(from, capacity, out);
        *total = card.ended.total();
        return 0;
    });
}

const char* calrtsim_last_error(void) { return last_error.data(); }

}  // extern "C"
