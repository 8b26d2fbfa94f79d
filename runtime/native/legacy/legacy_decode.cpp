// The baseline (see calrt_legacy.h): what a call cost before there was an executor.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "calrt/calrt.hpp"

#include "calexec_tables.hpp"
#include "calrt_legacy.h"

namespace {

constexpr int success = 0;
constexpr std::size_t stage_bytes = 256;

// This thread's last failing step: a fixed buffer, so that keeping it cannot fail.
char* stage() {
    thread_local char text[stage_bytes] = "";
    return text;
}

// An error return that keeps where it happened, and what more there is to say.
template <typename Code>
int at(const char* where, Code code, const char* more = "") {
    const int number = static_cast<int>(code);
    if (number != success) std::snprintf(stage(), stage_bytes, "%s%s", where, more);
    return number;
}

float to_float(std::uint16_t bf16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// §10.1, as it was: everything is converted, most of it is thrown away.
void convert(const std::uint16_t* source, std::uint64_t elements, std::uint64_t base, std::uint64_t count,
             float* target) {
    std::vector<float> all(elements);
    for (std::uint64_t i = 0; i < elements; ++i) all[i] = to_float(source[i]);
    std::memcpy(target, all.data() + base, count * sizeof(float));
}

const calrt::Model* model_named(const calrt::Calbin& calbin, const std::string& name) {
    for (const auto& model : calbin.GetAllModels())
        if (model.name == name) return &model;
    return nullptr;
}

// One submodel and the context's host vectors for it (S06): made once, of the tensors' whole sizes.
struct Graph {
    const calrt::Model* model = nullptr;
    const calrt::TensorInfo *tokens = nullptr, *positions = nullptr, *logits = nullptr;
    std::vector<std::int32_t> host_tokens, host_positions;
    std::vector<std::uint16_t> host_logits;

    // False when the model is not of the form that the header describes.
    bool take(const calrt::Model* from) {
        model = from;
        for (const auto& tensor : model->tensors) {
            auto*& place = tensor.is_output ? logits : tokens == nullptr ? tokens : positions;
            if (place != nullptr) return false;
            place = &tensor;
        }
        if (positions == nullptr || logits == nullptr || logits->shape.empty()) return false;
        if (model->csr_names.size() != 2) return false;
        if (tokens->dtype != calrt::PrimitiveType::kS32 || positions->dtype != calrt::PrimitiveType::kS32) return false;
        const auto row = vocabulary() * sizeof(std::uint16_t);
        if (row == 0 || model->logits_tile_d0 == 0 || logits->byte_size != row * model->logits_tile_d0) return false;
        host_tokens.resize(tokens->byte_size / sizeof(std::int32_t));
        host_positions.resize(positions->byte_size / sizeof(std::int32_t));
        host_logits.resize(logits->byte_size / sizeof(std::uint16_t));
        return !host_tokens.empty() && host_tokens.size() == host_positions.size();
    }

    std::uint64_t vocabulary() const { return logits->shape.back(); }
};

struct Buffers {
    std::shared_ptr<calrt::CalrtInputBuf> input;
    std::shared_ptr<calrt::CalrtOutputBuf> output;
};

}  // namespace

struct calrt_legacy {
    std::shared_ptr<calrt::Calbin> calbin;
    std::shared_ptr<calrt::VirtualDevice> device;
    std::shared_ptr<calrt::KvManager> kv;
    Graph prefill, decode;
    Buffers doubtful;  // of a job that may still run: they live until the device has been reset
    bool broken = false;

    int open(std::uint32_t index, const char* path, const char* prefill_name, const char* decode_name) {
        if (const int rc = at("Calbin::Load", calrt::Calbin::Load(path, &calbin))) return rc;
        if (const int rc = take(prefill, prefill_name)) return rc;
        if (const int rc = take(decode, decode_name)) return rc;
        if (const int rc = at("VirtualDevice::Open", calrt::VirtualDevice::Open(index, &device))) return rc;
        if (const int rc = at("Configure", device->Configure(calbin))) return rc;
        return at("KvManager::Create", calrt::KvManager::Create(device, &kv));
    }

