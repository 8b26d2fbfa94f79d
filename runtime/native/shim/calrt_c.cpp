// The C ABI over CalRT: the only file that knows the vendor's header. It is compiled unchanged against any SDK.
//
// Each function is of one form: look up the handles, check the arguments, make one CalRT call in its place in the call
// order, hand out its raw code. Everything that can be thrown is caught by `guarded`.
#include "calrt_c.h"

#include <time.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "objects.hpp"

using namespace calrt_c;

// The C ABI hands CalRT's numbers on as they are. An SDK that numbers them otherwise must be mapped here.
static_assert(static_cast<int>(calrt::PrimitiveType::kS32) == 0 && static_cast<int>(calrt::PrimitiveType::kBF16) == 1 &&
                  static_cast<int>(calrt::PrimitiveType::kF32) == 2,
              "this SDK numbers PrimitiveType otherwise than calrt_c.h");
static_assert(static_cast<int>(calrt::BufStatus::IDLE) == 0 && static_cast<int>(calrt::BufStatus::RUNNING) == 1 &&
                  static_cast<int>(calrt::BufStatus::DONE) == 2 &&
                  static_cast<int>(calrt::BufStatus::DONE_CCU_EXCEPTION) == 3 &&
                  static_cast<int>(calrt::BufStatus::KILLED) == 4,
              "this SDK numbers BufStatus otherwise than calrt_c.h");
static_assert(static_cast<int>(calrt::TaskType::kPing) == 0 && static_cast<int>(calrt::TaskType::kPong) == 1,
              "this SDK numbers TaskType otherwise than calrt_c.h");

namespace {

// A text must arrive whole: a name that C would cut might be another one (§10.2: names count exactly).
void copy_text(const std::string& from, char* to, std::size_t bytes, const char* what) {
    need(to, what);
    if (const std::size_t end = from.find('\0'); end != std::string::npos)
        throw Refusal{ShimBadArgument, std::string(what) + " has a NUL at byte " + std::to_string(end) + " of " +
                                           std::to_string(from.size()) + ", where C would cut it"};
    if (from.size() >= bytes)
        throw Refusal{ShimBadArgument, std::string(what) + " needs " + std::to_string(from.size() + 1) +
                                           " bytes and has " + std::to_string(bytes)};
    std::memcpy(to, from.c_str(), from.size() + 1);
}

template <typename Vector>
const typename Vector::value_type& at(const Vector& items, std::uint32_t index, const char* what) {
    if (index >= items.size())
        throw Refusal{ShimBadArgument, std::string("there is no ") + what + " " + std::to_string(index) + ", only " +
                                           std::to_string(items.size())};
    return items[index];
}

const calrt::Model& model_of(const Calbin& calbin, std::uint32_t index) {
    return at(calbin.calrt->GetAllModels(), index, "model");
}

// Stores what CalRT created and gives out its handle. If that throws, CalRT's object is let go.
template <typename T>
void give_out(const std::shared_ptr<T>& object, calrt_c_handle* handle) {
    if (!object->calrt) throw std::runtime_error("CalRT returned success and no object");
    *handle = handles().add(object);
}

// The two kinds of buffers are created alike.
template <typename T, typename Buf>
int create_buf(calrt_c_handle device, calrt_c_handle calbin, std::uint32_t model, calrt_c_handle* handle,
               const char* name) {
    const auto on = get<Device>(device);
    const auto from = get<Calbin>(calbin);
    need(handle, name);
    auto object = std::make_shared<T>();
    object->device = on->calrt;
    object->calbin = from->calrt;
    const int code = static_cast<int>(Buf::Create(on->calrt, model_of(*from, model), &object->calrt));
    if (code == 0) give_out(object, handle);
    return code;
}

// What a successful reset does to the order: everything in flight on this device is orphaned.
void orphan_all(const Device& device) {
    const auto objects = handles().all();
    const std::lock_guard<std::mutex> lock(order_mutex());
    for (const auto& object : objects) {
        if (auto input = std::dynamic_pointer_cast<Input>(object); input && input->device == device.calrt)
            input->order.move(abi_input_on_orphan);
        if (auto output = std::dynamic_pointer_cast<Output>(object); output && output->device == device.calrt)
            output->order.move(abi_output_on_orphan);
    }
}

template <typename Reset>
int reset(calrt_c_handle device, int event, Reset&& call) {
    const auto on = get<Device>(device);
    const int code = in_order({{on->order, device, event}}, [&] { return call(*on->calrt); });
    if constexpr (enforces_order)
        if (code == 0) orphan_all(*on);
    return code;
}

// Which input is retired when this output's Wait() returns.
void remember_input(Output& output, const std::shared_ptr<Input>& input) {
    const std::lock_guard<std::mutex> lock(order_mutex());
    output.submitted_with = input;
}

void retire_input(const Output& output) {
    const std::lock_guard<std::mutex> lock(order_mutex());
    if (const auto input = output.submitted_with.lock()) input->order.move(abi_input_on_retire);
}

template <typename Infer>
int submit(calrt_c_handle device, calrt_c_handle calbin, std::uint32_t model, calrt_c_handle input,
           calrt_c_handle output, Infer&& call) {
    const auto on = get<Device>(device);
    const auto from = get<Calbin>(calbin);
    const auto in = get<Input>(input);
    const auto out = get<Output>(output);
    const calrt::Model& graph = model_of(*from, model);
    return in_order({{on->order, device, abi_device_on_infer},
                     {in->order, input, abi_input_on_infer},
                     {out->order, output, abi_output_on_infer}},
                    [&] {
                        const int code =
                            static_cast<int>(call(on->calrt.get(), graph, in->calrt.get(), out->calrt.get()));
                        if constexpr (enforces_order)
                            if (code == 0) remember_input(*out, in);
                        return code;
                    });
}

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Stamps around a call, also around one that throws.
class Stopwatch {
  public:
    explicit Stopwatch(calrt_c_stamps* stamps) : stamps_(stamps), begin_ns_(monotonic_ns()) {}
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch() {
        if (stamps_ != nullptr) *stamps_ = {begin_ns_, monotonic_ns()};
    }

