// The card: everything there is of one simulated device, as plain data under one mutex.
//
// Two parties meet here. The host side ("driver") knows handles, their call order and the present configuration. The
// device side knows jobs, KV and whether it is broken. A reset concerns both, and where it lies only the first: that is
// why each side counts generations of its own.
//
// Jobs move by events. An event is one job's next deed (a piece of DMA, the end of compute) at a planned time. With the
// real clock one engine thread sleeps until the next planned time; with the stepped clock whoever calls step or advance
// does the same. While a deed copies memory or computes, the mutex is free (`moving`): the host's threads then truly
// run beside the device.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "calbin.hpp"
#include "faults.hpp"
#include "ghost.hpp"
#include "kv.hpp"
#include "memory.hpp"
#include "settings.hpp"
#include "trace.hpp"

namespace calrt::sim {

using Lock = std::unique_lock<std::mutex>;

inline constexpr std::uint32_t cards_max = 64;
inline constexpr std::int64_t never_us = std::numeric_limits<std::int64_t>::max();
inline constexpr std::size_t jobs_max = 64;  // live at once, leftovers included; beyond it infer() is Busy

// One tensor of a buffer, as the host mapped and sliced it.
struct Mapping {
    bool mapped = false, sliced = false;
    Range host;
    std::uint64_t offset = 0, size = 0;  // elements
};

// A handle's state: CalrtInputBuf or CalrtOutputBuf. It lives as long as somebody waits on it or a job refers to it.
struct Buffer {
    std::uint64_t id = 0;
    bool is_output = false;
    std::uint64_t epoch = 0, configuration = 0;  // of the card, when it was made
    std::shared_ptr<const SimCalbin> calbin;
    std::size_t model = 0;
    int state = 0;  // abi_input_* or abi_output_*
    std::vector<Mapping> tensors;
    std::uint64_t device_bytes = 0;

    std::optional<std::int64_t> csr_cur, csr_total;  // input
    std::optional<KvSeqId> sequence;

    std::shared_ptr<Buffer> partner;  // output: the input that went with it
    std::uint64_t job = 0;            // output: the last job that infer() accepted
    bool running = false;
    ReturnCode code = CalrtSuccess;
    BufStatus status = BufStatus::IDLE;
    std::uint64_t written = 0;
    std::uint32_t extra_completions = 0;
};

enum class Phase { Queued, H2D, Arrived, Compute, D2H, Garbage };

struct JobInput {
    TensorRole role;
    Range host;
    std::uint64_t sum = 0;  // when infer() was called
    bool summed = false;
    std::vector<std::uint8_t> data;
};

struct Job {
    std::uint64_t id = 0;
    std::shared_ptr<Buffer> input, output;
    std::shared_ptr<const SimCalbin> calbin;
    std::size_t model = 0;
    KvSeqId sequence = 0;
    std::uint32_t tokens = 0;
    std::int64_t cur = 0, total = 0;  // CSRs
    Fault fault;

    int engine = -1;        // 0 Ping, 1 Pong, -1: has none (not yet, or no longer)
    int wanted_engine = -1;
    bool unseen = false;    // infer() returned an error: no handle hears of this job
    bool loose = false;     // runs on behind the runtime's back: over a reset, or after its exception was reported
    bool unmapped = false;  // reported already
    std::uint64_t generation = 0;  // of the device side

    std::vector<JobInput> inputs;
    Range host_out;                // what is written of the output
    std::uint64_t out_offset = 0;  // its place in the tile, bytes
    std::vector<std::uint16_t> tile;
    std::uint64_t written = 0;
    std::vector<std::uint64_t> entries;  // of KV, that this job made
    std::uint32_t past = 0;

    Phase phase = Phase::Queued;
    std::uint32_t piece = 0, pieces = 1;
    std::int64_t start_us = 0, length_us = 0, next_us = never_us;  // of the phase; its next event
    std::int64_t begun_us = 0, told_us = 0;  // for calrtsim_jobs
    std::int64_t arrived_us = 0, h2d_us = 0, compute_us = 0, d2h_us = 0;
    Ghost ghost;
};

struct Counters {
    std::int64_t jobs_started = 0, jobs_completed = 0, busy_us = 0, idle_gap_us = 0, accounted_us = 0;
    std::int64_t buffers_created = 0, buffers_alive = 0, buffer_bytes = 0, traffic_bytes = 0;
};

struct Card {
    explicit Card(std::uint32_t index);
    static Card* get(std::uint32_t index);  // nullptr: no such number

    const std::uint32_t number;
    std::mutex mutex;
    std::condition_variable engine_wakes, changed, idle;  // idle: no event is being handled
    std::thread engine;
    std::atomic<pid_t> engine_process{0};
    std::uint64_t engine_number = 0;  // of the thread that is the engine; one with another number is on its way out
    bool moving = false;       // somebody handles an event, perhaps with the mutex free
    std::uint32_t frozen = 0;  // no event begins (a reset is at work)

