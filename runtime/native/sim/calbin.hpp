// The simulator's calbin: text records, then a payload. docs/simulator.md has the format.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calrt/calrt.hpp"

namespace calrt::sim {

inline constexpr const char* library_version = "0.7.6";

inline constexpr std::uint64_t vocabulary_max = std::uint64_t{1} << 24;

enum class ModelKind { PrefillIds, PrefillEmbeds, Decode, Vision };
enum class TensorRole { tokens, embeds, positions, logits };

// What the graph knows about itself beyond what CalRT tells the host. Same order as Model::tensors.
struct Graph {
    ModelKind kind;
    std::vector<TensorRole> roles;
    std::string csr_cur, csr_total;
    std::uint64_t vocabulary;  // 0: no logits
};

class SimCalbin final : public Calbin {
  public:
    static ReturnCode load(const std::string& path, std::shared_ptr<SimCalbin>* out);
    const std::vector<Model>& GetAllModels() const override { return models; }
    // The number of a model that is one of GetAllModels(), itself and no copy of it; -1 otherwise.
    int index_of(const Model& model) const;

    const std::vector<std::uint16_t>& background_of(std::size_t model) const {
        return backgrounds.at(graphs[model].vocabulary);
    }

    std::uint64_t seed = 0, payload_bytes = 0;
    std::vector<Model> models;
    std::vector<Graph> graphs;
    std::map<std::uint64_t, std::vector<std::uint16_t>> backgrounds;  // by vocabulary
};

std::uint64_t element_bytes(PrimitiveType dtype);

}  // namespace calrt::sim