  private:
    calrt_c_stamps* stamps_;
    std::int64_t begin_ns_;
};

}  // namespace

extern "C" {

// -- the library --

int calrt_c_version(char* text, size_t bytes) {
    return guarded(__func__, [&] {
        copy_text(calrt::Version(), text, bytes, "text");
        return 0;
    });
}

int calrt_c_last_error(char* text, size_t bytes) {
    if (text != nullptr && bytes > 0) std::snprintf(text, bytes, "%s", last_error());
    return 0;
}

int calrt_c_enforces_call_order(int* yes) {
    return guarded(__func__, [&] {
        need(yes, "yes");
        *yes = enforces_order ? 1 : 0;
        return 0;
    });
}

// -- calbin --

int calrt_c_calbin_load(const char* path, calrt_c_handle* calbin) {
    return guarded(__func__, [&] {
        need(path, "path");
        need(calbin, "calbin");
        auto object = std::make_shared<Calbin>();
        const int code = static_cast<int>(calrt::Calbin::Load(path, &object->calrt));
        if (code == 0) give_out(object, calbin);
        return code;
    });
}

int calrt_c_calbin_models(calrt_c_handle calbin, uint32_t* count) {
    return guarded(__func__, [&] {
        const auto from = get<Calbin>(calbin);
        need(count, "count");
        *count = static_cast<uint32_t>(from->calrt->GetAllModels().size());
        return 0;
    });
}

int calrt_c_calbin_model(calrt_c_handle calbin, uint32_t model, calrt_c_model* out) {
    return guarded(__func__, [&] {
        const auto from = get<Calbin>(calbin);
        need(out, "out");
        const calrt::Model& graph = model_of(*from, model);
        calrt_c_model found{};
        copy_text(graph.name, found.name, sizeof found.name, "the model's name");
        found.tensors = static_cast<uint32_t>(graph.tensors.size());
        found.csrs = static_cast<uint32_t>(graph.csr_names.size());
        found.logits_tile_d0 = graph.logits_tile_d0;
        found.max_batch = graph.max_batch;
        found.max_seq = graph.max_seq;
        *out = found;
        return 0;
    });
}

int calrt_c_calbin_tensor(calrt_c_handle calbin, uint32_t model, uint32_t tensor, calrt_c_tensor* out) {
    return guarded(__func__, [&] {
        const auto from = get<Calbin>(calbin);
        need(out, "out");
        const calrt::TensorInfo& info = at(model_of(*from, model).tensors, tensor, "tensor");
        if (info.shape.size() > CALRT_C_MAX_RANK)
            throw Refusal{ShimBadArgument, "tensor " + info.name + " has " + std::to_string(info.shape.size()) +
                                               " dimensions, at most " + std::to_string(CALRT_C_MAX_RANK) + " fit"};
        calrt_c_tensor found{};
        copy_text(info.name, found.name, sizeof found.name, "the tensor's name");
        for (std::size_t i = 0; i < info.shape.size(); ++i) found.shape[i] = info.shape[i];
        found.rank = static_cast<uint32_t>(info.shape.size());
        found.dtype = static_cast<int32_t>(info.dtype);
        found.byte_size = info.byte_size;
        found.sliceable = info.sliceable ? 1 : 0;
        found.is_output = info.is_output ? 1 : 0;
        *out = found;
        return 0;
    });
}

int calrt_c_calbin_csr(calrt_c_handle calbin, uint32_t model, uint32_t csr, char* name, size_t bytes) {
    return guarded(__func__, [&] {
        const auto from = get<Calbin>(calbin);
        copy_text(at(model_of(*from, model).csr_names, csr, "CSR"), name, bytes, "the CSR's name");
        return 0;
    });
}

int calrt_c_calbin_release(calrt_c_handle calbin) {
    return guarded(__func__, [&] { return release<Calbin>(calbin); });
}

// -- device --

int calrt_c_device_open(uint32_t index, calrt_c_handle* device) {
    return guarded(__func__, [&] {
        need(device, "device");
        auto object = std::make_shared<Device>();
        const int code = static_cast<int>(calrt::VirtualDevice::Open(index, &object->calrt));
        if (code == 0) give_out(object, device);
        return code;
    });
}

int calrt_c_device_configure(calrt_c_handle device, calrt_c_handle calbin) {
    return guarded(__func__, [&] {
        const auto on = get<Device>(device);
        const auto from = get<Calbin>(calbin);
        return in_order({{on->order, device, abi_device_on_configure}},
                        [&] { return on->calrt->Configure(from->calrt); });
    });
}

int calrt_c_device_enable_parallel_mode(calrt_c_handle device, int yes) {
    return guarded(__func__, [&] {
        const auto on = get<Device>(device);
        return in_order({{on->order, device, abi_device_on_enable_parallel}},
                        [&] { return on->calrt->EnableParallelMode(yes != 0); });
    });
}

int calrt_c_device_reset_ccu(calrt_c_handle device) {
    return guarded(__func__, [&] {
        return reset(device, abi_device_on_reset_ccu, [](calrt::VirtualDevice& on) { return on.ResetCCU(); });
    });
}

int calrt_c_device_reset_configuration(calrt_c_handle device) {
    return guarded(__func__, [&] {
        return reset(device, abi_device_on_reset_configuration,
                     [](calrt::VirtualDevice& on) { return on.ResetConfiguration(); });
    });
}

int calrt_c_device_reset(calrt_c_handle device) {
    return guarded(__func__, [&] {
        return reset(device, abi_device_on_reset, [](calrt::VirtualDevice& on) { return on.Reset(); });
    });
}

int calrt_c_device_memory_used(calrt_c_handle device, uint64_t* bytes) {
    return guarded(__func__, [&] {
        const auto on = get<Device>(device);
        need(bytes, "bytes");
        *bytes = on->calrt->MemoryUsed();
        return 0;
    });
}

int calrt_c_device_close(calrt_c_handle device) {
    return guarded(__func__, [&] {
        const auto on = get<Device>(device);
        return in_order({{on->order, device, abi_device_on_close}}, [&] { return release<Device>(device); });
    });
}

// -- KV --

int calrt_c_kv_create(calrt_c_handle device, calrt_c_handle* kv) {
    return guarded(__func__, [&] {
        const auto on = get<Device>(device);
        need(kv, "kv");
        auto object = std::make_shared<Kv>();
        object->device = on->calrt;
        const int code = static_cast<int>(calrt::KvManager::Create(on->calrt, &object->calrt));
        if (code == 0) give_out(object, kv);
        return code;
    });
}

int calrt_c_kv_apply(calrt_c_handle kv, int32_t sequence, uint32_t length, int* granted) {
    return guarded(__func__, [&] {
        const auto manager = get<Kv>(kv);
        need(granted, "granted");
        *granted = manager->calrt->Apply(sequence, length) ? 1 : 0;
        return 0;
    });
}

int calrt_c_kv_can_allocate(calrt_c_handle kv, uint32_t units, int* can) {
    return guarded(__func__, [&] {
        const auto manager = get<Kv>(kv);
        need(can, "can");
        *can = manager->calrt->canAllocate(units) ? 1 : 0;
        return 0;
    });
}

int calrt_c_kv_tokens_per_unit(calrt_c_handle kv, uint32_t* tokens) {
    return guarded(__func__, [&] {
        const auto manager = get<Kv>(kv);
        need(tokens, "tokens");
        *tokens = manager->calrt->TokensPerUnit();
        return 0;
    });
}

int calrt_c_kv_units_total(calrt_c_handle kv, uint32_t* units) {
    return guarded(__func__, [&] {
        const auto manager = get<Kv>(kv);
        need(units, "units");
        *units = manager->calrt->UnitsTotal();
        return 0;
    });
}

int calrt_c_kv_release(calrt_c_handle kv) {
    return guarded(__func__, [&] { return release<Kv>(kv); });
}

// -- input buffer --

int calrt_c_input_create(calrt_c_handle device, calrt_c_handle calbin, uint32_t model, calrt_c_handle* input) {
    return guarded(__func__, [&] {
        return create_buf<Input, calrt::CalrtInputBuf>(device, calbin, model, input, "input");
    });
}

int calrt_c_input_map_buf(calrt_c_handle input, const char* tensor, void* host, uint64_t bytes) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        need(tensor, "tensor");
        need(host, "host");
        return in_order({{in->order, input, abi_input_on_map_buf}},
                        [&] { return in->calrt->MapBuf(tensor, host, bytes); });
    });
}

