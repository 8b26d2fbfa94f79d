/* GENERATED from machines/ by `python -m runtime.tables`. Do not edit: a test compares. */
#ifndef CALEXEC_TABLES_HPP
#define CALEXEC_TABLES_HPP

/* Return codes (§8, machines/errors.py). A vendor's SDK brings its own calrt::ReturnCode. */
#ifndef CALEXEC_VENDOR_RETURN_CODES
namespace calrt {
enum ReturnCode : int {
    CalrtSuccess = 0,
    MemoryAllocationFailed = 1,
    AlreadyRegistered = 2,
    Undocumented3 = 3,
    IllegalValue = 4,
    IllegalConfiguration = 5,
    Undocumented6 = 6,
    AlreadyConfigured = 7,
    DriverIncompatible = 8,
    RuntimeTooOld = 9,
    FileNotFound = 10,
    FileUnreadable = 11,
    FileCorrupt = 12,
    Timeout = 13,
    OutOfRange = 14,
    Unexpected = 15,
    NotConfigured = 16,
    DeviceBusy = 17,
    DeviceUnavailable = 18,
    IllegalCalbin = 19,
    UnknownError = 20,
    WrongDataType = 21,
    WrongShape = 22,
    DependencyError = 23,
    MapBroken = 24,
    SoftResetFailed = 25,
    Undocumented26 = 26,
    Unsupported = 27,
    DeviceCrash = 28,
    WrongDirection = 29,
};
}

#endif

namespace calrt_c {
enum ShimCode : int {
    ShimException = -770001,
    ShimBadHandle = -770002,
    ShimBadArgument = -770003,
    ShimCallOrder = -770004,
    ShimNotFinite = -770005,
    ShimOutOfRange = -770006,
};
}

/* Vendor facts (§14, machines/protocol/params.py): X(name, what is true where it holds). */
#define CALEXEC_FACTS(X) \
    X(process_exit_stops_dma, "leaving the process stops the device's DMA") \
    X(submit_error_starts_nothing, "an infer() that returned an error has started nothing") \
    X(busy_starts_nothing, "an infer() that returned Busy has started nothing (FI05)") \
    X(exception_stops_dma, "after a CCU exception the job's DMA has stopped") \
    X(reset_stops_dma, "a successful reset stops the DMA of running jobs") \
    X(reset_clears_kv, "a successful reset empties the device's KV") \
    X(reset_is_honest, "a reset that returns success has reset the device") \
    X(leftover_harmless, "a job left running over a reset cannot write the new generation's KV") \
    X(golden_sees_broken_device, "the golden run fails on a broken device") \
    X(no_late_completion, "Wait() on a job that a reset killed never returns success")

/* Call order (machines/abi.py): next[state][event], -1 where the call is impossible. State 0: no handle. */
enum { abi_device_Closed = 0, abi_device_Open = 1, abi_device_Configured = 2, abi_device_states = 3 };
enum { abi_device_on_open = 0, abi_device_on_configure = 1, abi_device_on_enable_parallel = 2, abi_device_on_infer = 3, abi_device_on_reset_ccu = 4, abi_device_on_reset_configuration = 5, abi_device_on_reset = 6, abi_device_on_close = 7, abi_device_events = 8 };
static const char *const abi_device_state_names[] = {"Closed", "Open", "Configured"};
static const char *const abi_device_event_names[] = {"open", "configure", "enable_parallel", "infer", "reset_ccu", "reset_configuration", "reset", "close"};
static const signed char abi_device_next[3][8] = {
    {1, -1, -1, -1, -1, -1, -1, -1}, /* Closed */
    {-1, 2, 1, -1, 1, 1, 1, 0}, /* Open */
    {-1, -1, 2, 2, 2, 1, 1, 0}, /* Configured */
};

enum { abi_input_Absent = 0, abi_input_Empty = 1, abi_input_Mapped = 2, abi_input_Sliced = 3, abi_input_Programmed = 4, abi_input_InFlight = 5, abi_input_Retired = 6, abi_input_Orphaned = 7, abi_input_states = 8 };
enum { abi_input_on_create = 0, abi_input_on_map_buf = 1, abi_input_on_slice_tensor = 2, abi_input_on_set_csr = 3, abi_input_on_bind_sequence = 4, abi_input_on_infer = 5, abi_input_on_retire = 6, abi_input_on_orphan = 7, abi_input_on_undo_slice = 8, abi_input_on_destroy = 9, abi_input_events = 10 };
static const char *const abi_input_state_names[] = {"Absent", "Empty", "Mapped", "Sliced", "Programmed", "InFlight", "Retired", "Orphaned"};
static const char *const abi_input_event_names[] = {"create", "map_buf", "slice_tensor", "set_csr", "bind_sequence", "infer", "retire", "orphan", "undo_slice", "destroy"};
static const signed char abi_input_next[8][10] = {
    {1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, /* Absent */
    {-1, 2, -1, -1, -1, -1, -1, -1, -1, 0}, /* Empty */
    {-1, 2, 3, 4, 2, -1, -1, -1, 2, 0}, /* Mapped */
    {-1, -1, 3, 4, 3, -1, -1, -1, 2, 0}, /* Sliced */
    {-1, -1, -1, 4, 4, 5, -1, -1, 2, 0}, /* Programmed */
    {-1, -1, -1, -1, -1, -1, 6, 7, -1, -1}, /* InFlight */
    {-1, -1, 3, 4, 6, -1, -1, -1, 2, 0}, /* Retired */
    {-1, -1, -1, -1, -1, -1, -1, -1, -1, 0}, /* Orphaned */
};

enum { abi_output_Absent = 0, abi_output_Empty = 1, abi_output_Mapped = 2, abi_output_Sliced = 3, abi_output_InFlight = 4, abi_output_Waited = 5, abi_output_Known = 6, abi_output_Orphaned = 7, abi_output_states = 8 };
enum { abi_output_on_create = 0, abi_output_on_map_buf = 1, abi_output_on_slice_tensor = 2, abi_output_on_infer = 3, abi_output_on_wait = 4, abi_output_on_orphan = 5, abi_output_on_get_status = 6, abi_output_on_tensor_size = 7, abi_output_on_undo_slice = 8, abi_output_on_destroy = 9, abi_output_events = 10 };
static const char *const abi_output_state_names[] = {"Absent", "Empty", "Mapped", "Sliced", "InFlight", "Waited", "Known", "Orphaned"};
static const char *const abi_output_event_names[] = {"create", "map_buf", "slice_tensor", "infer", "wait", "orphan", "get_status", "tensor_size", "undo_slice", "destroy"};
static const signed char abi_output_next[8][10] = {
    {1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, /* Absent */
    {-1, 2, -1, -1, -1, -1, -1, -1, -1, 0}, /* Empty */
    {-1, 2, 3, 4, -1, -1, -1, -1, 2, 0}, /* Mapped */
    {-1, -1, 3, 4, -1, -1, -1, -1, 2, 0}, /* Sliced */
    {-1, -1, -1, -1, 5, 7, 4, -1, -1, -1}, /* InFlight */
    {-1, -1, -1, -1, -1, -1, 6, -1, -1, 0}, /* Waited */
    {-1, -1, -1, 4, -1, -1, 6, 6, 2, 0}, /* Known */
    {-1, -1, -1, -1, 7, -1, 7, 7, -1, 0}, /* Orphaned */
};

#endif
