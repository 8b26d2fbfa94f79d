// The fault plan: what goes wrong at which call. A plan is a list, or a seed.
//
// A seeded decision is a hash of the seed, the call's name and how many calls of that name there were since the seed
// was set; no clock and no thread is in it, so one seed is one run.
#pragma once

#include <array>
#include <climits>
#include <cstdint>
#include <string>
#include <vector>

// The calls of the ABI trace, as they are named there.
#define CALRTSIM_CALLS(X)                                                                                              \
    X(open)                                                                                                            \
    X(configure)                                                                                                       \
    X(enable_parallel)                                                                                                 \
    X(infer)                                                                                                           \
    X(reset_ccu)                                                                                                       \
    X(reset_configuration)                                                                                             \
    X(reset)                                                                                                           \
    X(memory_used)                                                                                                     \
    X(close)                                                                                                           \
    X(create_kv)                                                                                                       \
    X(apply)                                                                                                           \
    X(can_allocate)                                                                                                    \
    X(tokens_per_unit)                                                                                                 \
    X(units_total)                                                                                                     \
    X(destroy_kv)                                                                                                      \
    X(create_input)                                                                                                    \
    X(create_output)                                                                                                   \
    X(map_buf)                                                                                                         \
    X(slice_tensor)                                                                                                    \
    X(undo_slice)                                                                                                      \
    X(set_csr)                                                                                                         \
    X(bind_sequence)                                                                                                   \
    X(wait)                                                                                                            \
    X(get_status)                                                                                                      \
    X(tensor_size)                                                                                                     \
    X(destroy)

// X(enumerator, name, calls ("*": all but close and the destroys), least and greatest a, about)
#define CALRTSIM_ACTIONS(X)                                                                                            \
    X(return_code, "return", "*", INT_MIN, INT_MAX,                                                                    \
      "returns a; b: -1 as the fact says, 0 nothing was done, 1 it was done all the same")                             \
    X(throw_exception, "throw", "*", 0, 2,                                                                             \
      "throws: a = 0 std::runtime_error, 1 std::bad_alloc, 2 an int; nothing is done")                                 \
    X(hang, "hang", "infer", 0, 0, "the job never leaves the compute unit")                                            \
    X(ccu_exception, "ccu_exception", "infer", 0, 0, "the job ends in a CCU exception")                                \
    X(nan, "nan", "infer", 0, index_max, "a NaN at index a of the last token's row")                                   \
    X(inf, "inf", "infer", 0, index_max, "an infinity at index a of the last token's row")                             \
    X(short_tensor, "short_tensor", "infer", 0, bytes_max, "the device writes, and TensorSize says, only a bytes")     \
    X(late, "late", "infer", 0, late_us_max, "the job takes a us longer")                                              \
    X(double_completion, "double", "infer", 0, 0,                                                                      \
      "completes twice: the handle's next Wait succeeds while its job runs")                                           \
    X(partial_kv, "partial_kv", "infer", 0, 0, "half of the KV entries are written; the job completes as if all were") \
    X(write_after_reset, "write_after_reset", "infer", 0, 0, "no reset stops this job")                                \
    X(timeout, "timeout", "wait", 0, 0, "returns Timeout at once; the job goes on")                                    \
    X(refuse, "refuse", "apply can_allocate", 0, 0, "returns false; nothing is done")                                  \
    X(fail, "fail", "reset_ccu reset_configuration reset", 0, 0, "returns SoftResetFailed; nothing is done")           \
    X(ignore, "ignore", "reset_ccu reset_configuration reset", 0, 0, "returns success; the device does nothing")

namespace calrt::sim {

// What an argument may be at most: a place in the largest vocabulary, the largest tensor, an hour.
inline constexpr std::int64_t index_max = (1 << 24) - 1, bytes_max = std::int64_t{1} << 40, late_us_max = 3600000000;

enum class CallKind : int {
#define X(name) name,
    CALRTSIM_CALLS(X)
#undef X
        count
};

enum class Action : int {
    none,
#define X(enumerator, ...) enumerator,
    CALRTSIM_ACTIONS(X)
#undef X
};

struct ActionInfo {
    Action action;
    const char *name, *calls;
    std::int64_t least_a, most_a;
    const char* about;
};

inline constexpr std::size_t call_count = static_cast<std::size_t>(CallKind::count);

const char* name_of(CallKind call);
const std::vector<ActionInfo>& actions();

struct Fault {
    Action action = Action::none;
    std::int64_t a = 0, b = 0;
};

class Faults {
  public:
    // False, with the reason in *why.
    bool plan(const std::string& call, std::int64_t nth, const std::string& action, std::int64_t a, std::int64_t b,
              std::string* why);
    bool seed(std::uint64_t seed, std::int64_t per_million, std::string* why);
    void clear();
    // Counts a call, and says what goes wrong at it.
    Fault next(CallKind call);

    std::int64_t fired = 0;

  private:
    struct Planned {
        CallKind call;
        std::int64_t at;  // the call's number, from 1
        Fault fault;
    };
    Fault seeded(CallKind call, std::int64_t number) const;

    std::vector<Planned> planned_;
    std::array<std::int64_t, call_count> calls_{}, calls_before_seed_{};
    std::uint64_t seed_ = 0;
    std::int64_t per_million_ = 0;
};

}  // namespace calrt::sim
