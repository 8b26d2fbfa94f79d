// The classes of calrt.hpp. Each method is one call of the ABI trace around one operation of the card.
#include <algorithm>
#include <atomic>
#include <new>

#include "calrt/calrt.hpp"
#include "card.hpp"
#include "traced.hpp"

namespace calrt {

namespace sim {
namespace {

std::uint64_t next_handle() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

class SimDevice final : public VirtualDevice {
  public:
    SimDevice(Card& card, std::uint64_t id) : card(card), id(id) {}
    ~SimDevice() override {
        traced(card, {CallKind::close, id}, [&](Call& call) {
            close_card(call.card);
            return 0;
        });
    }

    ReturnCode Configure(const std::shared_ptr<Calbin>& calbin) override {
        const Entry entry{CallKind::configure, id, 0, 0, 0, "", nullptr, -1, abi_device_on_configure};
        return traced(card, entry, [&](Call& call) {
            return configure_card(call.card, std::dynamic_pointer_cast<const SimCalbin>(calbin));
        });
    }

    ReturnCode EnableParallelMode(bool on) override {
        return traced(card, {CallKind::enable_parallel, id, 0, on}, [&](Call& call) {
            if (!device_may(call.card, abi_device_on_enable_parallel)) return Unexpected;
            for (const auto& [number, job] : call.card.jobs) {
                if (job->engine >= 0) return DeviceBusy;
            }
            call.card.parallel = on;
            return CalrtSuccess;
        });
    }

    ReturnCode ResetCCU() override { return reset(CallKind::reset_ccu, abi_device_on_reset_ccu); }
    ReturnCode ResetConfiguration() override {
        return reset(CallKind::reset_configuration, abi_device_on_reset_configuration);
    }
    ReturnCode Reset() override { return reset(CallKind::reset, abi_device_on_reset); }

    std::uint64_t MemoryUsed() const override {
        return traced(card, {CallKind::memory_used, id}, [](Call& call) { return call.card.memory_used(); });
    }

    Card& card;
    const std::uint64_t id;

  private:
    ReturnCode reset(CallKind kind, int event) {
        return traced(card, {kind, id}, [&](Call& call) {
            if (!device_may(call.card, event)) return Unexpected;
            const ReturnCode code = reset_device(call.card, call.lock, call.fault);
            // A planned return code hides from the runtime what its device has done.
            if (code == CalrtSuccess && call.fault.action != Action::return_code) reset_runtime(call.card, kind);
            return code;
        });
    }
};

class SimKv final : public KvManager {
  public:
    SimKv(Card& card, std::uint64_t id, std::uint64_t configuration)
        : card_(card), id_(id), configuration_(configuration) {}
    ~SimKv() override {
        traced(card_, {CallKind::destroy_kv, id_}, [](Call&) { return 0; });
    }

    bool Apply(KvSeqId sequence, std::uint32_t length) override {
        return traced(card_, {CallKind::apply, id_, 0, sequence, length}, [&](Call& call) {
            if (dead() || sequence < 0 || call.fault.action == Action::refuse) return false;
            std::uint32_t max_seq = 0;
            for (const Model& model : call.card.calbin->models) max_seq = std::max(max_seq, model.max_seq);
            return length <= max_seq && call.card.kv.apply(sequence, length);
        });
    }

    bool canAllocate(std::uint32_t units) override {
        return traced(card_, {CallKind::can_allocate, id_, 0, units}, [&](Call& call) {
            return !dead() && call.fault.action != Action::refuse && call.card.kv.units_free() >= units;
        });
    }

    std::uint32_t TokensPerUnit() const override {
        return traced(card_, {CallKind::tokens_per_unit, id_},
                      [&](Call& call) { return dead() ? 0 : call.card.kv.block_tokens; });
    }

    std::uint32_t UnitsTotal() const override {
        return traced(card_, {CallKind::units_total, id_}, [&](Call& call) { return dead() ? 0 : call.card.kv.units; });
    }

  private:
    bool dead() const { return configuration_ != card_.configuration || !card_.calbin; }

    Card& card_;
    const std::uint64_t id_, configuration_;
};

// What CalrtInputBuf and CalrtOutputBuf have in common. A call holds the state for itself: the handle may be destroyed
// under it, which is recorded but must not crash.
template <class Interface, bool is_output>
class SimBuffer : public Interface {
  public:
    SimBuffer(Card& card, std::shared_ptr<Buffer> state) : card(card), state(std::move(state)) {}
    ~SimBuffer() override {
        traced(card, {CallKind::destroy, state->id}, [&](Call& call) {
            destroy_buffer(call.card, *state);
            return 0;
        });
    }

    ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) override {
        constexpr int event = is_output ? int{abi_output_on_map_buf} : int{abi_input_on_map_buf};
        return buffer_call(CallKind::map_buf, event, tensor, static_cast<std::int64_t>(bytes), 0,
                           [&](Call& call, Buffer& buffer) { return map_buf(call.card, buffer, tensor, host, bytes); });
    }

    ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) override {
        constexpr int event = is_output ? int{abi_output_on_slice_tensor} : int{abi_input_on_slice_tensor};
        return buffer_call(
            CallKind::slice_tensor, event, tensor, static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size),
            [&](Call& call, Buffer& buffer) { return slice_tensor(call.card, buffer, tensor, offset, size); });
    }

