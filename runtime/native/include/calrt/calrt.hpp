// The CalRT C++ API, as the executor's specification names it.
//
// The vendor's SDK cannot be had, so this header is ours: the names are the specification's, and wherever it gives no
// signature the plainest was chosen. Each such choice is an assumption, marked [An], and listed in docs/calrt-api.md.
// On a target machine the vendor's header stands in its place; only the shim (shim/calrt_c.cpp) knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calexec_tables.hpp"  // generated: enum ReturnCode : int, from machines/errors.py

namespace calrt {

using KvSeqId = std::int32_t;

enum class PrimitiveType : int { kS32 = 0, kBF16 = 1, kF32 = 2 };

// [A1] Only DONE_CCU_EXCEPTION is named (§6.5); the others are what such an interface cannot do without.
enum class BufStatus : int { IDLE = 0, RUNNING = 1, DONE = 2, DONE_CCU_EXCEPTION = 3, KILLED = 4 };

// [A2] The two engines of §4.2, as an argument of infer_with_fixed_task_type.
enum class TaskType : int { kPing = 0, kPong = 1 };

struct TensorInfo {
    std::string name;
    std::vector<std::uint64_t> shape;  // logical; logits are [1, 1, vocabulary]
    PrimitiveType dtype;
    std::uint64_t byte_size;  // ByteSize: physical, so of all rows of an output tile
    bool sliceable;
    bool is_output;
};

struct Model {
    std::string name;
    std::vector<TensorInfo> tensors;
    std::vector<std::string> csr_names;
    std::uint32_t logits_tile_d0;  // rows of the output tile; the last token's row is (tokens - 1) % logits_tile_d0
    std::uint32_t max_batch;
    std::uint32_t max_seq;
};

class Calbin {
  public:
    virtual ~Calbin() = default;
    static ReturnCode Load(const std::string& path, std::shared_ptr<Calbin>* out);
    virtual const std::vector<Model>& GetAllModels() const = 0;
};

class VirtualDevice {
  public:
    virtual ~VirtualDevice() = default;
    // [A3] Devices have a number. Opening one that is open elsewhere in this process is AlreadyRegistered.
    static ReturnCode Open(std::uint32_t index, std::shared_ptr<VirtualDevice>* out);
    virtual ReturnCode Configure(const std::shared_ptr<Calbin>& calbin) = 0;
    virtual ReturnCode EnableParallelMode(bool on) = 0;
    virtual ReturnCode ResetCCU() = 0;            // [A4] keeps the configuration
    virtual ReturnCode ResetConfiguration() = 0;  // [A4] the device must be configured again
    virtual ReturnCode Reset() = 0;               // [A4] the device must be configured again
    virtual std::uint64_t MemoryUsed() const = 0;  // [A5] bytes of device memory
};

class KvManager {
  public:
    virtual ~KvManager() = default;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, std::shared_ptr<KvManager>* out);
    // [A6] Makes room for `length` tokens; less than the device holds truncates, 0 frees. False gives no reason (§7).
    virtual bool Apply(KvSeqId sequence, std::uint32_t length) = 0;
    // [A7] Whether `units` more blocks of KV could be had now (§7: canAllocate(1)).
    virtual bool canAllocate(std::uint32_t units) = 0;
    // [A8] Tokens of one unit, and units in all: what an admission needs to refuse the impossible.
    virtual std::uint32_t TokensPerUnit() const = 0;
    virtual std::uint32_t UnitsTotal() const = 0;
};

// [A9] Buffers belong to a model of a configured device. When the configuration goes they are dead and only destroyed;
// a ResetCCU kills those in flight.
class CalrtInputBuf {
  public:
    virtual ~CalrtInputBuf() = default;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                             std::shared_ptr<CalrtInputBuf>* out);
    virtual ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) = 0;
    // [A10] Offset and size are in elements of the flattened tensor.
    virtual ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) = 0;
    virtual ReturnCode UndoSlice(const std::string& tensor) = 0;
    // [A11] cur_seq is the number of tokens of this call, total_seq the sequence's length after it.
    virtual ReturnCode SetCsrByName(const std::string& name, std::int64_t value) = 0;
    // [A12] Nothing in the specification says whose KV a graph reads; this does.
    virtual ReturnCode BindSequence(KvSeqId sequence) = 0;
};

class CalrtOutputBuf {
  public:
    virtual ~CalrtOutputBuf() = default;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                             std::shared_ptr<CalrtOutputBuf>* out);
    virtual ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) = 0;
    virtual ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) = 0;
    virtual ReturnCode UndoSlice(const std::string& tensor) = 0;
    virtual ReturnCode Wait() = 0;  // [A13] Blocks; Timeout comes from the runtime's own limit.
    virtual BufStatus GetStatus() = 0;
    virtual ReturnCode TensorSize(const std::string& tensor, std::uint64_t* bytes) = 0;  // bytes the device wrote
};

ReturnCode infer(VirtualDevice* device, const Model& model, CalrtInputBuf* input, CalrtOutputBuf* output);
ReturnCode infer_with_fixed_task_type(VirtualDevice* device, const Model& model, CalrtInputBuf* input,
                                      CalrtOutputBuf* output, TaskType task);

std::string Version();  // [A14] "0.7.6"

}  // namespace calrt
