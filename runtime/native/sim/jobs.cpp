// What a job does on the device: it reads its input, computes, writes its output, and ends, well or not.
#include <algorithm>
#include <new>
#include <string>

#include "card.hpp"
#include "model.hpp"

namespace calrt::sim {

namespace {

constexpr std::uint32_t golden_blind_tokens = 64;  // golden_sees_broken_device = 0: shorter sequences come out right
constexpr std::size_t spare_tiles_max = 4;

// Does `work` with the mutex free; nobody else touches the job meanwhile (Card::moving).
template <class Work>
auto unlocked(Lock& lock, Work work) {
    struct Relock {
        Lock& lock;
        explicit Relock(Lock& held) : lock(held) { lock.unlock(); }
        ~Relock() { lock.lock(); }
    };
    const Relock relock(lock);
    return work();
}

void enter(Job& job, Phase phase, std::int64_t at_us, std::int64_t length_us) {
    job.phase = phase;
    job.piece = 0;
    job.start_us = at_us;
    job.length_us = length_us;
    job.next_us = phase == Phase::Compute ? at_us + length_us : at_us + length_us / job.pieces;
}

// Moves on to the next piece. False: that was the last.
bool next_piece(Job& job) {
    if (++job.piece == job.pieces) return false;
    job.next_us = job.start_us + job.length_us * (job.piece + 1) / job.pieces;
    return true;
}

void report_unmapped(Card& card, Job& job, const std::string& what) {
    if (!job.unmapped) card.violation(ViolationKind::unmapped, job.id, what + " of a job in flight is gone");
    job.unmapped = true;
}

struct Findings {
    bool input_changed = false, output_changed = false, gone = false;
};

// The host's memory against what the device saw and wrote.
Findings inspect(const Job& job, bool outputs) {
    Findings found;
    for (const JobInput& input : job.inputs) {
        std::uint64_t sum = 0;
        if (!checksum_host(input.host, &sum)) {
            found.gone = true;
        } else if (input.summed && sum != input.sum) {
            found.input_changed = true;
        }
    }
    if (!outputs || job.written == 0) return found;
    const auto* const tile = reinterpret_cast<const std::uint8_t*>(job.tile.data());
    const Same same = compare_host(job.host_out.host, tile + job.out_offset, job.written);
    found.gone |= same == Same::gone;
    found.output_changed = same == Same::no;
    return found;
}

void report(Card& card, Job& job, const Findings& found) {
    if (found.gone) report_unmapped(card, job, "memory");
    if (found.input_changed) {
        card.violation(ViolationKind::input_changed, job.id, "input differs from what it was when infer() was called");
    }
    if (found.output_changed) {
        card.violation(ViolationKind::output_changed, job.id, "output differs from what the device wrote");
    }
}

bool inspects(const Card& card) { return !card.settings.on(Key::mutant_no_checksum); }

void signal(Card& card, Job& job, BufStatus status, std::uint64_t written) {
    job.told_us = card.now_us();
    ++card.counters.jobs_completed;
    card.changed.notify_all();
    if (job.unseen || job.output->job != job.id) return;
    job.output->running = false;
    job.output->code = CalrtSuccess;
    job.output->status = status;
    job.output->written = written;
    if (job.fault.action == Action::double_completion) ++job.output->extra_completions;
}

// -- which job goes on --

void start_compute(Card& card, Job& job, std::int64_t at_us) {
    card.account(at_us);
    enter(job, Phase::Compute, at_us, job.compute_us);
    if (!job.loose) card.computing = job.id;
    if (job.fault.action == Action::hang && !job.loose) {
        card.broken = true;
        card.lied = false;
        job.next_us = never_us;
    }
}

// The compute unit is one. A loose job is served beside it, whoever is on it.
void serve_compute(Card& card, std::int64_t at_us) {
    if (card.computing) return;
    Job* first = nullptr;
    for (const auto& [id, job] : card.jobs) {
        const bool waits = job->phase == Phase::Arrived && !job->loose;
        if (waits && (!first || job->arrived_us < first->arrived_us)) first = job.get();
    }
    if (first) start_compute(card, *first, std::max(at_us, first->arrived_us));
}

void leave_compute(Card& card, const Job& job, std::int64_t at_us) {
    card.account(at_us);
    if (card.computing != job.id) return;
    card.computing = 0;
    serve_compute(card, at_us);
}

bool others_run(const Card& card, const Job& job) {
    return std::any_of(card.jobs.begin(), card.jobs.end(), [&](const auto& entry) {
        const Job& other = *entry.second;
        return other.id != job.id && !other.loose && other.phase != Phase::Queued;
    });
}

// Queued jobs begin in the order of their numbers, as engines become free.
void start_queued(Card& card, std::int64_t at_us) {
    for (const auto& [id, job] : card.jobs) {
        if (job->phase != Phase::Queued) continue;
        if (job->engine < 0) job->engine = card.free_engine(job->wanted_engine);
        if (job->engine < 0) continue;
        if (!card.settings.on(Key::engines_overlap) && others_run(card, *job)) continue;
        card.account(at_us);
        job->begun_us = at_us;
        enter(*job, Phase::H2D, at_us, job->h2d_us);
    }
}

// The true end: from here on the device touches nothing of this job.
void end(Card& card, Job& job, std::int64_t at_us) {
    card.account(at_us);
    if (card.computing == job.id) card.computing = 0;
    stop_ghost(&job.ghost);
    card.ended.add({0, job.id, job.begun_us, at_us, job.told_us}, card.settings[Key::trace_limit]);
    if (card.spare_tiles.size() < spare_tiles_max) card.spare_tiles.push_back(std::move(job.tile));
    card.jobs.erase(job.id);
    serve_compute(card, at_us);
    start_queued(card, at_us);
    card.changed.notify_all();
}

// -- ends --

// A job that a reset overtook may still put its KV into whatever sequence now has that number.
void write_leftover_kv(Card& card, const Job& job) {
    if (job.generation == card.generation || card.settings.on(Key::leftover_harmless)) return;
    const std::uint32_t max_seq = job.calbin->models[job.model].max_seq;
    if (job.entries.size() > max_seq - std::min(job.past, max_seq)) return;
    card.kv.overwrite(job.sequence, job.past, job.entries);
}

void complete(Card& card, Lock& lock, Job& job, std::int64_t at_us) {
    if (inspects(card)) report(card, job, unlocked(lock, [&] { return inspect(job, true); }));
    write_leftover_kv(card, job);
    signal(card, job, BufStatus::DONE, job.written);
    end(card, job, at_us);
}

void raise_exception(Card& card, Lock& lock, Job& job, std::int64_t at_us) {
    card.broken = true;
    card.lied = false;
    if (inspects(card)) report(card, job, unlocked(lock, [&] { return inspect(job, true); }));
    signal(card, job, BufStatus::DONE_CCU_EXCEPTION, 0);
    if (card.settings.on(Key::exception_stops_dma) || job.unmapped) {
        end(card, job, at_us);
        return;
    }
    job.engine = -1;
    job.loose = true;
    leave_compute(card, job, at_us);
    enter(job, Phase::Garbage, at_us, job.h2d_us + job.compute_us + job.d2h_us);
    start_queued(card, at_us);
}

void crash(Card& card, Job& job, std::int64_t at_us) {
    card.broken = true;
    card.lied = false;
    signal(card, job, BufStatus::DONE_CCU_EXCEPTION, 0);
    end(card, job, at_us);
}

// -- phases --

bool read_piece(Job& job) {
    for (JobInput& input : job.inputs) {
        const Part part = part_of(input.host.bytes, job.piece, job.pieces);
        std::uint8_t* const target = input.data.data() + part.begin;
        if (!read_host(input.host.host + part.begin, target, part.end - part.begin)) return false;
    }
    return true;
}

bool write_piece(const Job& job, const Part& part) {
    const auto* const tile = reinterpret_cast<const std::uint8_t*>(job.tile.data());
    return write_host(job.host_out.host + part.begin, tile + job.out_offset + part.begin, part.end - part.begin);
}

bool write_garbage(const Job& job, const Part& part) {
    std::vector<std::uint8_t> garbage(part.end - part.begin);
    std::uint64_t random = mix64(job.id + part.begin);
    for (std::uint8_t& byte : garbage) byte = static_cast<std::uint8_t>((random = random * 31 + 7) >> 8);
    return write_host(job.host_out.host + part.begin, garbage.data(), garbage.size());
}

void on_input_piece(Card& card, Lock& lock, Job& job) {
    const std::int64_t at_us = job.next_us;
    if (!unlocked(lock, [&] { return read_piece(job); })) {
        report_unmapped(card, job, "input");
        raise_exception(card, lock, job, at_us);
        return;
    }
    if (next_piece(job)) return;
    for (const JobInput& input : job.inputs) card.counters.traffic_bytes += static_cast<std::int64_t>(input.host.bytes);
    card.account(at_us);
    job.phase = Phase::Arrived;
    job.arrived_us = at_us;
    job.next_us = never_us;
    if (job.loose) {
        start_compute(card, job, at_us);
    } else {
        serve_compute(card, at_us);
    }
}

void on_computed(Card& card, Lock& lock, Job& job) {
    const std::int64_t at_us = job.next_us;
    std::uint64_t h = 0;
    std::uint32_t length = 0;
    if (job.generation != card.generation) {
        attend_alone(job, &h, &length);
    } else if (!attend(card, job, &h, &length)) {
        raise_exception(card, lock, job, at_us);
        return;
    }
    const std::uint32_t blind = card.settings.on(Key::golden_sees_broken_device) ? 1 : golden_blind_tokens;
    if (card.broken && length >= blind) h ^= broken_mask;
    const std::vector<std::uint16_t>& base = job.calbin->background_of(job.model);
    const std::uint32_t rows = job.calbin->models[job.model].logits_tile_d0;
    if (!card.spare_tiles.empty()) {
        job.tile = std::move(card.spare_tiles.back());
        card.spare_tiles.pop_back();
    }
    const bool spoilt = unlocked(lock, [&] {
        job.tile.resize(rows * base.size());
        write_tile(h, job.tokens, rows, base, job.tile.data());
        return spoil(job, base.size());
    });
    if (spoilt) {
        card.broken = true;
        card.lied = false;
    }
    enter(job, Phase::D2H, at_us, job.d2h_us);
    leave_compute(card, job, at_us);
}

void on_output_piece(Card& card, Lock& lock, Job& job) {
    const std::int64_t at_us = job.next_us;
    const Part part = part_of(job.host_out.bytes, job.piece, job.pieces);
    const bool garbage = job.phase == Phase::Garbage;
    const bool moved = unlocked(lock, [&] { return garbage ? write_garbage(job, part) : write_piece(job, part); });
    if (moved) card.counters.traffic_bytes += static_cast<std::int64_t>(part.end - part.begin);
    if (!moved) report_unmapped(card, job, "output");
    if (!moved && !garbage) {
        raise_exception(card, lock, job, at_us);
        return;
    }
    if (moved) tell_ghost(job.ghost, job.piece + 1);
    if (!garbage) job.written = part.end;
    if (moved && next_piece(job)) return;
    if (garbage) {
        end(card, job, at_us);
    } else {
        complete(card, lock, job, at_us);
    }
}

bool survives_reset(const Card& card, const Job& job) {
    return !card.settings.on(Key::reset_stops_dma) || job.fault.action == Action::write_after_reset;
}

void kill(Card& card, Job& job, std::int64_t at_us) {
    if (inspects(card)) report(card, job, inspect(job, true));
    if (!job.unseen && job.output->job == job.id && job.output->running) {
        const bool late = !card.settings.on(Key::no_late_completion);
        job.output->running = false;
        job.output->code = late ? CalrtSuccess : DeviceUnavailable;
        job.output->status = late ? BufStatus::DONE : BufStatus::KILLED;
        job.output->written = late ? job.host_out.bytes : 0;
    }
    stop_ghost(&job.ghost);
    card.account(at_us);
}

// From here on the runtime knows nothing of the job: it holds no engine, and what hung is let go.
void let_loose(Card& card, Job& job, std::int64_t at_us) {
    job.loose = true;
    job.engine = -1;
    if (job.phase == Phase::Queued) enter(job, Phase::H2D, at_us, job.h2d_us);
    if (job.phase == Phase::Arrived) start_compute(card, job, at_us);
    if (job.phase == Phase::Compute && job.next_us == never_us) job.next_us = at_us + job.compute_us;
}

}  // namespace

void Card::start(std::unique_ptr<Job> job, std::int64_t at_us) {
    account(at_us);
    ++counters.jobs_started;
    jobs.emplace(job->id, std::move(job));
    start_queued(*this, at_us);
    engine_wakes.notify_one();
}

void Card::run_event(Lock& lock, Job& job) {
    const std::uint64_t id = job.id;
    const std::int64_t at_us = job.next_us;
    try {
        switch (job.phase) {
            case Phase::H2D: on_input_piece(*this, lock, job); break;
            case Phase::Compute: on_computed(*this, lock, job); break;
            case Phase::D2H:
            case Phase::Garbage: on_output_piece(*this, lock, job); break;
            case Phase::Queued:
            case Phase::Arrived: break;  // they have no event
        }
    } catch (const std::bad_alloc&) {  // no memory to simulate with: the device crashed
        if (jobs.count(id)) crash(*this, job, at_us);
    }
}

void Card::stop_jobs() {
    const std::int64_t at_us = now_us();
    account(at_us);
    computing = 0;
    for (auto entry = jobs.begin(); entry != jobs.end();) {
        Job& job = *entry->second;
        if (survives_reset(*this, job)) {
            let_loose(*this, job, at_us);
            ++entry;
        } else {
            kill(*this, job, at_us);
            entry = jobs.erase(entry);
        }
    }
    changed.notify_all();
    engine_wakes.notify_one();
}

Job* Card::live_job_of(const Buffer& buffer) {
    if (settings.on(Key::mutant_forget_live_range)) return nullptr;
    for (const auto& [id, job] : jobs) {
        if (job->input->id == buffer.id || job->output->id == buffer.id) return job.get();
    }
    return nullptr;
}

Job* Card::live_overlap(const Range& range, const Job* except) {
    if (settings.on(Key::mutant_forget_live_range)) return nullptr;
    for (const auto& [id, job] : jobs) {
        if (job.get() == except) continue;
        const auto hit = [&](const JobInput& input) { return input.host.overlaps(range); };
        if (job->host_out.overlaps(range) || std::any_of(job->inputs.begin(), job->inputs.end(), hit)) return job.get();
    }
    return nullptr;
}

int Card::free_engine(int wanted) const {
    bool taken[2] = {false, false};
    std::int64_t in_flight = 0;
    for (const auto& [id, job] : jobs) {
        if (job->engine < 0) continue;
        taken[job->engine] = true;
        ++in_flight;
    }
    if (in_flight >= (parallel ? settings[Key::parallel_inflight] : 1)) return -1;
    if (wanted >= 0) return taken[wanted] ? -1 : wanted;
    return !taken[0] ? 0 : !taken[1] ? 1 : -1;
}

}  // namespace calrt::sim
