// A scripted CalRT: every API does what `other_sdk_script` last said for it, and computes nothing.
//
// An API's script is a way (return a number, throw one of three things, or block until released) and the number: the
// return code, the bool, the status or the size. Without a script an API returns success, true, DONE and zero. The last
// arguments of each API are kept as text, so that a test can see what arrived.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "calrt/calrt.hpp"

#define OTHER_SDK_API extern "C" __attribute__((visibility("default")))

namespace {

enum Way { kReturn = 0, kThrowRuntimeError = 1, kThrowBadAlloc = 2, kThrowInt = 3, kBlock = 4, kNothingMade = 5 };

struct Script {
    int way = kReturn;
    long long number = 0;
};

struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, Script> scripts;
    std::map<std::string, std::string> arguments;
    std::map<std::string, int> alive;
    int blocked = 0;
    bool released = false;
};

State& state() {
    static State* const it = std::make_unique<State>().release();  // outlives every object of this library
    return *it;
}

// Follows the script of `api`; what it returns is the scripted number, or `otherwise`.
template <typename... Arguments>
long long follow(const char* api, long long otherwise, const Arguments&... arguments) {
    std::unique_lock<std::mutex> lock(state().mutex);
    std::ostringstream text("called ", std::ios::ate);
    ((text << arguments << ' '), ...);
    state().arguments[api] = text.str();
    const auto found = state().scripts.find(api);
    if (found == state().scripts.end()) return otherwise;
    const Script script = found->second;
    switch (script.way) {
        case kThrowRuntimeError: throw std::runtime_error(std::string("scripted ") + api);
        case kThrowBadAlloc: throw std::bad_alloc();
        case kThrowInt: throw 42;
        case kBlock:
            ++state().blocked;
            state().changed.notify_all();
            state().changed.wait(lock, [] { return state().released; });
            --state().blocked;
            state().changed.notify_all();
            return script.number;
        default: return script.number;
    }
}

template <typename... Arguments>
calrt::ReturnCode code(const char* api, const Arguments&... arguments) {
    return static_cast<calrt::ReturnCode>(static_cast<int>(follow(api, 0, arguments...)));
}

// Counts the objects of a kind that are alive.
class Counted {
  public:
    explicit Counted(const char* kind) : kind_(kind) { add(1); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() { add(-1); }

  private:
    void add(int n) {
        const std::lock_guard<std::mutex> lock(state().mutex);
        state().alive[kind_] += n;
    }
    const char* kind_;
};

template <typename Made, typename Out, typename... Arguments>
calrt::ReturnCode make(const char* api, Out* out, const Arguments&... arguments) {
    const calrt::ReturnCode returned = code(api, arguments...);
    bool nothing;
    {
        const std::lock_guard<std::mutex> lock(state().mutex);
        const auto found = state().scripts.find(api);
        nothing = found != state().scripts.end() && found->second.way == kNothingMade;
    }
    if (returned == calrt::ReturnCode::Success && !nothing) *out = std::make_shared<Made>();
    return returned;
}

calrt::Model model(const std::string& name, std::size_t rank) {
    calrt::Model made;
    made.name = name;
    made.author = "nobody";
    made.csr_names = {"cur_seq_len", "total_seq_len"};
    made.max_batch = 1;
    made.max_seq = 128;
    made.logits_tile_d0 = 16;
    calrt::TensorInfo tokens;
    tokens.name = "tokens";
    tokens.description = "not asked for";
    tokens.shape = {1, 128};
    tokens.dtype = calrt::PrimitiveType::kS32;
    tokens.byte_size = 512;
    tokens.sliceable = true;
    tokens.is_output = false;
    calrt::TensorInfo logits = tokens;
    logits.name = "logits";
    logits.shape.assign(rank, 1);
    logits.shape.back() = (1ull << 40) + 3;
    logits.dtype = calrt::PrimitiveType::kF16;  // none of the three that the specification knows
    logits.byte_size = (1ull << 45) + 1;
    logits.sliceable = false;
    logits.is_output = true;
    made.tensors = {tokens, logits};
    return made;
}

class Calbin final : public calrt::Calbin, Counted {
  public:
    Calbin()
        : Counted("calbin"), models_{model("first", 3), model("eight", 8), model("nine", 9), model(std::string(255, 'n'), 1),
                  model(std::string(256, 'n'), 1)} {}
    const std::vector<calrt::Model>& GetAllModels() const override {
        follow("Calbin::GetAllModels", 0);
        return models_;
    }
    std::string Digest() const override { return "none"; }

