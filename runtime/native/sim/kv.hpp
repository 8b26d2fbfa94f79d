// The card's KV: per sequence the room that Apply() made, and the entries that jobs wrote.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace calrt::sim {

struct Sequence {
    std::uint32_t room = 0;              // tokens
    std::vector<std::uint64_t> entries;  // its size is the device's length
    std::uint32_t unwritten = 0;         // entries after these that the host must believe to be there: a fault
};

class Kv {
  public:
    std::uint32_t units = 0, block_tokens = 1;
    std::map<std::int32_t, Sequence> sequences;

    std::uint32_t units_used() const;
    std::uint32_t units_free() const;
    // Room for `length` tokens, or false with nothing changed. Entries beyond `length` are gone; 0 frees.
    bool apply(std::int32_t sequence, std::uint32_t length);
    std::uint32_t room(std::int32_t sequence) const;
    std::uint32_t length(std::int32_t sequence) const;
    std::uint32_t unwritten(std::int32_t sequence) const;
    // Writes entries at `past`, over and beyond what is there; a gap before them is filled with 0. Nobody checks.
    void overwrite(std::int32_t sequence, std::uint32_t past, const std::vector<std::uint64_t>& entries);

  private:
    std::uint32_t blocks(std::uint32_t tokens) const;
};

}  // namespace calrt::sim
