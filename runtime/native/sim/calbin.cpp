#include "calbin.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "model.hpp"

namespace calrt::sim {

namespace {

constexpr std::uint64_t file_bytes_max = std::uint64_t{1} << 30;
constexpr std::uint64_t tensor_bytes_max = std::uint64_t{1} << 40;
constexpr std::uint64_t output_bytes_max = std::uint64_t{1} << 32;  // the card computes it as a whole
constexpr std::size_t models_max = 64, tensors_max = 64, rank_max = 8;

using Fields = std::vector<std::string_view>;

Fields split(std::string_view text, char separator) {
    Fields fields;
    while (true) {
        const std::size_t end = text.find(separator);
        fields.push_back(text.substr(0, end));
        if (end == std::string_view::npos) return fields;
        text.remove_prefix(end + 1);
    }
}

template <class Number>
bool parse(std::string_view text, Number* out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    return error == std::errc{} && end == text.data() + text.size();
}

template <class Enum, std::size_t size>
bool parse_name(std::string_view text, const std::array<const char*, size>& names, Enum* out) {
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) return false;
    *out = static_cast<Enum>(found - names.begin());
    return true;
}

// What stands in a record as a name: something, and nothing that would end it or hide on a screen.
bool is_name(std::string_view text) {
    const auto control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7F'; };
    return !text.empty() && std::none_of(text.begin(), text.end(), control);
}

// *out *= by, unless that is 0 or more than `most`.
bool multiply(std::uint64_t by, std::uint64_t most, std::uint64_t* out) {
    if (by == 0 || *out > most / by) return false;
    *out *= by;
    return true;
}

constexpr std::array<const char*, 4> kind_names = {"PrefillIds", "PrefillEmbeds", "Decode", "Vision"};
constexpr std::array<const char*, 4> role_names = {"tokens", "embeds", "positions", "logits"};
constexpr std::array<const char*, 3> dtype_names = {"S32", "BF16", "F32"};
constexpr std::array<const char*, 2> direction_names = {"in", "out"};
constexpr std::array<const char*, 2> csr_names = {"cur", "total"};

// "0.7.6" as comparable numbers; false when it is none.
bool parse_version(std::string_view text, std::array<std::uint32_t, 3>* out) {
    const Fields parts = split(text, '.');
    if (parts.size() != out->size()) return false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!parse(parts[i], &(*out)[i])) return false;
    }
    return true;
}

bool runtime_record(const Fields& fields, bool* too_new) {
    std::array<std::uint32_t, 3> wanted{}, have{};
    if (fields.size() != 2 || !parse_version(fields[1], &wanted)) return false;
    parse_version(library_version, &have);
    *too_new = wanted > have;
    return true;
}

bool model_record(const Fields& fields, SimCalbin* calbin) {
    Model model{};
    Graph graph{};
    if (fields.size() != 9 || !is_name(fields[1]) || calbin->models.size() == models_max) return false;
    for (const Model& other : calbin->models) {
        if (other.name == fields[1]) return false;
    }
    if (!parse_name(fields[2], kind_names, &graph.kind)) return false;
    if (fields[3] != "max_batch" || !parse(fields[4], &model.max_batch) || model.max_batch == 0) return false;
    if (fields[5] != "max_seq" || !parse(fields[6], &model.max_seq) || model.max_seq == 0) return false;
    if (fields[7] != "tile" || !parse(fields[8], &model.logits_tile_d0) || model.logits_tile_d0 == 0) return false;
    model.name = fields[1];
    calbin->models.push_back(std::move(model));
    calbin->graphs.push_back(std::move(graph));
    return true;
}

// Shape and size of a tensor. An output may be a tile of several rows; an input is what its shape says.
bool shape_of(std::string_view text, std::uint32_t rows, TensorInfo* tensor) {
    std::uint64_t bytes = element_bytes(tensor->dtype);
    for (const std::string_view size : split(text, ',')) {
        std::uint64_t dimension = 0;
        if (tensor->shape.size() == rank_max || !parse(size, &dimension)) return false;
        if (!multiply(dimension, tensor_bytes_max, &bytes)) return false;
        tensor->shape.push_back(dimension);
    }
    if (tensor->is_output && !multiply(rows, output_bytes_max, &bytes)) return false;
    tensor->byte_size = bytes;
    return true;
}

// Logits are BF16 [1, 1, vocabulary], and nothing else is an output.
bool is_logits(const TensorInfo& tensor) {
    const std::vector<std::uint64_t>& shape = tensor.shape;
    return tensor.dtype == PrimitiveType::kBF16 && shape.size() == 3 && shape[0] == 1 && shape[1] == 1 &&
           shape[2] <= vocabulary_max;
}

bool tensor_record(const Fields& fields, Model* model, Graph* graph) {
    TensorInfo tensor{};
    TensorRole role{};
    std::uint64_t bytes = 0;
    if (fields.size() != 8 || !is_name(fields[1]) || model->tensors.size() == tensors_max) return false;
    if (!parse_name(fields[2], direction_names, &tensor.is_output)) return false;
    if (!parse_name(fields[3], dtype_names, &tensor.dtype) || !parse_name(fields[7], role_names, &role)) return false;
    if (!shape_of(fields[4], model->logits_tile_d0, &tensor)) return false;
    if (!parse(fields[5], &bytes) || bytes != tensor.byte_size) return false;
    if (fields[6] != "0" && fields[6] != "1") return false;
    if (tensor.is_output != (role == TensorRole::logits) || (tensor.is_output && !is_logits(tensor))) return false;
    if (std::count(graph->roles.begin(), graph->roles.end(), role) != 0) return false;
    for (const TensorInfo& other : model->tensors) {
        if (other.name == fields[1]) return false;
    }
    if (tensor.is_output) graph->vocabulary = tensor.shape.back();
    tensor.sliceable = fields[6] == "1";
    tensor.name = fields[1];
    model->tensors.push_back(std::move(tensor));
    graph->roles.push_back(role);
    return true;
}