    ReturnCode UndoSlice(const std::string& tensor) override {
        constexpr int event = is_output ? int{abi_output_on_undo_slice} : int{abi_input_on_undo_slice};
        return buffer_call(CallKind::undo_slice, event, tensor, 0, 0,
                           [&](Call& call, Buffer& buffer) { return undo_slice(call.card, buffer, tensor); });
    }

    Card& card;
    const std::shared_ptr<Buffer> state;

  protected:
    template <class Body>
    ReturnCode buffer_call(CallKind kind, int event, const std::string& text, std::int64_t a, std::int64_t b,
                           Body body) {
        const std::shared_ptr<Buffer> buffer = state;
        return traced(card, {kind, buffer->id, 0, a, b, text, buffer.get(), event},
                      [&](Call& call) { return body(call, *buffer); });
    }
};

class SimInput final : public SimBuffer<CalrtInputBuf, false> {
  public:
    using SimBuffer::SimBuffer;

    ReturnCode SetCsrByName(const std::string& name, std::int64_t value) override {
        return buffer_call(CallKind::set_csr, abi_input_on_set_csr, name, value, 0,
                           [&](Call& call, Buffer& buffer) { return set_csr(call.card, buffer, name, value); });
    }

    ReturnCode BindSequence(KvSeqId sequence) override {
        return buffer_call(CallKind::bind_sequence, abi_input_on_bind_sequence, "", sequence, 0,
                           [&](Call& call, Buffer& buffer) { return bind_sequence(call.card, buffer, sequence); });
    }
};

class SimOutput final : public SimBuffer<CalrtOutputBuf, true> {
  public:
    using SimBuffer::SimBuffer;

    ReturnCode Wait() override {
        const std::shared_ptr<Buffer> buffer = state;
        Card& of = card;
        return traced(of, {CallKind::wait, buffer->id}, [&](Call& call) {
            if (!buffer_may(of, *buffer, abi_output_on_wait)) return is_dead(of, *buffer) ? NotConfigured : Unexpected;
            call.note_a(static_cast<std::int64_t>(buffer->job));
            if (call.fault.action == Action::timeout) return Timeout;
            const bool says = call.fault.action == Action::return_code;
            ReturnCode code = CalrtSuccess;
            if (!says || call.fault.b == 1) code = wait_for(of, call.lock, *buffer, &buffer->extra_completions);
            if (says) code = static_cast<ReturnCode>(call.fault.a);
            if (code == CalrtSuccess) was_waited_for(of, *buffer);
            return code;
        });
    }

    BufStatus GetStatus() override {
        const std::shared_ptr<Buffer> buffer = state;
        return traced(card, {CallKind::get_status, buffer->id, 0, 0, 0, "", buffer.get(), abi_output_on_get_status},
                      [&](Call& call) {
                          buffer_may(call.card, *buffer, abi_output_on_get_status);
                          return buffer->running ? BufStatus::RUNNING : buffer->status;
                      });
    }

    ReturnCode TensorSize(const std::string& tensor, std::uint64_t* bytes) override {
        return buffer_call(CallKind::tensor_size, abi_output_on_tensor_size, tensor, 0, 0,
                           [&](Call& call, Buffer& buffer) {
                               std::uint64_t size = 0;
                               const ReturnCode code = tensor_size(call.card, buffer, tensor, &size);
                               if (code == CalrtSuccess) *bytes = size;
                               call.note_a(static_cast<std::int64_t>(size));
                               return code;
                           });
    }
};

template <class Handle, class Interface>
ReturnCode create_buffer(CallKind kind, bool is_output, const std::shared_ptr<VirtualDevice>& device,
                         const Model& model, std::shared_ptr<Interface>* out) {
    const auto of = std::dynamic_pointer_cast<SimDevice>(device);
    if (!of || !out) return IllegalValue;
    std::shared_ptr<Interface> made;
    const std::uint64_t id = next_handle();
    const ReturnCode code = traced(of->card, {kind, id, of->id, 0, 0, model.name}, [&](Call& call) {
        ReturnCode result = CalrtSuccess;
        if (call.fault.action == Action::return_code) return result;
        auto state = make_buffer(call.card, model, is_output, id, &result);
        if (state) made = std::make_shared<Handle>(call.card, std::move(state));
        return result;
    });
    if (code == CalrtSuccess && !made) return Unexpected;
    if (code == CalrtSuccess) *out = std::move(made);
    return code;
}

