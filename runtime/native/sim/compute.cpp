// What the device computes: KV entries from the input, the history, and what a planned fault does to the result.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "card.hpp"
#include "model.hpp"

namespace calrt::sim {

namespace {

constexpr std::uint16_t bf16_nan = 0x7FC0, bf16_infinity = 0x7F80;
constexpr std::uint32_t tokens_max = std::numeric_limits<std::int32_t>::max();  // a position is 32 bits

std::int32_t s32(const JobInput& input, std::size_t i) {
    std::int32_t value = 0;
    std::memcpy(&value, input.data.data() + i * sizeof value, sizeof value);
    return value;
}

std::uint32_t token_at(const Job& job, const JobInput& input, std::size_t i) {
    if (input.role == TensorRole::tokens) return static_cast<std::uint32_t>(s32(input, i));
    const std::size_t row_bytes = input.data.size() / job.tokens;
    return embedding_token(input.data.data() + i * row_bytes, row_bytes);
}

// Fills job.entries. False: a position is not past + its index.
bool make_entries(Job& job) {
    const auto positions = std::find_if(job.inputs.begin(), job.inputs.end(),
                                        [](const JobInput& i) { return i.role == TensorRole::positions; });
    const JobInput& first = positions == job.inputs.begin() ? job.inputs[1] : job.inputs[0];
    bool right = true;
    job.entries.clear();
    for (std::size_t i = 0; i < job.tokens; ++i) {
        const std::int32_t position = s32(*positions, i);
        right &= position == static_cast<std::int64_t>(job.past + i);
        const std::uint32_t token = token_at(job, first, i);
        job.entries.push_back(kv_entry(job.calbin->seed, token, static_cast<std::uint32_t>(position)));
    }
    return right;
}

// What the CSRs say was there before this call; they may say anything. Beyond 64 bits it is the end of them.
std::int64_t past_of(const Job& job) {
    std::int64_t past = 0;
    if (!__builtin_sub_overflow(job.total, job.cur, &past)) return past;
    return job.cur < 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

// The CSRs against the slices and the card's own KV; sets job.past. False: a CCU exception.
bool lengths_fit(Card& card, Job& job) {
    const std::uint32_t length = card.kv.length(job.sequence), room = card.kv.room(job.sequence);
    std::int64_t past = past_of(job);
    if (card.settings.on(Key::mutant_ignore_csr)) {
        past = length;
    } else if (job.cur != job.tokens) {
        card.violation(ViolationKind::csr_mismatch, job.id,
                       "the CSR says " + std::to_string(job.cur) + " tokens, the slice has " +
                           std::to_string(job.tokens));
        return false;
    }
    if (past != length && !card.settings.on(Key::mutant_any_past_len)) {
        if (past == std::int64_t{length} + card.kv.unwritten(job.sequence)) return false;  // not the host's fault
        card.violation(ViolationKind::past_len_mismatch, job.id,
                       "the CSRs say a past of " + std::to_string(past) + ", sequence " + std::to_string(job.sequence) +
                           " has " + std::to_string(length));
        return false;
    }
    // A job that infer() refused for want of room and started all the same overruns it.
    const std::int64_t most = (job.unseen ? tokens_max : room) - std::int64_t{job.tokens};
    if (past < 0 || past > most) return false;
    job.past = static_cast<std::uint32_t>(past);
    return true;
}

}  // namespace

bool attend(Card& card, Job& job, std::uint64_t* h, std::uint32_t* length) {
    job.past = 0;
    const bool fits = lengths_fit(card, job);
    bool good = make_entries(job) && fits;
    good &= job.fault.action != Action::ccu_exception;
    const auto half = job.entries.begin() + static_cast<std::ptrdiff_t>(job.entries.size() / 2);
    if (good) {
        card.kv.overwrite(job.sequence, job.past, job.entries);
        *h = history(job.calbin->seed, card.kv.sequences[job.sequence].entries);
        *length = card.kv.length(job.sequence);
    }
    if (!good && (!fits || card.settings.on(Key::exception_keeps_kv))) return false;
    if (!good || job.fault.action == Action::partial_kv) {
        card.kv.overwrite(job.sequence, job.past, {job.entries.begin(), half});
        if (good) card.kv.sequences[job.sequence].unwritten = static_cast<std::uint32_t>(job.entries.end() - half);
    }
    return good;
}

void attend_alone(Job& job, std::uint64_t* h, std::uint32_t* length) {
    const std::int64_t most = std::int64_t{tokens_max} - job.tokens;
    job.past = static_cast<std::uint32_t>(std::clamp<std::int64_t>(past_of(job), 0, most));
    make_entries(job);
    *h = history(job.calbin->seed, job.entries);
    *length = job.past + job.tokens;
}

bool spoil(Job& job, std::uint64_t vocabulary) {
    const std::uint32_t rows = job.calbin->models[job.model].logits_tile_d0;
    const std::uint64_t row = (job.tokens - 1) % rows, a = static_cast<std::uint64_t>(job.fault.a);
    switch (job.fault.action) {
        case Action::nan: job.tile[row * vocabulary + a % vocabulary] = bf16_nan; return true;
        case Action::inf: job.tile[row * vocabulary + a % vocabulary] = bf16_infinity; return true;
        case Action::short_tensor: job.host_out.bytes = std::min(job.host_out.bytes, a); return true;
        default: return false;
    }
}

}  // namespace calrt::sim