int calrt_c_input_slice_tensor(calrt_c_handle input, const char* tensor, uint64_t offset, uint64_t size) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        need(tensor, "tensor");
        return in_order({{in->order, input, abi_input_on_slice_tensor}},
                        [&] { return in->calrt->SliceTensor(tensor, offset, size); });
    });
}

int calrt_c_input_undo_slice(calrt_c_handle input, const char* tensor) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        need(tensor, "tensor");
        return in_order({{in->order, input, abi_input_on_undo_slice}}, [&] { return in->calrt->UndoSlice(tensor); });
    });
}

int calrt_c_input_set_csr(calrt_c_handle input, const char* name, int64_t value) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        need(name, "name");
        return in_order({{in->order, input, abi_input_on_set_csr}},
                        [&] { return in->calrt->SetCsrByName(name, value); });
    });
}

int calrt_c_input_bind_sequence(calrt_c_handle input, int32_t sequence) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        return in_order({{in->order, input, abi_input_on_bind_sequence}},
                        [&] { return in->calrt->BindSequence(sequence); });
    });
}

int calrt_c_input_release(calrt_c_handle input) {
    return guarded(__func__, [&] {
        const auto in = get<Input>(input);
        return in_order({{in->order, input, abi_input_on_destroy}}, [&] { return release<Input>(input); });
    });
}

