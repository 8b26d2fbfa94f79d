// What a test may turn on a card: latencies, limits, vendor facts and mutants, as one table.
//
// A vendor fact (§14) is 1 where it holds, as on a well-behaved device; 0 is the bad behaviour. The facts come from the
// generated header, so that a fact of the rulebook without a switch here is impossible. A mutant switches one of the
// simulator's own checks off: the test that stands on that check must turn red under it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "calexec_tables.hpp"

// X(name, default, minimum, maximum, about)
#define CALRTSIM_KEYS(X)                                                                                               \
    X(clock, 0, 0, 1, "0: real time; 1: stepped, nothing moves but by step and advance")                               \
    X(wait_blocks, 1, 0, 1, "0: with the stepped clock Wait() never blocks; a running job answers Timeout at once")    \
    X(h2d_us, 0, 0, 60000000, "time in which a job reads its input")                                                   \
    X(prefill_us, 0, 0, 60000000, "compute time of a prefill, without its tokens")                                     \
    X(prefill_token_ns, 0, 0, 1000000000, "compute time of a prefill, for each token, in nanoseconds")                 \
    X(decode_us, 0, 0, 60000000, "compute time of a decode")                                                           \
    X(d2h_us, 0, 0, 60000000, "time in which a job writes its output")                                                 \
    X(jitter_permille, 0, 0, 1000, "each phase is longer or shorter by up to this, by jitter_seed and job")            \
    X(jitter_seed, 1, 0, INT64_MAX, "seed of the jitter")                                                              \
    X(pieces, 8, 1, 4096, "pieces in which a job's DMA moves")                                                         \
    X(wait_timeout_us, 0, 0, 3600000000, "the runtime's own limit of Wait(), then Timeout; 0: none")                   \
    X(kv_units, 1280, 1, 1048576, "blocks of KV on the card (set while no KV is held)")                                \
    X(kv_block_tokens, 128, 1, 65536, "tokens of one block (set while no KV is held)")                                 \
    X(parallel_inflight, 2, 1, 2, "jobs in flight in parallel mode")                                                   \
    X(engines_overlap, 1, 0, 1, "0: in parallel mode a job begins only when the one before has ended")                 \
    X(exception_keeps_kv, 1, 0, 1, "0: a job that ends in a CCU exception has written half of its KV entries")         \
    X(trace_limit, 65536, 0, 16777216, "records kept of the ABI trace, and of ended jobs; the oldest go first")        \
    X(violation_limit, 1024, 0, 1048576, "violations kept; the oldest go first")                                       \
    X(mutant_any_past_len, 0, 0, 1, "mutant: any past length is taken for the device's")                               \
    X(mutant_no_checksum, 0, 0, 1, "mutant: host memory is not compared")                                              \
    X(mutant_ignore_csr, 0, 0, 1, "mutant: the CSRs are not compared with slices and KV")                              \
    X(mutant_forget_live_range, 0, 0, 1, "mutant: nothing is known about ranges in flight")

namespace calrt::sim {

enum class Key : int {
#define X(name, ...) name,
    CALRTSIM_KEYS(X)
#undef X
#define X(name, about) name,
        CALEXEC_FACTS(X)
#undef X
            count
};

struct KeyInfo {
    const char* name;
    std::int64_t default_value, minimum, maximum;
    const char* about;
};

inline constexpr std::size_t key_count = static_cast<std::size_t>(Key::count);

const std::array<KeyInfo, key_count>& keys();

class Settings {
  public:
    Settings();
    std::int64_t operator[](Key key) const { return values_[static_cast<std::size_t>(key)]; }
    bool on(Key key) const { return (*this)[key] != 0; }
    // False, with the reason in *why, when there is no such key or the value is out of its range.
    bool set(const std::string& key, std::int64_t value, std::string* why);
    bool get(const std::string& key, std::int64_t* value, std::string* why) const;

  private:
    std::array<std::int64_t, key_count> values_;
};

}  // namespace calrt::sim
