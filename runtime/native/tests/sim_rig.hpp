// What the simulator's tests share: a check, a small calbin, and a host that makes the calls in their order.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "calrt/calrt.hpp"
#include "calrt_sim.h"

inline int failures = 0;

// Counts and goes on; main() returns `failures != 0`.
#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            ++failures;                                                                                                \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                    \
        }                                                                                                              \
    } while (0)

#define CHECK_EQUAL(got, wanted)                                                                                       \
    do {                                                                                                               \
        const auto got_value = static_cast<long long>(got), wanted_value = static_cast<long long>(wanted);             \
        if (got_value != wanted_value) {                                                                               \
            ++failures;                                                                                                \
            std::fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_value, wanted_value);  \
        }                                                                                                              \
    } while (0)

namespace rig {

constexpr std::uint64_t seed = 42, vocabulary = 512, hidden = 4;
constexpr std::uint32_t max_seq = 256, tile = 16;
enum Kind { prefill, embeds, decode };

inline std::string calbin_text() {
    return "CALBIN 1\nruntime 0.7.6\nseed 42\n"
           "model prefill PrefillIds max_batch 1 max_seq 256 tile 16\n"
           "tensor ids in S32 1,256 1024 1 tokens\n"
           "tensor positions in S32 1,256 1024 1 positions\n"
           "tensor logits out BF16 1,1,512 16384 1 logits\n"
           "csr cur cur\ncsr total total\n"
           "model embeds PrefillEmbeds max_batch 1 max_seq 256 tile 16\n"
           "tensor ids in BF16 1,256,4 2048 1 embeds\n"
           "tensor positions in S32 1,256 1024 1 positions\n"
           "tensor logits out BF16 1,1,512 16384 1 logits\n"
           "csr cur cur\ncsr total total\n"
           "model decode Decode max_batch 1 max_seq 256 tile 1\n"
           "tensor ids in S32 1,1 4 1 tokens\n"
           "tensor positions in S32 1,1 4 1 positions\n"
           "tensor logits out BF16 1,1,512 1024 0 logits\n"
           "csr cur cur\ncsr total total\n"
           "payload 4\nABCD";
}

// Loads `text` as a calbin file.
inline calrt::ReturnCode load(const std::string& text, std::shared_ptr<calrt::Calbin>* out) {
    static int count = 0;
    const auto path = std::filesystem::temp_directory_path() /
                      ("calexec_sim_" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".calbin");
    std::ofstream(path, std::ios::binary) << text;
    const calrt::ReturnCode code = calrt::Calbin::Load(path.string(), out);
    std::filesystem::remove(path);
    return code;
}

using Keys = std::vector<std::pair<const char*, std::int64_t>>;

// One input and one output of a model, mapped to memory of their own.
struct Slot {
    std::shared_ptr<calrt::CalrtInputBuf> input;
    std::shared_ptr<calrt::CalrtOutputBuf> output;
    std::vector<std::int32_t> ids, positions;
    std::vector<std::uint16_t> rows, logits;  // rows: embeddings
    Kind kind;
};

class Card {
  public:
    explicit Card(std::uint32_t number = 0, const Keys& keys = {}) : number(number) {
        CHECK_EQUAL(calrtsim_power_cycle(number), 0);
        for (const auto& [key, value] : keys) set(key, value);
        CHECK_EQUAL(load(calbin_text(), &calbin), calrt::CalrtSuccess);
        CHECK_EQUAL(calrt::VirtualDevice::Open(number, &device), calrt::CalrtSuccess);
        configure();
    }

    void configure() {
        CHECK_EQUAL(device->Configure(calbin), calrt::CalrtSuccess);
        CHECK_EQUAL(calrt::KvManager::Create(device, &kv), calrt::CalrtSuccess);
    }

    const calrt::Model& model(Kind kind) const { return calbin->GetAllModels()[kind]; }

    std::unique_ptr<Slot> slot(Kind kind) {
        auto made = std::make_unique<Slot>();
        made->kind = kind;
        CHECK_EQUAL(calrt::CalrtInputBuf::Create(device, model(kind), &made->input), calrt::CalrtSuccess);
        CHECK_EQUAL(calrt::CalrtOutputBuf::Create(device, model(kind), &made->output), calrt::CalrtSuccess);
        made->positions.resize(kind == decode ? 1 : max_seq);
        made->ids.resize(made->positions.size());
        made->rows.resize(max_seq * hidden);
        made->logits.resize(vocabulary * (kind == decode ? 1 : tile));
        void* const first = kind == embeds ? static_cast<void*>(made->rows.data()) : made->ids.data();
        const std::size_t first_bytes = kind == embeds ? made->rows.size() * 2 : made->ids.size() * 4;
        CHECK_EQUAL(made->input->MapBuf("ids", first, first_bytes), calrt::CalrtSuccess);
        std::vector<std::int32_t>& positions = made->positions;
        std::vector<std::uint16_t>& logits = made->logits;
        CHECK_EQUAL(made->input->MapBuf("positions", positions.data(), positions.size() * 4), calrt::CalrtSuccess);
        CHECK_EQUAL(made->output->MapBuf("logits", logits.data(), logits.size() * 2), calrt::CalrtSuccess);
        return made;
    }

