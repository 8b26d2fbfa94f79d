#include "card.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace calrt::sim {

namespace {

constexpr std::uint64_t kv_bytes_per_token = 1024;
constexpr std::int64_t longest_nap_us = 3600000000;  // a far time would not fit into the clock's nanoseconds

// Cards are never destroyed: a thread may wait on one while the process leaves. Only their threads are ended.
std::array<Card*, cards_max>& cards() {
    static std::array<Card*, cards_max> all = [] {
        std::array<Card*, cards_max> made{};
        for (std::uint32_t i = 0; i < cards_max; ++i) made[i] = std::make_unique<Card>(i).release();
        return made;
    }();
    return all;
}

struct StopEnginesAtUnload {
    ~StopEnginesAtUnload() {
        for (Card* card : cards()) {
            if (card->engine_process != getpid()) continue;  // a forked child has the object, not the thread
            Lock lock(card->mutex);
            card->stop_engine(lock);
        }
    }
};

void engine_main(Card* card, std::uint64_t number) {
    Lock lock(card->mutex);
    while (card->engine_number == number) {
        const Job* const next = card->stepped() || card->frozen || card->moving ? nullptr : card->next_job();
        const std::int64_t now_us = card->now_us();
        if (!next) {
            card->engine_wakes.wait(lock);
        } else if (next->next_us > now_us) {
            const std::int64_t until_us = std::min(next->next_us, now_us + longest_nap_us);
            card->engine_wakes.wait_until(lock, card->power_on + std::chrono::microseconds(until_us));
        } else {
            card->run_next(lock, card->now_us());
        }
    }
}

}  // namespace

Card::Card(std::uint32_t index) : number(index) { fit_kv(); }

void Card::fit_kv() {
    kv.units = static_cast<std::uint32_t>(settings[Key::kv_units]);
    kv.block_tokens = static_cast<std::uint32_t>(settings[Key::kv_block_tokens]);
}

Card* Card::get(std::uint32_t index) {
    if (index >= cards_max) return nullptr;
    static const StopEnginesAtUnload stop;
    return cards()[index];
}

std::int64_t Card::now_us() const {
    if (stepped()) return stepped_now_us;
    const auto since = std::chrono::steady_clock::now() - power_on;
    return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

void Card::restart_clock() {
    power_on = std::chrono::steady_clock::now();
    stepped_now_us = counters.accounted_us = 0;
}

void Card::account(std::int64_t at_us) {
    const std::int64_t passed_us = at_us - counters.accounted_us;
    if (passed_us <= 0) return;
    counters.accounted_us = at_us;
    const bool waiting = std::any_of(jobs.begin(), jobs.end(), [](const auto& entry) {
        const Job& job = *entry.second;
        return !job.loose && job.phase <= Phase::Arrived;
    });
    if (computing) {
        counters.busy_us += passed_us;
    } else if (waiting) {
        counters.idle_gap_us += passed_us;
    }
}

void Card::violation(ViolationKind kind, std::uint64_t job, const std::string& text) {
    calrtsim_violation record{};
    record.at_us = now_us();
    record.job = job;
    copy_text(name_of(kind), record.kind);
    copy_text(text, record.text);
    violations.add(record, settings[Key::violation_limit]);
}

void Card::ensure_engine() {
    if (stepped() || engine.joinable()) return;
    engine = std::thread(engine_main, this, engine_number);
    engine_process = getpid();
}

void Card::stop_engine(Lock& lock) {
    if (!engine.joinable()) return;
    ++engine_number;
    engine_wakes.notify_all();
    std::thread ending = std::move(engine);
    lock.unlock();  // whoever opens the card now gets an engine with the new number
    ending.join();
    lock.lock();
}

Job* Card::next_job() {
    Job* next = nullptr;
    for (const auto& [id, job] : jobs) {
        if (job->next_us != never_us && (!next || job->next_us < next->next_us)) next = job.get();
    }
    return next;
}

bool Card::run_next(Lock& lock, std::int64_t limit_us) {
    idle.wait(lock, [&] { return !moving && frozen == 0; });
    Job* const job = next_job();
    if (!job || job->next_us > limit_us) return false;
    moving = true;
    stepped_now_us = std::max(stepped_now_us, job->next_us);
    run_event(lock, *job);  // the job may be gone after this
    moving = false;
    idle.notify_all();
    return true;
}

bool Card::power_cycle(Lock& lock) {
    if (open_handle) return false;
    ++frozen;
    idle.wait(lock, [&] { return !moving; });
    if (!open_handle) stop_engine(lock);
    --frozen;
    idle.notify_all();
    engine_wakes.notify_all();
    if (open_handle) return false;  // opened while we waited, with an engine
    for (const auto& [id, job] : jobs) {
        stop_ghost(&job->ghost);
        if (job->unseen || job->output->job != job->id) continue;
        job->output->running = false;
        job->output->code = DeviceUnavailable;
        job->output->status = BufStatus::KILLED;
    }
    ++epoch;
    ++configuration;
    ++generation;
    settings = Settings();
    faults = Faults();
    trace = {};
    violations = {};
    ended = {};
    counters = {};
    calbin = nullptr;
    parallel = broken = lied = false;
    kv = Kv();
    fit_kv();
    jobs.clear();
    last_job = computing = 0;
    spare_tiles.clear();
    restart_clock();
    changed.notify_all();
    return true;
}

std::uint64_t Card::memory_used() const {
    const std::uint64_t kv_bytes = std::uint64_t{kv.units_used()} * kv.block_tokens * kv_bytes_per_token;
    return (calbin ? calbin->payload_bytes : 0) + static_cast<std::uint64_t>(counters.buffer_bytes) + kv_bytes;
}

}  // namespace calrt::sim
