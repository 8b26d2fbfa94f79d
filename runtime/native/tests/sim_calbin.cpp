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

// Shapes that the card could not compute: logits are [1, 1, V], and no product wraps or is beyond all measure.
void shapes() {
    const std::string logits = "BF16 1,1,512 16384";
    for (const char* instead : {"BF16 1,512 16384", "BF16 512 16384", "BF16 1,1,1,512 16384", "BF16 512,1,1 16384",
                                "BF16 1,64,8 16384", "BF16 2,1,256 16384", "BF16 1,1,33554432 1073741824"}) {
        CHECK_EQUAL(code_of(with(logits, instead)), FileCorrupt);
    }
    CHECK_EQUAL(code_of(with("positions in S32 1,256", "positions in S32 1,1,1,1,1,1,1,1,256")), FileCorrupt);
    CHECK_EQUAL(code_of(with("positions in S32 1,256", "positions in S32 1,1,1,1,1,1,1,256")), CalrtSuccess);
    CHECK_EQUAL(code_of(with("ids in S32 1,256 1024", "ids in S32 4294967296,65 1116691496960")), FileCorrupt);
    // 2^32 elements of 2 bytes in 2^31 rows are 2^64 bytes, which is 0.
    std::string wraps = with("max_seq 256 tile 16", "max_seq 256 tile 2147483648");
    wraps.replace(wraps.find(logits), logits.size(), "BF16 4294967296,1 0");
    CHECK_EQUAL(code_of(wraps), FileCorrupt);
    std::string tall = with("max_seq 256 tile 16", "max_seq 256 tile 4294967295");
    tall.replace(tall.find(logits), logits.size(), "BF16 1,1,512 4398046510080");
    CHECK_EQUAL(code_of(tall), FileCorrupt);
    std::string wide = with("max_seq 256 tile 16", "max_seq 256 tile 1");
    wide.replace(wide.find(logits), logits.size(), "BF16 1,1,16777216 33554432");
    CHECK_EQUAL(code_of(wide), CalrtSuccess);
}

// One name for two things, a role twice, and names that some reader would cut or print as something else.
void names() {
    CHECK_EQUAL(code_of(with("model embeds", "model prefill")), FileCorrupt);
    CHECK_EQUAL(code_of(with("tensor positions", "tensor ids")), FileCorrupt);
    CHECK_EQUAL(code_of(with("tensor logits", "tensor ids")), FileCorrupt);
    CHECK_EQUAL(code_of(with("csr total total", "csr cur total")), FileCorrupt);
    CHECK_EQUAL(code_of(with("csr total total", "csr total total\ncsr more total")), FileCorrupt);
    CHECK_EQUAL(code_of(with("seed 42", "seed 42\nseed 42")), FileCorrupt);
    CHECK_EQUAL(code_of(with("seed 42", "seed 42\nruntime 0.7.6")), FileCorrupt);
    for (const char character : {'\0', '\1', '\t', '\r', '\x1B', '\x7F'}) {
        const std::string bad = std::string("a") + character + "b";
        CHECK_EQUAL(code_of(with("model prefill", "model " + bad)), FileCorrupt);
        CHECK_EQUAL(code_of(with("tensor logits", "tensor " + bad)), FileCorrupt);
        CHECK_EQUAL(code_of(with("csr total", "csr " + bad)), FileCorrupt);
    }
    CHECK_EQUAL(code_of(with("csr total", "csr \xC3\xBC")), CalrtSuccess);
    const std::string vision = "model eye Vision max_batch 1 max_seq 16 tile 1\n"
                               "tensor pixels in F32 1,16 64 0 embeds\n";
    CHECK_EQUAL(code_of(with("payload", vision + "payload")), CalrtSuccess);
    CHECK_EQUAL(code_of(with("payload", vision + "tensor more in F32 1,16 64 0 embeds\npayload")), FileCorrupt);
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
    shapes();
    names();
    cut();
    return failures != 0;
}
