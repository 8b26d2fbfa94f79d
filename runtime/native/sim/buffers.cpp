// The calls on one buffer: mapping, slicing, CSRs, and its end.
#include <algorithm>
#include <string>

#include "card.hpp"

namespace calrt::sim {

namespace {

int event_of(const Buffer& buffer, int input_event, int output_event) {
    return buffer.is_output ? output_event : input_event;
}

// The tensor's number in the model, or the code that says what is wrong with the name.
ReturnCode find_tensor(const Buffer& buffer, const std::string& name, std::size_t* number) {
    const std::vector<TensorInfo>& tensors = buffer.calbin->models[buffer.model].tensors;
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    if (found == tensors.end()) return IllegalValue;
    *number = static_cast<std::size_t>(found - tensors.begin());
    return found->is_output == buffer.is_output ? CalrtSuccess : WrongDirection;
}

ReturnCode may(Card& card, const Buffer& buffer, int event) {
    const bool possible = buffer_may(card, buffer, event);
    return is_dead(card, buffer) ? NotConfigured : possible ? CalrtSuccess : Unexpected;
}

// As `may`, for what a buffer in flight forbids above all: the device knows the addresses.
ReturnCode may_remap(Card& card, const Buffer& buffer, int event, const std::string& what) {
    const Job* const job = card.live_job_of(buffer);
    if (!job) return may(card, buffer, event);
    card.violation(ViolationKind::remapped, job->id, what + " on a buffer in flight");
    const auto* const next = buffer.is_output ? abi_output_next[buffer.state] : abi_input_next[buffer.state];
    return is_dead(card, buffer) ? NotConfigured : next[event] >= 0 ? CalrtSuccess : Unexpected;
}

}  // namespace

std::shared_ptr<Buffer> make_buffer(Card& card, const Model& model, bool is_output, std::uint64_t id,
                                    ReturnCode* code) {
    *code = card.calbin ? CalrtSuccess : NotConfigured;
    const int number = card.calbin ? card.calbin->index_of(model) : -1;
    if (card.calbin && number < 0) *code = IllegalValue;
    if (*code != CalrtSuccess) return nullptr;
    auto buffer = std::make_shared<Buffer>();
    buffer->id = id;
    buffer->is_output = is_output;
    buffer->epoch = card.epoch;
    buffer->configuration = card.configuration;
    buffer->calbin = card.calbin;
    buffer->model = static_cast<std::size_t>(number);
    buffer->tensors.resize(model.tensors.size());
    for (const TensorInfo& tensor : model.tensors) {
        if (tensor.is_output == is_output) buffer->device_bytes += tensor.byte_size;
    }
    buffer_moves(*buffer, event_of(*buffer, abi_input_on_create, abi_output_on_create));
    ++card.counters.buffers_created;
    ++card.counters.buffers_alive;
    card.counters.buffer_bytes += static_cast<std::int64_t>(buffer->device_bytes);
    return buffer;
}

ReturnCode map_buf(Card& card, Buffer& buffer, const std::string& tensor, void* host, std::uint64_t bytes) {
    const int event = event_of(buffer, abi_input_on_map_buf, abi_output_on_map_buf);
    if (const ReturnCode code = may_remap(card, buffer, event, "MapBuf"); code != CalrtSuccess) return code;
    std::size_t number = 0;
    if (const ReturnCode code = find_tensor(buffer, tensor, &number); code != CalrtSuccess) return code;
    const std::uint64_t byte_size = buffer.calbin->models[buffer.model].tensors[number].byte_size;
    if (!host) return IllegalValue;
    // An input may be shorter than its tensor (the slice must fit, at infer()); an output may not.
    if (bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(host)) return OutOfRange;
    if (bytes == 0 || (buffer.is_output ? bytes < byte_size : bytes > byte_size)) return OutOfRange;
    const Range range{reinterpret_cast<std::uintptr_t>(host), bytes};
    if (const Job* other = card.live_overlap(range, card.live_job_of(buffer))) {
        card.violation(ViolationKind::reused, other->id, "MapBuf was given memory of a job in flight");
    }
    buffer.tensors[number] = Mapping{true, false, range, 0, 0};
    return CalrtSuccess;
}

ReturnCode slice_tensor(Card& card, Buffer& buffer, const std::string& tensor, std::uint64_t offset,
                        std::uint64_t size) {
    const int event = event_of(buffer, abi_input_on_slice_tensor, abi_output_on_slice_tensor);
    if (const ReturnCode code = may_remap(card, buffer, event, "SliceTensor"); code != CalrtSuccess) return code;
    std::size_t number = 0;
    if (const ReturnCode code = find_tensor(buffer, tensor, &number); code != CalrtSuccess) return code;
    const TensorInfo& info = buffer.calbin->models[buffer.model].tensors[number];
    if (!info.sliceable) return Unsupported;
    const std::uint64_t elements = info.byte_size / element_bytes(info.dtype);
    if (size == 0 || offset > elements || size > elements - offset) return OutOfRange;
    Mapping& mapping = buffer.tensors[number];
    mapping.sliced = true;
    mapping.offset = offset;
    mapping.size = size;
    return CalrtSuccess;
}

ReturnCode undo_slice(Card& card, Buffer& buffer, const std::string& tensor) {
    const int event = event_of(buffer, abi_input_on_undo_slice, abi_output_on_undo_slice);
    if (const ReturnCode code = may_remap(card, buffer, event, "UndoSlice"); code != CalrtSuccess) return code;
    std::size_t number = 0;
    if (const ReturnCode code = find_tensor(buffer, tensor, &number); code != CalrtSuccess) return code;
    buffer.tensors[number].sliced = false;
    return CalrtSuccess;
}

ReturnCode set_csr(Card& card, Buffer& buffer, const std::string& name, std::int64_t value) {
    if (const ReturnCode code = may(card, buffer, abi_input_on_set_csr); code != CalrtSuccess) return code;
    const Graph& graph = buffer.calbin->graphs[buffer.model];
    if (name.empty() || (name != graph.csr_cur && name != graph.csr_total)) return IllegalValue;
    (name == graph.csr_cur ? buffer.csr_cur : buffer.csr_total) = value;
    return CalrtSuccess;
}

ReturnCode bind_sequence(Card& card, Buffer& buffer, KvSeqId sequence) {
    if (const ReturnCode code = may(card, buffer, abi_input_on_bind_sequence); code != CalrtSuccess) return code;
    if (sequence < 0) return IllegalValue;
    buffer.sequence = sequence;
    return CalrtSuccess;
}

ReturnCode tensor_size(Card& card, const Buffer& buffer, const std::string& tensor, std::uint64_t* bytes) {
    const bool possible = buffer_may(card, buffer, abi_output_on_tensor_size);
    // An orphan's job may have completed all the same; then the question is a fair one.
    if (is_dead(card, buffer) && buffer.status != BufStatus::DONE) return NotConfigured;
    if (!possible) return Unexpected;
    std::size_t number = 0;
    if (const ReturnCode code = find_tensor(buffer, tensor, &number); code != CalrtSuccess) return code;
    *bytes = buffer.written;
    return CalrtSuccess;
}

void destroy_buffer(Card& card, Buffer& buffer) {
    const int event = event_of(buffer, abi_input_on_destroy, abi_output_on_destroy);
    if (const Job* job = card.live_job_of(buffer)) {
        card.violation(ViolationKind::destroyed, job->id, "buffer destroyed while its job is in flight");
    } else {
        buffer_may(card, buffer, event);
    }
    buffer.state = 0;
    if (buffer.epoch != card.epoch) return;
    --card.counters.buffers_alive;
    card.counters.buffer_bytes -= static_cast<std::int64_t>(buffer.device_bytes);
}

}  // namespace calrt::sim
