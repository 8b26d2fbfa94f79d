// The calbin's reader: what it says of a good file, and the code for each way to be bad.
#include "sim_rig.hpp"

using namespace calrt;

namespace {

std::string with(const std::string& what, const std::string& instead) {
    std::string text = rig::calbin_text();
    const std::size_t at = text.find(what);
    CHECK(at != std::string::npos);
    return text.replace(at, what.size(), instead);
}

ReturnCode code_of(const std::string& text) {
    std::shared_ptr<Calbin> calbin;
    const ReturnCode code = rig::load(text, &calbin);
    CHECK((code == CalrtSuccess) == (calbin != nullptr));
    return code;
}

void good() {
    std::shared_ptr<Calbin> calbin;
    CHECK_EQUAL(rig::load(rig::calbin_text(), &calbin), CalrtSuccess);
    const std::vector<Model>& models = calbin->GetAllModels();
    CHECK_EQUAL(models.size(), 3);
    const Model& prefill = models[0];
    CHECK(prefill.name == "prefill" && prefill.max_batch == 1 && prefill.max_seq == 256);
    CHECK_EQUAL(prefill.logits_tile_d0, 16);
    CHECK((prefill.csr_names == std::vector<std::string>{"cur", "total"}));
    const TensorInfo& logits = prefill.tensors[2];
    CHECK(logits.name == "logits" && logits.is_output && logits.sliceable && logits.dtype == PrimitiveType::kBF16);
    CHECK((logits.shape == std::vector<std::uint64_t>{1, 1, 512}) && logits.byte_size == 16384);
    CHECK(!models[2].tensors[2].sliceable && models[2].logits_tile_d0 == 1);
}

void bad() {
    std::shared_ptr<Calbin> calbin;
    CHECK_EQUAL(Calbin::Load("/nowhere/at.calbin", &calbin), FileNotFound);
    CHECK_EQUAL(Calbin::Load("/tmp", &calbin), FileUnreadable);
    CHECK_EQUAL(code_of(""), IllegalCalbin);
    CHECK_EQUAL(code_of("{\"seed\": 42}"), IllegalCalbin);
    CHECK_EQUAL(code_of(with("CALBIN 1", "CALBIN 2")), FileCorrupt);
    CHECK_EQUAL(code_of(with("runtime 0.7.6", "runtime 0.7.7")), RuntimeTooOld);
    CHECK_EQUAL(code_of(with("runtime 0.7.6", "runtime 0.10.0")), RuntimeTooOld);
    CHECK_EQUAL(code_of(with("runtime 0.7.6", "runtime 0.7.5")), CalrtSuccess);
    CHECK_EQUAL(code_of(with("ABCD", "ABC")), FileCorrupt);
    CHECK_EQUAL(code_of(with("ABCD", "ABCDE")), FileCorrupt);
    for (const char* line :
         {"runtime 0.7.6\n", "seed 42\n", "csr cur cur\n", "tensor ids in S32 1,256 1024 1 tokens\n"}) {
        CHECK_EQUAL(code_of(with(line, "")), FileCorrupt);
    }
    CHECK_EQUAL(code_of(with("seed 42", "seed -1")), FileCorrupt);
    CHECK_EQUAL(code_of(with("seed 42", "seed 18446744073709551616")), FileCorrupt);
    CHECK_EQUAL(code_of(with("PrefillIds", "Prefill")), FileCorrupt);
    CHECK_EQUAL(code_of(with("tile 16", "tile 0")), FileCorrupt);
    CHECK_EQUAL(code_of(with("1,256 1024", "1,256 1020")), FileCorrupt);
    CHECK_EQUAL(code_of(with("1,1,512 16384", "1,1,512 1024")), FileCorrupt);
    CHECK_EQUAL(code_of(with("1,256 1024", "4294967296,4294967296 0")), FileCorrupt);
    CHECK_EQUAL(code_of(with("seed 42", "seed 42\ncolour blue")), FileCorrupt);
}

// Any prefix of a good file is corrupt (or no calbin at all), and none of them crashes the reader.
void cut() {
    const std::string text = rig::calbin_text();
    for (std::size_t size = 0; size < text.size(); ++size) {
        CHECK_EQUAL(code_of(text.substr(0, size)), size < 7 ? IllegalCalbin : FileCorrupt);
    }
}

}  // namespace

int main() {
    good();
    bad();
    cut();
    return failures != 0;
}
