// Names that C would cut: the shim refuses to hand them out, with a text, and leaves the place for them as it was.
//
// This file is the CalRT that the shim stands on here; what it does not need it does not have.
#include <cstring>
#include <string>

#include "calexec_tables.hpp"
#include "calrt/calrt.hpp"
#include "calrt_c.h"
#include "check.hpp"

namespace {

const std::string cut("cur\0junk", 8), too_long(CALRT_C_NAME_BYTES, 'x'), longest(CALRT_C_NAME_BYTES - 1, 'x');

class Named final : public calrt::Calbin {
  public:
    const std::vector<calrt::Model>& GetAllModels() const override { return models; }
    std::vector<calrt::Model> models;
};

calrt::Model model_called(const std::string& name) {
    return {name, {{name, {1}, calrt::PrimitiveType::kS32, 4, false, false}}, {name}, 1, 1, 1};
}

}  // namespace

namespace calrt {

ReturnCode Calbin::Load(const std::string&, std::shared_ptr<Calbin>* out) {
    const auto made = std::make_shared<Named>();
    for (const std::string& name : {cut, std::string("\0", 1), too_long, longest}) {
        made->models.push_back(model_called(name));
    }
    *out = made;
    return CalrtSuccess;
}

ReturnCode VirtualDevice::Open(std::uint32_t, std::shared_ptr<VirtualDevice>*) { return Unsupported; }
ReturnCode KvManager::Create(const std::shared_ptr<VirtualDevice>&, std::shared_ptr<KvManager>*) { return Unsupported; }
ReturnCode CalrtInputBuf::Create(const std::shared_ptr<VirtualDevice>&, const Model&, std::shared_ptr<CalrtInputBuf>*) {
    return Unsupported;
}
ReturnCode CalrtOutputBuf::Create(const std::shared_ptr<VirtualDevice>&, const Model&,
                                  std::shared_ptr<CalrtOutputBuf>*) {
    return Unsupported;
}
ReturnCode infer(VirtualDevice*, const Model&, CalrtInputBuf*, CalrtOutputBuf*) { return Unsupported; }
ReturnCode infer_with_fixed_task_type(VirtualDevice*, const Model&, CalrtInputBuf*, CalrtOutputBuf*, TaskType) {
    return Unsupported;
}
std::string Version() { return cut; }

}  // namespace calrt

namespace {

bool said(const char* words) {
    char text[1024];
    CHECK(calrt_c_last_error(text, sizeof text) == 0);
    return std::strstr(text, words) != nullptr;
}

void refused(calrt_c_handle calbin, uint32_t number, const char* why) {
    using calrt_c::ShimBadArgument;
    calrt_c_model model{};
    calrt_c_tensor tensor{};
    char csr[CALRT_C_NAME_BYTES] = "as it was";
    model.max_seq = tensor.rank = 77;
    CHECK(calrt_c_calbin_model(calbin, number, &model) == ShimBadArgument && said(why) && said("model's name"));
    CHECK(calrt_c_calbin_tensor(calbin, number, 0, &tensor) == ShimBadArgument && said(why) && said("tensor's name"));
    CHECK(calrt_c_calbin_csr(calbin, number, 0, csr, sizeof csr) == ShimBadArgument && said(why) && said("CSR's name"));
    CHECK(model.max_seq == 77 && tensor.rank == 77 && std::string(csr) == "as it was");
}

}  // namespace

int main() {
    calrt_c_handle calbin = 0;
    CHECK(calrt_c_calbin_load("any", &calbin) == 0);
    refused(calbin, 0, "NUL");
    refused(calbin, 1, "NUL");
    refused(calbin, 2, "257");
    calrt_c_model model{};
    CHECK(calrt_c_calbin_model(calbin, 3, &model) == 0 && model.name == longest);
    char text[64] = "as it was";
    CHECK(calrt_c_version(text, sizeof text) == calrt_c::ShimBadArgument && said("NUL"));
    CHECK(std::string(text) == "as it was");
    CHECK(calrt_c_calbin_release(calbin) == 0);
    return failures();
}