    // Everything before infer(): tokens at `past`, slices, CSRs, the sequence and its room.
    void prepare(Slot& slot, const std::vector<std::int32_t>& tokens, std::uint32_t past, std::int32_t sequence = 0) {
        const auto count = static_cast<std::uint32_t>(tokens.size());
        for (std::uint32_t i = 0; i < count; ++i) {
            slot.ids[i] = tokens[i];
            slot.positions[i] = static_cast<std::int32_t>(past + i);
        }
        CHECK(kv->Apply(sequence, past + count));
        if (slot.kind != decode) {
            const std::uint64_t width = slot.kind == embeds ? hidden : 1;
            CHECK_EQUAL(slot.input->SliceTensor("ids", 0, count * width), calrt::CalrtSuccess);
            CHECK_EQUAL(slot.input->SliceTensor("positions", 0, count), calrt::CalrtSuccess);
        }
        CHECK_EQUAL(slot.input->SetCsrByName("cur", count), calrt::CalrtSuccess);
        CHECK_EQUAL(slot.input->SetCsrByName("total", past + count), calrt::CalrtSuccess);
        CHECK_EQUAL(slot.input->BindSequence(sequence), calrt::CalrtSuccess);
    }

    calrt::ReturnCode infer(Slot& slot) {
        return calrt::infer(device.get(), model(slot.kind), slot.input.get(), slot.output.get());
    }

    // A whole job, which must succeed; returns the first index of the greatest logit of the last token's row.
    std::int32_t run(Slot& slot, const std::vector<std::int32_t>& tokens, std::uint32_t past,
                     std::int32_t sequence = 0) {
        prepare(slot, tokens, past, sequence);
        CHECK_EQUAL(infer(slot), calrt::CalrtSuccess);
        finish(slot);
        return argmax(slot, tokens.size());
    }

    void finish(Slot& slot) {
        CHECK_EQUAL(slot.output->Wait(), calrt::CalrtSuccess);
        CHECK_EQUAL(slot.output->GetStatus(), calrt::BufStatus::DONE);
    }

    std::int32_t argmax(const Slot& slot, std::size_t count) const {
        const std::uint16_t* const row = &slot.logits[(slot.kind == decode ? 0 : (count - 1) % tile) * vocabulary];
        std::size_t best = 0;
        for (std::size_t v = 0; v < vocabulary; ++v) {
            if (value(row[v]) > value(row[best])) best = v;
        }
        return static_cast<std::int32_t>(best);
    }

    static float value(std::uint16_t bf16) {
        const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    }

    void set(const char* key, std::int64_t to) { CHECK_EQUAL(calrtsim_set(number, key, to), 0); }
    std::int64_t truth(const char* name) const {
        std::int64_t out = -999;
        CHECK_EQUAL(calrtsim_truth(number, name, &out), 0);
        return out;
    }
    std::int64_t kv_length(std::int32_t sequence = 0) const {
        std::int64_t length = 0;
        std::uint64_t digest = 0;
        CHECK_EQUAL(calrtsim_kv(number, sequence, &length, &digest), 0);
        return length;
    }
    bool step() const {
        int moved = 0;
        CHECK_EQUAL(calrtsim_step(number, &moved), 0);
        return moved != 0;
    }
    void settle() const {
        while (step()) {
        }
    }
    void advance(std::int64_t us) const { CHECK_EQUAL(calrtsim_advance(number, us), 0); }
    void fault(const char* call, const char* action, std::int64_t a = 0, std::int64_t b = -1,
               std::int64_t nth = 1) const {
        CHECK_EQUAL(calrtsim_fault(number, call, nth, action, a, b), 0);
    }
    // The violations' kinds, in their order, separated by spaces.
    std::string violations() const {
        std::vector<calrtsim_violation> found(64);
        std::uint32_t read = 0;
        std::int64_t total = 0;
        CHECK_EQUAL(calrtsim_violations(number, 0, 64, found.data(), &read, &total), 0);
        CHECK_EQUAL(read, total);
        std::string kinds;
        for (std::uint32_t i = 0; i < read; ++i) kinds += (i ? " " : "") + std::string(found[i].kind);
        return kinds;
    }

    const std::uint32_t number;
    std::shared_ptr<calrt::Calbin> calbin;
    std::shared_ptr<calrt::VirtualDevice> device;
    std::shared_ptr<calrt::KvManager> kv;
};

inline bool violations_are(const Card& card, const std::string& wanted) {
    const std::string got = card.violations();
    if (got != wanted) std::fprintf(stderr, "violations: [%s], wanted [%s]\n", got.c_str(), wanted.c_str());
    return got == wanted;
}

}  // namespace rig