    std::uint64_t epoch = 0;  // power cycles
    Settings settings;
    Faults faults;
    BoundedLog<calrtsim_call> trace;
    BoundedLog<calrtsim_violation> violations;
    BoundedLog<calrtsim_job> ended;
    Counters counters;

    // host side
    std::uint64_t open_handle = 0;
    int device_state = 0;             // abi_device_*
    std::uint64_t configuration = 0;  // generation; buffers of another one are dead
    std::shared_ptr<const SimCalbin> calbin;
    bool parallel = false;
    std::vector<std::shared_ptr<Buffer>> in_flight;  // outputs: infer() succeeded, Wait() has not

    // device side
    std::uint64_t generation = 0;
    bool broken = false, lied = false;  // lied: a reset that did nothing has been told as success since it broke
    Kv kv;
    std::map<std::uint64_t, std::unique_ptr<Job>> jobs;
    std::uint64_t last_job = 0, computing = 0;  // ids, 0: none
    std::vector<std::vector<std::uint16_t>> spare_tiles;

    std::chrono::steady_clock::time_point power_on = std::chrono::steady_clock::now();
    std::int64_t stepped_now_us = 0;

    // -- card.cpp: clock, engine, records --
    bool stepped() const { return settings.on(Key::clock); }
    std::int64_t now_us() const;
    void restart_clock();  // at 0
    void account(std::int64_t at_us);  // busy and idle time up to then
    void violation(ViolationKind kind, std::uint64_t job, const std::string& text);
    void fit_kv();  // to the settings; only while no KV is held
    void ensure_engine();
    void stop_engine(Lock& lock);
    // The next event at or before `limit_us`, in the caller's thread. False: there is none.
    bool run_next(Lock& lock, std::int64_t limit_us);
    Job* next_job();
    bool power_cycle(Lock& lock);
    std::uint64_t memory_used() const;

    // -- jobs.cpp: what a job does --
    void start(std::unique_ptr<Job> job, std::int64_t at_us);
    void run_event(Lock& lock, Job& job);
    void stop_jobs();  // a reset's part; call while nothing is moving
    Job* live_job_of(const Buffer& buffer);
    Job* live_overlap(const Range& range, const Job* except);
    int free_engine(int wanted) const;  // -1: busy
};

// -- compute.cpp --
// KV and history of a job of this generation. False: a CCU exception.
bool attend(Card& card, Job& job, std::uint64_t* h, std::uint32_t* length);
// A job that a reset overtook has lost its history, and computes with what it brought.
void attend_alone(Job& job, std::uint64_t* h, std::uint32_t* length);
// What a planned fault does to the output. True: the output is invalid, which leaves the device broken.
bool spoil(Job& job, std::uint64_t vocabulary);

// -- submit.cpp --
// What infer() makes of the handles. code: what is wrong with them. job: null where not even a wrong job is possible.
struct Draft {
    ReturnCode code = CalrtSuccess;
    std::unique_ptr<Job> job;
};
Draft draft_job(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output);
ReturnCode submit(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output,
                  int wanted_engine, const Fault& fault, std::uint64_t* job_id);

// -- driver.cpp: the host side of the calls; all with the card's mutex held --
// Whether `event` is possible in the handle's state; if not, a call_order violation.
bool device_may(Card& card, int event);
bool buffer_may(Card& card, const Buffer& buffer, int event);
void device_moves(Card& card, int event);
void buffer_moves(Buffer& buffer, int event);
bool is_dead(const Card& card, const Buffer& buffer);
ReturnCode configure_card(Card& card, const std::shared_ptr<const SimCalbin>& calbin);
void went_into_flight(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output);
ReturnCode wait_for(Card& card, Lock& lock, const Buffer& output, std::uint32_t* extra_completions);
void was_waited_for(Card& card, Buffer& output);
// The device's part of a reset, and the runtime's (which follows a success, honest or not).
ReturnCode reset_device(Card& card, Lock& lock, const Fault& fault);
void reset_runtime(Card& card, CallKind kind);
void close_card(Card& card);

// -- buffers.cpp: the calls on one buffer --
std::shared_ptr<Buffer> make_buffer(Card& card, const Model& model, bool is_output, std::uint64_t id, ReturnCode* code);
ReturnCode map_buf(Card& card, Buffer& buffer, const std::string& tensor, void* host, std::uint64_t bytes);
ReturnCode slice_tensor(Card& card, Buffer& buffer, const std::string& tensor, std::uint64_t offset,
                        std::uint64_t size);
ReturnCode undo_slice(Card& card, Buffer& buffer, const std::string& tensor);
ReturnCode set_csr(Card& card, Buffer& buffer, const std::string& name, std::int64_t value);
ReturnCode bind_sequence(Card& card, Buffer& buffer, KvSeqId sequence);
ReturnCode tensor_size(Card& card, const Buffer& buffer, const std::string& tensor, std::uint64_t* bytes);
void destroy_buffer(Card& card, Buffer& buffer);

}  // namespace calrt::sim
