/* The C ABI over CalRT: what ctypes, the legacy baseline's harness and the embedding library call.
 *
 * Every function returns an int: CalRT's own return code, raw, or one of the shim's codes (SHIM_CODES of
 * machines/errors.py, all below -770000). No C++ exception leaves this library and no function aborts. Handles are
 * numbers, never pointers: one that was released, or is of another kind, is answered with ShimBadHandle. Releasing a
 * handle while another thread is inside a call on it is safe: the object lives until that call returns.
 * A failing call leaves its out-parameters untouched. Thread-safe. */
#ifndef CALRT_C_H
#define CALRT_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CALRT_C_API __attribute__((visibility("default")))
#else
#define CALRT_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t calrt_c_handle; /* 0 is never a handle */

enum { CALRT_C_NAME_BYTES = 256, CALRT_C_MAX_RANK = 8 };

typedef struct {
    char name[CALRT_C_NAME_BYTES];
    uint32_t tensors, csrs, logits_tile_d0, max_batch, max_seq;
} calrt_c_model;

typedef struct {
    char name[CALRT_C_NAME_BYTES];
    uint64_t shape[CALRT_C_MAX_RANK];
    uint32_t rank;
    int32_t dtype; /* PrimitiveType */
    uint64_t byte_size;
    int32_t sliceable, is_output;
} calrt_c_tensor;

/* Around CalRT's Wait(), on CLOCK_MONOTONIC. */
typedef struct {
    int64_t begin_ns, end_ns;
} calrt_c_stamps;

/* -- the library -- */
CALRT_C_API int calrt_c_version(char *text, size_t bytes);
/* The text of this thread's last shim code, or of the exception that was caught. Always ends in 0; never fails. */
CALRT_C_API int calrt_c_last_error(char *text, size_t bytes);
CALRT_C_API int calrt_c_enforces_call_order(int *yes); /* true in debug builds */

/* -- calbin -- */
CALRT_C_API int calrt_c_calbin_load(const char *path, calrt_c_handle *calbin);
CALRT_C_API int calrt_c_calbin_models(calrt_c_handle calbin, uint32_t *count);
CALRT_C_API int calrt_c_calbin_model(calrt_c_handle calbin, uint32_t model, calrt_c_model *out);
CALRT_C_API int calrt_c_calbin_tensor(calrt_c_handle calbin, uint32_t model, uint32_t tensor, calrt_c_tensor *out);
CALRT_C_API int calrt_c_calbin_csr(calrt_c_handle calbin, uint32_t model, uint32_t csr, char *name, size_t bytes);
CALRT_C_API int calrt_c_calbin_release(calrt_c_handle calbin);

/* -- device -- */
CALRT_C_API int calrt_c_device_open(uint32_t index, calrt_c_handle *device);
CALRT_C_API int calrt_c_device_configure(calrt_c_handle device, calrt_c_handle calbin);
CALRT_C_API int calrt_c_device_enable_parallel_mode(calrt_c_handle device, int on);
CALRT_C_API int calrt_c_device_reset_ccu(calrt_c_handle device);
CALRT_C_API int calrt_c_device_reset_configuration(calrt_c_handle device);
CALRT_C_API int calrt_c_device_reset(calrt_c_handle device);
CALRT_C_API int calrt_c_device_memory_used(calrt_c_handle device, uint64_t *bytes);
CALRT_C_API int calrt_c_device_close(calrt_c_handle device);

/* -- KV -- */
CALRT_C_API int calrt_c_kv_create(calrt_c_handle device, calrt_c_handle *kv);
CALRT_C_API int calrt_c_kv_apply(calrt_c_handle kv, int32_t sequence, uint32_t length, int *granted);
CALRT_C_API int calrt_c_kv_can_allocate(calrt_c_handle kv, uint32_t units, int *can);
CALRT_C_API int calrt_c_kv_tokens_per_unit(calrt_c_handle kv, uint32_t *tokens);
CALRT_C_API int calrt_c_kv_units_total(calrt_c_handle kv, uint32_t *units);
CALRT_C_API int calrt_c_kv_release(calrt_c_handle kv);

/* -- input buffer -- */
CALRT_C_API int calrt_c_input_create(calrt_c_handle device, calrt_c_handle calbin, uint32_t model, calrt_c_handle *input);
CALRT_C_API int calrt_c_input_map_buf(calrt_c_handle input, const char *tensor, void *host, uint64_t bytes);
CALRT_C_API int calrt_c_input_slice_tensor(calrt_c_handle input, const char *tensor, uint64_t offset, uint64_t size);
CALRT_C_API int calrt_c_input_undo_slice(calrt_c_handle input, const char *tensor);
CALRT_C_API int calrt_c_input_set_csr(calrt_c_handle input, const char *name, int64_t value);
CALRT_C_API int calrt_c_input_bind_sequence(calrt_c_handle input, int32_t sequence);
CALRT_C_API int calrt_c_input_release(calrt_c_handle input);

/* -- output buffer -- */
CALRT_C_API int calrt_c_output_create(calrt_c_handle device, calrt_c_handle calbin, uint32_t model,
                                      calrt_c_handle *output);
CALRT_C_API int calrt_c_output_map_buf(calrt_c_handle output, const char *tensor, void *host, uint64_t bytes);
CALRT_C_API int calrt_c_output_slice_tensor(calrt_c_handle output, const char *tensor, uint64_t offset, uint64_t size);
CALRT_C_API int calrt_c_output_undo_slice(calrt_c_handle output, const char *tensor);
CALRT_C_API int calrt_c_output_wait(calrt_c_handle output, calrt_c_stamps *stamps); /* stamps: filled on every return
                                                                                      that reached CalRT; may be NULL */
CALRT_C_API int calrt_c_output_get_status(calrt_c_handle output, int *status);
CALRT_C_API int calrt_c_output_tensor_size(calrt_c_handle output, const char *tensor, uint64_t *bytes);
CALRT_C_API int calrt_c_output_release(calrt_c_handle output);

/* -- submit -- */
CALRT_C_API int calrt_c_infer(calrt_c_handle device, calrt_c_handle calbin, uint32_t model, calrt_c_handle input,
                              calrt_c_handle output);
CALRT_C_API int calrt_c_infer_with_fixed_task_type(calrt_c_handle device, calrt_c_handle calbin, uint32_t model,
                                                   calrt_c_handle input, calrt_c_handle output, int task);

/* -- logits (ours, no CalRT call): one pass BF16 -> FP32 with the finite check (§10.1) --
 * Converts source[base .. base + count) into target[0 .. count). All `count` values are converted in any case, bit
 * exact. Returns 0; ShimOutOfRange when the range leaves source or target (nothing is written; bounds never
 * overflow); ShimNotFinite when a value is NaN or infinite, *first_bad then being its index within the range. */
CALRT_C_API int calrt_c_logits(const uint16_t *source, uint64_t source_elements, uint64_t base, uint64_t count,
                               float *target, uint64_t target_elements, uint64_t *first_bad);

#ifdef __cplusplus
}
#endif
#endif
