/* The baseline: one call of the language model as the code before this product made it, with its costs (S01-S10).
 *
 * Apply before and after (S02), runtime buffers created for every call (S07) over the context's one set of host vectors
 * (S06), infer and Wait on the caller's thread, then a temporary FP32 vector of the whole output tensor out of which
 * the vocabulary's row is copied (S10). It exists to be compared with: its tokens must be ours, its time is the base of
 * every ratio. Written from the specification's description. Of its faults only the costs are kept: where it looped
 * for ever or aborted, a code is returned (S01-S05), and a submodel is found by its exact name (S08).
 *
 * Tensors and CSRs are taken in the calbin's order: tokens, positions; logits; cur_seq, total_seq.
 *
 * Every function returns 0, CalRT's own return code, a shim's code (calrt_c.h), or one of the two below; the call that
 * failed is in calrt_legacy_stage(). No exception leaves, nothing aborts. One thread at a time per context. */
#ifndef CALRT_LEGACY_H
#define CALRT_LEGACY_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CALRT_LEGACY_API __attribute__((visibility("default")))
#else
#define CALRT_LEGACY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CALRT_LEGACY_KV_REFUSED = -780001, /* Apply() said no, which has no reason and no code (§7) */
    CALRT_LEGACY_NOT_DONE = -780002    /* Wait() succeeded with a status other than DONE (§6.5) */
};

typedef struct calrt_legacy calrt_legacy;

/* Opens and configures `device` and creates its KV manager. NULL in *out after a failure. */
CALRT_LEGACY_API int calrt_legacy_open(uint32_t device, const char *calbin, const char *prefill, const char *decode,
                                       calrt_legacy **out);
CALRT_LEGACY_API int calrt_legacy_close(calrt_legacy *legacy); /* resets the device first if a job may still run */

/* logits: one row, `vocabulary` floats; `elements` is the room there. tokens: `count` >= 1 of them, after `past`. Once
 * infer, Wait or GetStatus failed the context answers only close: the device is in doubt, and is reset there. */
CALRT_LEGACY_API int calrt_legacy_vocabulary(calrt_legacy *legacy, uint64_t *vocabulary);
CALRT_LEGACY_API int calrt_legacy_prefill(calrt_legacy *legacy, int32_t sequence, const int32_t *tokens,
                                          uint32_t count, uint32_t past, float *logits, uint64_t elements);
CALRT_LEGACY_API int calrt_legacy_decode(calrt_legacy *legacy, int32_t sequence, int32_t token, uint32_t past,
                                         float *logits, uint64_t elements);
CALRT_LEGACY_API int calrt_legacy_forget(calrt_legacy *legacy, int32_t sequence); /* Apply(sequence, 0) */

/* The name of the step in which this thread's last call failed, and why if there is more to say. Never NULL. */
CALRT_LEGACY_API const char *calrt_legacy_stage(void);

/* For the benchmark. The old conversion (§10.1): all `elements` into a temporary, then `count` from `base` on copied.
 * And the plain loop that anyone would write, without a check. The caller vouches for the ranges. */
CALRT_LEGACY_API int calrt_legacy_convert(const uint16_t *source, uint64_t elements, uint64_t base, uint64_t count,
                                          float *target);
CALRT_LEGACY_API int calrt_legacy_plain_loop(const uint16_t *source, uint64_t base, uint64_t count, float *target);

/* For the benchmark's floor. Two threads hand a token to and fro over a mutex and a condition variable, `count` times
 * in all; each_ns[i]: from the notification to the other thread's going on. pause_us: the giver sleeps before each, so
 * that nothing is warm. */
CALRT_LEGACY_API int calrt_legacy_handoffs(uint32_t count, uint32_t pause_us, int64_t *each_ns);

#ifdef __cplusplus
}
#endif
#endif