    int take(Graph& graph, const std::string& name) {
        const auto* model = model_named(*calbin, name);
        if (model != nullptr && graph.take(model)) return success;
        const char* why = model == nullptr ? "no submodel is called " : "not of tokens, positions and logits: ";
        return at(why, calrt_c::ShimBadArgument, name.c_str());
    }

    int call(Graph& graph, std::int32_t sequence, const std::int32_t* tokens, std::uint32_t count, std::uint32_t past,
             float* logits) {
        const std::uint32_t total = past + count;
        if (!kv->Apply(sequence, total)) return at("Apply before infer: refused", CALRT_LEGACY_KV_REFUSED);
        Buffers buffers;
        if (const int rc = prepare(graph, buffers, sequence, tokens, count, past)) return rc;
        doubtful = buffers;
        broken = true;
        if (const int rc = run(graph, buffers)) return rc;
        doubtful = {};
        broken = false;
        if (!kv->Apply(sequence, total)) return at("Apply after infer: refused", CALRT_LEGACY_KV_REFUSED);
        const auto row = (count - 1) % graph.model->logits_tile_d0;
        const auto base = row * graph.vocabulary();
        convert(graph.host_logits.data(), graph.host_logits.size(), base, graph.vocabulary(), logits);
        return undo(graph, buffers);
    }

    int prepare(Graph& graph, Buffers& buffers, std::int32_t sequence, const std::int32_t* tokens, std::uint32_t count,
                std::uint32_t past) {
        const auto& model = *graph.model;
        if (const int rc = at("input Create", calrt::CalrtInputBuf::Create(device, model, &buffers.input))) return rc;
        if (const int rc = at("output Create", calrt::CalrtOutputBuf::Create(device, model, &buffers.output)))
            return rc;
        for (std::uint32_t i = 0; i < count; ++i) {
            graph.host_tokens[i] = tokens[i];
            graph.host_positions[i] = static_cast<std::int32_t>(past + i);
        }
        auto& input = *buffers.input;
        if (const int rc = map(input, *graph.tokens, graph.host_tokens)) return rc;
        if (const int rc = map(input, *graph.positions, graph.host_positions)) return rc;
        if (const int rc = map(*buffers.output, *graph.logits, graph.host_logits)) return rc;
        if (const int rc = at("BindSequence", input.BindSequence(sequence))) return rc;
        for (const auto* tensor : {graph.tokens, graph.positions})
            if (const int rc = at("SliceTensor", input.SliceTensor(tensor->name, 0, count))) return rc;
        if (const int rc = at("SetCsrByName", input.SetCsrByName(model.csr_names[0], count))) return rc;
        return at("SetCsrByName", input.SetCsrByName(model.csr_names[1], std::int64_t{past} + count));
    }

    template <typename Buffer, typename Element>
    static int map(Buffer& buffer, const calrt::TensorInfo& tensor, std::vector<Element>& host) {
        return at("MapBuf", buffer.MapBuf(tensor.name, host.data(), host.size() * sizeof(Element)));
    }

    // From here on the device may be at work in our memory.
    int run(Graph& graph, Buffers& buffers) {
        const auto rc = calrt::infer(device.get(), *graph.model, buffers.input.get(), buffers.output.get());
        if (const int code = at("infer", rc)) return code;
        if (const int code = at("Wait", buffers.output->Wait())) return code;
        const auto status = buffers.output->GetStatus();
        if (status == calrt::BufStatus::DONE) return success;
        return at("GetStatus: ", CALRT_LEGACY_NOT_DONE, std::to_string(static_cast<int>(status)).c_str());
    }

    static int undo(Graph& graph, Buffers& buffers) {
        for (const auto* tensor : {graph.tokens, graph.positions})
            if (const int rc = at("UndoSlice", buffers.input->UndoSlice(tensor->name))) return rc;
        return success;
    }