bool csr_record(const Fields& fields, Model* model, Graph* graph) {
    std::size_t which = 0;
    if (fields.size() != 3 || !is_name(fields[1]) || !parse_name(fields[2], csr_names, &which)) return false;
    if (fields[1] == graph->csr_cur || fields[1] == graph->csr_total) return false;
    std::string& slot = which == 0 ? graph->csr_cur : graph->csr_total;
    if (!slot.empty()) return false;
    slot = fields[1];
    model->csr_names.push_back(slot);
    return true;
}

// A graph that can run has each of its tensors once, and both CSRs.
bool complete(const Model& model, const Graph& graph) {
    if (graph.kind == ModelKind::Vision) return true;
    const TensorRole first = graph.kind == ModelKind::PrefillEmbeds ? TensorRole::embeds : TensorRole::tokens;
    for (const TensorRole role : {first, TensorRole::positions, TensorRole::logits}) {
        if (std::count(graph.roles.begin(), graph.roles.end(), role) != 1) return false;
    }
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
        const bool ids = graph.roles[i] == TensorRole::tokens || graph.roles[i] == TensorRole::positions;
        if (ids && model.tensors[i].dtype != PrimitiveType::kS32) return false;
    }
    return model.tensors.size() == 3 && !graph.csr_cur.empty() && !graph.csr_total.empty();
}

ReturnCode read_file(const std::string& path, std::string* out) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) return FileNotFound;
    if (status.type() != std::filesystem::file_type::regular) return FileUnreadable;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) return errno == ENOENT ? FileNotFound : FileUnreadable;
    std::array<char, 65536> chunk;
    std::size_t got = 0;
    while ((got = std::fread(chunk.data(), 1, chunk.size(), file.get())) > 0) {
        out->append(chunk.data(), got);
        if (out->size() > file_bytes_max) return FileCorrupt;
    }
    return std::ferror(file.get()) ? FileUnreadable : CalrtSuccess;
}

ReturnCode parse_records(std::string_view text, SimCalbin* calbin) {
    bool runtime_seen = false, seed_seen = false, too_new = false;
    for (std::size_t line = 0;; ++line) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) return FileCorrupt;
        const Fields fields = split(text.substr(0, end), ' ');
        text.remove_prefix(end + 1);
        Model* const model = calbin->models.empty() ? nullptr : &calbin->models.back();
        Graph* const graph = calbin->graphs.empty() ? nullptr : &calbin->graphs.back();
        bool good = false;
        if (line == 0) {
            good = fields[0] == "CALBIN" && fields.size() == 2 && fields[1] == "1";
        } else if (fields[0] == "runtime" && !runtime_seen) {
            good = runtime_seen = runtime_record(fields, &too_new);
            if (too_new) return RuntimeTooOld;
        } else if (fields[0] == "seed" && !seed_seen) {
            good = seed_seen = fields.size() == 2 && parse(fields[1], &calbin->seed);
        } else if (fields[0] == "model") {
            good = (!model || complete(*model, *graph)) && model_record(fields, calbin);
        } else if (fields[0] == "tensor" && model) {
            good = tensor_record(fields, model, graph);
        } else if (fields[0] == "csr" && model) {
            good = csr_record(fields, model, graph);
        } else if (fields[0] == "payload") {
            good = fields.size() == 2 && parse(fields[1], &calbin->payload_bytes) && model && complete(*model, *graph);
            good = good && runtime_seen && seed_seen && text.size() == calbin->payload_bytes;
            return good ? CalrtSuccess : FileCorrupt;
        }
        if (!good) return FileCorrupt;
    }
}

}  // namespace

std::uint64_t element_bytes(PrimitiveType dtype) { return dtype == PrimitiveType::kBF16 ? 2 : 4; }

ReturnCode SimCalbin::load(const std::string& path, std::shared_ptr<SimCalbin>* out) {
    std::string text;
    if (const ReturnCode code = read_file(path, &text); code != CalrtSuccess) return code;
    if (text.compare(0, 7, "CALBIN ") != 0) return IllegalCalbin;
    auto calbin = std::make_shared<SimCalbin>();
    if (const ReturnCode code = parse_records(text, calbin.get()); code != CalrtSuccess) return code;
    for (const Graph& graph : calbin->graphs) {
        std::vector<std::uint16_t>& row = calbin->backgrounds[graph.vocabulary];
        if (row.empty()) row = background(calbin->seed, graph.vocabulary);
    }
    *out = std::move(calbin);
    return CalrtSuccess;
}

int SimCalbin::index_of(const Model& model) const {
    for (std::size_t i = 0; i < models.size(); ++i) {
        if (&models[i] == &model) return static_cast<int>(i);
    }
    return -1;
}

}  // namespace calrt::sim