// engine: 0 Ping, 1 Pong, -1 whichever is free. Whoever calls may say anything; there are no others.
ReturnCode run(VirtualDevice* device, const Model& model, CalrtInputBuf* input, CalrtOutputBuf* output, int engine,
               bool engine_exists = true) {
    auto* const on = dynamic_cast<SimDevice*>(device);
    auto* const in = dynamic_cast<SimInput*>(input);
    auto* const out = dynamic_cast<SimOutput*>(output);
    if (!on || !in || !out || &in->card != &on->card || &out->card != &on->card) return IllegalValue;
    const std::shared_ptr<Buffer> reads = in->state, writes = out->state;
    const Entry entry{CallKind::infer, reads->id, writes->id, 0, engine, model.name};
    return traced(on->card, entry, [&](Call& call) {
        Card& card = call.card;
        const bool device_ready = device_may(card, abi_device_on_infer);
        const bool input_ready = buffer_may(card, *reads, abi_input_on_infer);
        const bool output_ready = buffer_may(card, *writes, abi_output_on_infer);
        if (!device_ready || is_dead(card, *reads) || is_dead(card, *writes)) return NotConfigured;
        if (!input_ready || !output_ready) return Unexpected;
        const int number = card.calbin->index_of(model);
        if (number < 0 || static_cast<std::size_t>(number) != reads->model || !engine_exists) return IllegalValue;
        std::uint64_t job = 0;
        const ReturnCode code = submit(card, reads, writes, engine, call.fault, &job);
        if (code == CalrtSuccess) went_into_flight(card, reads, writes);
        call.note_a(static_cast<std::int64_t>(job));
        return code;
    });
}

}  // namespace
}  // namespace sim

ReturnCode Calbin::Load(const std::string& path, std::shared_ptr<Calbin>* out) {
    if (!out) return IllegalValue;
    std::shared_ptr<sim::SimCalbin> calbin;
    try {
        const ReturnCode code = sim::SimCalbin::load(path, &calbin);
        if (code == CalrtSuccess) *out = std::move(calbin);
        return code;
    } catch (const std::bad_alloc&) {
        return MemoryAllocationFailed;
    }
}

ReturnCode VirtualDevice::Open(std::uint32_t index, std::shared_ptr<VirtualDevice>* out) {
    sim::Card* const card = sim::Card::get(index);
    if (!out) return IllegalValue;
    if (!card) return OutOfRange;
    std::shared_ptr<VirtualDevice> made;
    const ReturnCode code = sim::traced(*card, {sim::CallKind::open, 0, 0, index}, [&](sim::Call& call) {
        if (call.fault.action == sim::Action::return_code) return CalrtSuccess;
        if (card->open_handle) return AlreadyRegistered;
        const std::uint64_t id = sim::next_handle();
        made = std::make_shared<sim::SimDevice>(*card, id);
        card->open_handle = id;
        card->ensure_engine();
        sim::device_moves(*card, abi_device_on_open);
        call.note_handle(id);
        return CalrtSuccess;
    });
    if (code == CalrtSuccess && !made) return Unexpected;
    if (code == CalrtSuccess) *out = std::move(made);
    return code;
}

ReturnCode KvManager::Create(const std::shared_ptr<VirtualDevice>& device, std::shared_ptr<KvManager>* out) {
    const auto of = std::dynamic_pointer_cast<sim::SimDevice>(device);
    if (!of || !out) return IllegalValue;
    std::shared_ptr<KvManager> made;
    const std::uint64_t id = sim::next_handle();
    const ReturnCode code = sim::traced(of->card, {sim::CallKind::create_kv, id, of->id}, [&](sim::Call& call) {
        if (call.fault.action == sim::Action::return_code) return CalrtSuccess;
        if (!call.card.calbin) return NotConfigured;
        made = std::make_shared<sim::SimKv>(call.card, id, call.card.configuration);
        return CalrtSuccess;
    });
    if (code == CalrtSuccess && !made) return Unexpected;
    if (code == CalrtSuccess) *out = std::move(made);
    return code;
}

ReturnCode CalrtInputBuf::Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                                 std::shared_ptr<CalrtInputBuf>* out) {
    return sim::create_buffer<sim::SimInput>(sim::CallKind::create_input, false, device, model, out);
}

ReturnCode CalrtOutputBuf::Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                                  std::shared_ptr<CalrtOutputBuf>* out) {
    return sim::create_buffer<sim::SimOutput>(sim::CallKind::create_output, true, device, model, out);
}

ReturnCode infer(VirtualDevice* device, const Model& model, CalrtInputBuf* input, CalrtOutputBuf* output) {
    return sim::run(device, model, input, output, -1);
}

ReturnCode infer_with_fixed_task_type(VirtualDevice* device, const Model& model, CalrtInputBuf* input,
                                      CalrtOutputBuf* output, TaskType task) {
    const bool exists = task == TaskType::kPing || task == TaskType::kPong;
    return sim::run(device, model, input, output, static_cast<int>(task), exists);
}

std::string Version() { return sim::library_version; }

}  // namespace calrt