    int checked(Graph& graph, std::int32_t sequence, const std::int32_t* tokens, std::uint32_t count,
                std::uint32_t past, float* logits, std::uint64_t elements) {
        if (broken) return at("an earlier call left the device in doubt; only close", calrt_c::ShimCallOrder);
        if (tokens == nullptr || logits == nullptr) return at("tokens or logits is NULL", calrt_c::ShimBadArgument);
        if (elements < graph.vocabulary()) return at("the logits do not fit", calrt_c::ShimOutOfRange);
        if (count == 0 || count > graph.host_tokens.size()) return at("count of tokens", calrt_c::ShimOutOfRange);
        if (std::uint64_t{past} + count > graph.model->max_seq)
            return at("past + count is more than max_seq", calrt_c::ShimOutOfRange);
        return call(graph, sequence, tokens, count, past, logits);
    }
};

namespace {

// Nothing thrown leaves the library; `work` returns a code.
template <typename Work>
int guarded(Work work) {
    try {
        return work();
    } catch (const std::exception& error) {
        return at("exception: ", calrt_c::ShimException, error.what());
    } catch (...) {
        return at("exception of an unknown type", calrt_c::ShimException);
    }
}

// As `guarded`, for a context that must be there.
template <typename Work>
int guarded(calrt_legacy* legacy, Work work) {
    if (legacy == nullptr) return at("context is NULL", calrt_c::ShimBadArgument);
    return guarded([&] { return work(*legacy); });
}

}  // namespace

extern "C" {

int calrt_legacy_open(uint32_t device, const char* calbin, const char* prefill, const char* decode,
                      calrt_legacy** out) {
    if (calbin == nullptr || prefill == nullptr || decode == nullptr || out == nullptr)
        return at("an argument is NULL", calrt_c::ShimBadArgument);
    *out = nullptr;
    return guarded([&] {
        auto legacy = std::make_unique<calrt_legacy>();
        const int rc = legacy->open(device, calbin, prefill, decode);
        if (rc == success) *out = legacy.release();
        return rc;
    });
}

int calrt_legacy_close(calrt_legacy* legacy) {
    const std::unique_ptr<calrt_legacy> owned(legacy);
    return guarded(legacy, [](calrt_legacy& it) { return it.broken ? at("Reset", it.device->Reset()) : success; });
}

int calrt_legacy_vocabulary(calrt_legacy* legacy, uint64_t* vocabulary) {
    if (vocabulary == nullptr) return at("vocabulary is NULL", calrt_c::ShimBadArgument);
    return guarded(legacy, [&](calrt_legacy& it) {
        if (it.prefill.vocabulary() != it.decode.vocabulary())
            return at("prefill and decode have different vocabularies", calrt_c::ShimBadArgument);
        *vocabulary = it.decode.vocabulary();
        return success;
    });
}

int calrt_legacy_prefill(calrt_legacy* legacy, int32_t sequence, const int32_t* tokens, uint32_t count, uint32_t past,
                         float* logits, uint64_t elements) {
    return guarded(legacy, [&](calrt_legacy& it) {
        return it.checked(it.prefill, sequence, tokens, count, past, logits, elements);
    });
}

int calrt_legacy_decode(calrt_legacy* legacy, int32_t sequence, int32_t token, uint32_t past, float* logits,
                        uint64_t elements) {
    return guarded(legacy, [&](calrt_legacy& it) {
        return it.checked(it.decode, sequence, &token, 1, past, logits, elements);
    });
}

int calrt_legacy_forget(calrt_legacy* legacy, int32_t sequence) {
    return guarded(legacy, [&](calrt_legacy& it) {
        return it.kv->Apply(sequence, 0) ? success : at("Apply(sequence, 0): refused", CALRT_LEGACY_KV_REFUSED);
    });
}

const char* calrt_legacy_stage(void) { return stage(); }

int calrt_legacy_convert(const uint16_t* source, uint64_t elements, uint64_t base, uint64_t count, float* target) {
    return guarded([&] {
        convert(source, elements, base, count, target);
        return success;
    });
}

int calrt_legacy_plain_loop(const uint16_t* source, uint64_t base, uint64_t count, float* target) {
    for (uint64_t i = 0; i < count; ++i) target[i] = to_float(source[base + i]);
    return success;
}

}  // extern "C"