// -- output buffer --

int calrt_c_output_create(calrt_c_handle device, calrt_c_handle calbin, uint32_t model, calrt_c_handle* output) {
    return guarded(__func__, [&] {
        return create_buf<Output, calrt::CalrtOutputBuf>(device, calbin, model, output, "output");
    });
}

int calrt_c_output_map_buf(calrt_c_handle output, const char* tensor, void* host, uint64_t bytes) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        need(tensor, "tensor");
        need(host, "host");
        return in_order({{out->order, output, abi_output_on_map_buf}},
                        [&] { return out->calrt->MapBuf(tensor, host, bytes); });
    });
}

int calrt_c_output_slice_tensor(calrt_c_handle output, const char* tensor, uint64_t offset, uint64_t size) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        need(tensor, "tensor");
        return in_order({{out->order, output, abi_output_on_slice_tensor}},
                        [&] { return out->calrt->SliceTensor(tensor, offset, size); });
    });
}

int calrt_c_output_undo_slice(calrt_c_handle output, const char* tensor) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        need(tensor, "tensor");
        return in_order({{out->order, output, abi_output_on_undo_slice}},
                        [&] { return out->calrt->UndoSlice(tensor); });
    });
}

int calrt_c_output_wait(calrt_c_handle output, calrt_c_stamps* stamps) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        const int code = in_order({{out->order, output, abi_output_on_wait}}, [&] {
            const Stopwatch stopwatch(stamps);
            return out->calrt->Wait();
        });
        if constexpr (enforces_order)
            if (code == 0) retire_input(*out);
        return code;
    });
}