  private:
    std::vector<calrt::Model> models_;
};

class Device final : public calrt::VirtualDevice, Counted {
  public:
    Device() : Counted("device") {}
    std::uint64_t MemoryUsed() const override {
        return static_cast<std::uint64_t>(follow("VirtualDevice::MemoryUsed", 0));
    }
    double Temperature() const override { return 40; }
    calrt::ReturnCode Reset() override { return code("VirtualDevice::Reset"); }
    calrt::ReturnCode ResetConfiguration() override { return code("VirtualDevice::ResetConfiguration"); }
    calrt::ReturnCode ResetCCU() override { return code("VirtualDevice::ResetCCU"); }
    calrt::ReturnCode EnableParallelMode(bool on) override { return code("VirtualDevice::EnableParallelMode", on); }
    calrt::ReturnCode Configure(const std::shared_ptr<calrt::Calbin>& calbin) override {
        return code("VirtualDevice::Configure", calbin != nullptr);
    }
};

class Kv final : public calrt::KvManager, Counted {
  public:
    Kv() : Counted("kv") {}
    std::uint32_t UnitsTotal() const override {
        return static_cast<std::uint32_t>(follow("KvManager::UnitsTotal", 0));
    }
    std::uint32_t TokensPerUnit() const override {
        return static_cast<std::uint32_t>(follow("KvManager::TokensPerUnit", 0));
    }
    bool canAllocate(std::uint32_t units) override { return follow("KvManager::canAllocate", 1, units) != 0; }
    bool Apply(calrt::KvSeqId sequence, std::uint32_t length) override {
        return follow("KvManager::Apply", 1, sequence, length) != 0;
    }
};

class Input final : public calrt::CalrtInputBuf, Counted {
  public:
    Input() : Counted("input") {}
    calrt::ReturnCode BindSequence(calrt::KvSeqId sequence) override {
        return code("CalrtInputBuf::BindSequence", sequence);
    }
    calrt::ReturnCode SetCsrByName(const std::string& name, std::int64_t value) override {
        return code("CalrtInputBuf::SetCsrByName", name, value);
    }
    calrt::ReturnCode UndoSlice(const std::string& tensor) override { return code("CalrtInputBuf::UndoSlice", tensor); }
    calrt::ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) override {
        return code("CalrtInputBuf::SliceTensor", tensor, offset, size);
    }
    calrt::ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) override {
        return code("CalrtInputBuf::MapBuf", tensor, reinterpret_cast<std::uintptr_t>(host), bytes);
    }
};

class Output final : public calrt::CalrtOutputBuf, Counted {
  public:
    Output() : Counted("output") {}
    calrt::ReturnCode TensorSize(const std::string& tensor, std::uint64_t* bytes) override {
        *bytes = 4711;  // also when it fails: the caller must not see it then
        return code("CalrtOutputBuf::TensorSize", tensor);
    }
    calrt::BufStatus GetStatus() override {
        return static_cast<calrt::BufStatus>(static_cast<int>(follow("CalrtOutputBuf::GetStatus", 2)));
    }
    calrt::ReturnCode Wait() override { return code("CalrtOutputBuf::Wait"); }
    calrt::ReturnCode UndoSlice(const std::string& tensor) override {
        return code("CalrtOutputBuf::UndoSlice", tensor);
    }
    calrt::ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) override {
        return code("CalrtOutputBuf::SliceTensor", tensor, offset, size);
    }
    calrt::ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) override {
        return code("CalrtOutputBuf::MapBuf", tensor, reinterpret_cast<std::uintptr_t>(host), bytes);
    }
};

}  // namespace

namespace calrt {

ReturnCode Calbin::Load(const std::string& path, std::shared_ptr<Calbin>* out) {
    return make<::Calbin>("Calbin::Load", out, path);
}
ReturnCode VirtualDevice::Open(std::uint32_t index, std::shared_ptr<VirtualDevice>* out) {
    return make<::Device>("VirtualDevice::Open", out, index);
}
ReturnCode KvManager::Create(const std::shared_ptr<VirtualDevice>&, std::shared_ptr<KvManager>* out) {
    return make<::Kv>("KvManager::Create", out);
}
ReturnCode CalrtInputBuf::Create(const std::shared_ptr<VirtualDevice>&, const Model& model,
                                 std::shared_ptr<CalrtInputBuf>* out) {
    return make<::Input>("CalrtInputBuf::Create", out, model.name);
}
ReturnCode CalrtOutputBuf::Create(const std::shared_ptr<VirtualDevice>&, const Model& model,
                                  std::shared_ptr<CalrtOutputBuf>* out) {
    return make<::Output>("CalrtOutputBuf::Create", out, model.name);
}
ReturnCode infer(VirtualDevice*, const Model& model, CalrtInputBuf*, CalrtOutputBuf*) {
    return code("infer", model.name);
}
ReturnCode infer_with_fixed_task_type(VirtualDevice*, const Model& model, CalrtInputBuf*, CalrtOutputBuf*,
                                      TaskType task) {
    return code("infer_with_fixed_task_type", model.name, static_cast<int>(task));
}
std::string Version() {
    follow("Version", 0);
    return "9.8.7-other";
}

}  // namespace calrt

// -- the script --

OTHER_SDK_API void other_sdk_script(const char* api, int way, long long number) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().scripts[api] = {way, number};
    if (way == kBlock) state().released = false;
}

// Forgets every script and lets everything that is blocked go on.
OTHER_SDK_API void other_sdk_clear() {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().scripts.clear();
    state().released = true;
    state().changed.notify_all();
}

// Blocks until `count` calls are blocked by a script; 0 after `timeout_ms` without them, else 1.
OTHER_SDK_API int other_sdk_await_blocked(int count, int timeout_ms) {
    std::unique_lock<std::mutex> lock(state().mutex);
    return state().changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return state().blocked == count; });
}

OTHER_SDK_API int other_sdk_alive(const char* kind) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().alive[kind];
}

// "called " and the arguments of the last call of `api`, each followed by a space; empty if there was none since the
// last question.
OTHER_SDK_API void other_sdk_arguments(const char* api, char* text, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::snprintf(text, bytes, "%s", state().arguments[api].c_str());
    state().arguments.erase(api);
}
