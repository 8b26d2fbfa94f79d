/* The simulator's own control panel: what a test does to the device behind CalRT's back, and what it may ask it.
 *
 * None of this is CalRT. A device is its number (0..63); it exists from the first mention on and lives as long as the
 * process, whatever handles come and go: it is the card, not the driver. Every function returns 0, or -1 with a
 * sentence in calrtsim_last_error() (unknown key, value out of range). Thread-safe. */
#ifndef CALRT_SIM_H
#define CALRT_SIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CALRTSIM_API __attribute__((visibility("default")))
#else
#define CALRTSIM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Power cycle: drops all jobs, KV, faults, trace and violations and sets every key to its default. Refused (-1) while
 * an open VirtualDevice handle exists. */
CALRTSIM_API int calrtsim_power_cycle(uint32_t device);

/* Settings. Keys are listed by calrtsim_key(i, ...), with default, range and one sentence; i counts from 0, -1 ends. */
typedef struct {
    char name[48];
    char about[160];
    int64_t default_value, minimum, maximum;
} calrtsim_key_info;
CALRTSIM_API int calrtsim_key(uint32_t i, calrtsim_key_info *out);
CALRTSIM_API int calrtsim_set(uint32_t device, const char *key, int64_t value);
CALRTSIM_API int calrtsim_get(uint32_t device, const char *key, int64_t *value);

/* Truth: what the device knows. Names: now_us, broken, jobs_running, jobs_started, jobs_completed, busy_us (time with
 * a job on the compute unit), idle_gap_us (time without one while a submitted job waited), buffers_created,
 * buffers_alive, memory_used, kv_units_free, events_pending, next_event_us (-1: none), traffic_bytes. */
CALRTSIM_API int calrtsim_truth(uint32_t device, const char *name, int64_t *value);
CALRTSIM_API int calrtsim_kv(uint32_t device, int32_t sequence, int64_t *length, uint64_t *digest); /* -1: none held */

/* The stepped clock (key "clock" = 1): nothing moves but by these. step: to the next event, *moved = 0 if there is
 * none. advance: `us` microseconds, with all events on the way. */
CALRTSIM_API int calrtsim_step(uint32_t device, int *moved);
CALRTSIM_API int calrtsim_advance(uint32_t device, int64_t us);

/* Fault plan. At the nth (from 1) coming call of `call` the `action` happens; calls are those of the ABI trace.
 * Actions and their arguments a, b are listed by calrtsim_action(i, ...). calrtsim_fault_seed adds random faults:
 * `per_million` of the calls of infer, wait, apply, can_allocate and the resets, chosen by `seed`. */
typedef struct {
    char name[32];
    char calls[96]; /* the calls it may be planned for, separated by spaces */
    char about[160];
} calrtsim_action_info;
CALRTSIM_API int calrtsim_action(uint32_t i, calrtsim_action_info *out);
CALRTSIM_API int calrtsim_fault(uint32_t device, const char *call, int64_t nth, const char *action, int64_t a, int64_t b);
CALRTSIM_API int calrtsim_fault_seed(uint32_t device, uint64_t seed, int64_t per_million);
CALRTSIM_API int calrtsim_faults_clear(uint32_t device);
CALRTSIM_API int calrtsim_faults_fired(uint32_t device, int64_t *count);

/* The ABI trace: every call, in the order in which the device saw them. Kept up to key "trace_limit" records (the
 * oldest go first); *total counts all. Reads records [from, from + capacity) by their number. */
typedef struct {
    int64_t number, thread, begin_us, end_us; /* thread: the kernel's id; end_us -1: not returned yet */
    uint64_t handle, other;                   /* handle: its object; other: a second object (infer: the output) */
    int64_t a, b;                             /* the numeric arguments */
    int64_t result;                           /* return code, or the bool */
    char call[24];
    char text[64]; /* the name argument, cut */
    int64_t begin_ns, end_ns; /* the host's monotonic clock, whatever the device's clock does; -1 as above */
} calrtsim_call;
CALRTSIM_API int calrtsim_trace(uint32_t device, int64_t from, uint32_t capacity, calrtsim_call *out, uint32_t *read,
                                int64_t *total);

/* Violations: what the host did to live memory, or against the order of calls. Kinds are listed by
 * calrtsim_violation_kind(i, ...). Bounded like the trace; *total counts all. */
typedef struct {
    int64_t number, at_us;
    uint64_t job;
    char kind[32];
    char text[192];
} calrtsim_violation;
CALRTSIM_API int calrtsim_violation_kind(uint32_t i, char *name, size_t bytes);
CALRTSIM_API int calrtsim_violations(uint32_t device, int64_t from, uint32_t capacity, calrtsim_violation *out,
                                     uint32_t *read, int64_t *total);

/* Jobs that have ended by themselves, in that order (those that a reset killed are not here). begin_us: when it went
 * onto its engine; end_us: when it had planned to end; told_us: when Wait() could know, which is later by what the
 * simulator itself is late (with the real clock). Bounded by "trace_limit", too; *total counts all. */
typedef struct {
    int64_t number;
    uint64_t job;
    int64_t begin_us, end_us, told_us;
} calrtsim_job;
CALRTSIM_API int calrtsim_jobs(uint32_t device, int64_t from, uint32_t capacity, calrtsim_job *out, uint32_t *read,
                               int64_t *total);

CALRTSIM_API const char *calrtsim_last_error(void); /* of this thread; never NULL */

#ifdef __cplusplus
}
#endif
#endif