int calrt_c_output_get_status(calrt_c_handle output, int* status) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        need(status, "status");
        return in_order({{out->order, output, abi_output_on_get_status}}, [&] {
            *status = static_cast<int>(out->calrt->GetStatus());
            return 0;
        });
    });
}

int calrt_c_output_tensor_size(calrt_c_handle output, const char* tensor, uint64_t* bytes) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        need(tensor, "tensor");
        need(bytes, "bytes");
        std::uint64_t found = 0;
        const int code = in_order({{out->order, output, abi_output_on_tensor_size}},
                                  [&] { return out->calrt->TensorSize(tensor, &found); });
        if (code == 0) *bytes = found;
        return code;
    });
}

int calrt_c_output_release(calrt_c_handle output) {
    return guarded(__func__, [&] {
        const auto out = get<Output>(output);
        return in_order({{out->order, output, abi_output_on_destroy}}, [&] { return release<Output>(output); });
    });
}

// -- submit --

int calrt_c_infer(calrt_c_handle device, calrt_c_handle calbin, uint32_t model, calrt_c_handle input,
                  calrt_c_handle output) {
    return guarded(__func__, [&] {
        return submit(device, calbin, model, input, output,
                      [](auto on, auto& graph, auto in, auto out) { return calrt::infer(on, graph, in, out); });
    });
}

int calrt_c_infer_with_fixed_task_type(calrt_c_handle device, calrt_c_handle calbin, uint32_t model,
                                       calrt_c_handle input, calrt_c_handle output, int task) {
    return guarded(__func__, [&] {
        // Any int is a value of the enumeration; which of them are task types is CalRT's to say.
        return submit(device, calbin, model, input, output, [task](auto on, auto& graph, auto in, auto out) {
            return calrt::infer_with_fixed_task_type(on, graph, in, out, static_cast<calrt::TaskType>(task));
        });
    });
}

}  // extern "C"
