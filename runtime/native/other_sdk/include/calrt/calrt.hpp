// CalRT's C++ API as another vendor might have written it: the same names and signatures, another layout. The return
// codes are an `enum class`, members stand in another order, and there are methods more than anyone needs; so a shim that
// was compiled against the simulator's header could not run with this library, and the same source compiles against it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace calrt {

using KvSeqId = std::int32_t;

enum class ReturnCode : int { Success = 0, SomethingOfItsOwn = 77 };
enum class PrimitiveType : short { kF32 = 2, kBF16 = 1, kS32 = 0, kF16 = 3 };
enum class BufStatus : int { KILLED = 4, DONE_CCU_EXCEPTION = 3, DONE = 2, RUNNING = 1, IDLE = 0 };
enum class TaskType : int { kAuto = -1, kPing = 0, kPong = 1 };

struct TensorInfo {
    bool is_output;
    bool sliceable;
    std::uint64_t byte_size;
    std::string description;
    PrimitiveType dtype;
    std::string name;
    std::vector<std::uint64_t> shape;
};

struct Model {
    std::uint32_t max_seq, max_batch, logits_tile_d0;
    std::string author;
    std::vector<std::string> csr_names;
    std::vector<TensorInfo> tensors;
    std::string name;
};

class Calbin {
  public:
    virtual const std::vector<Model>& GetAllModels() const = 0;
    virtual std::string Digest() const = 0;
    static ReturnCode Load(const std::string& path, std::shared_ptr<Calbin>* out);
    virtual ~Calbin() = default;
};

class VirtualDevice {
  public:
    virtual std::uint64_t MemoryUsed() const = 0;
    virtual double Temperature() const = 0;
    virtual ReturnCode Reset() = 0;
    virtual ReturnCode ResetConfiguration() = 0;
    virtual ReturnCode ResetCCU() = 0;
    virtual ReturnCode EnableParallelMode(bool on) = 0;
    virtual ReturnCode Configure(const std::shared_ptr<Calbin>& calbin) = 0;
    static ReturnCode Open(std::uint32_t index, std::shared_ptr<VirtualDevice>* out);
    virtual ~VirtualDevice() = default;
};

class KvManager {
  public:
    virtual std::uint32_t UnitsTotal() const = 0;
    virtual std::uint32_t TokensPerUnit() const = 0;
    virtual bool canAllocate(std::uint32_t units) = 0;
    virtual bool Apply(KvSeqId sequence, std::uint32_t length) = 0;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, std::shared_ptr<KvManager>* out);
    virtual ~KvManager() = default;
};

class CalrtInputBuf {
  public:
    virtual ReturnCode BindSequence(KvSeqId sequence) = 0;
    virtual ReturnCode SetCsrByName(const std::string& name, std::int64_t value) = 0;
    virtual ReturnCode UndoSlice(const std::string& tensor) = 0;
    virtual ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) = 0;
    virtual ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) = 0;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                             std::shared_ptr<CalrtInputBuf>* out);
    virtual ~CalrtInputBuf() = default;
};

class CalrtOutputBuf {
  public:
    virtual ReturnCode TensorSize(const std::string& tensor, std::uint64_t* bytes) = 0;
    virtual BufStatus GetStatus() = 0;
    virtual ReturnCode Wait() = 0;
    virtual ReturnCode UndoSlice(const std::string& tensor) = 0;
    virtual ReturnCode SliceTensor(const std::string& tensor, std::uint64_t offset, std::uint64_t size) = 0;
    virtual ReturnCode MapBuf(const std::string& tensor, void* host, std::uint64_t bytes) = 0;
    static ReturnCode Create(const std::shared_ptr<VirtualDevice>& device, const Model& model,
                             std::shared_ptr<CalrtOutputBuf>* out);
    virtual ~CalrtOutputBuf() = default;
};

ReturnCode infer(VirtualDevice* device, const Model& model, CalrtInputBuf* input, CalrtOutputBuf* output);
ReturnCode infer_with_fixed_task_type(VirtualDevice* device, const Model& model, CalrtInputBuf* input,
                                      CalrtOutputBuf* output, TaskType task);

std::string Version();

}  // namespace calrt
