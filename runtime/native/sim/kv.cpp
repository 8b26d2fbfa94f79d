#include "kv.hpp"

#include <algorithm>

namespace calrt::sim {

std::uint32_t Kv::blocks(std::uint32_t tokens) const {
    return tokens / block_tokens + (tokens % block_tokens != 0);
}

std::uint32_t Kv::units_used() const {
    std::uint32_t used = 0;
    for (const auto& [id, sequence] : sequences) used += blocks(sequence.room);
    return used;
}

std::uint32_t Kv::units_free() const {
    const std::uint32_t used = units_used();
    return used < units ? units - used : 0;
}

bool Kv::apply(std::int32_t sequence, std::uint32_t length) {
    if (length == 0) {
        sequences.erase(sequence);
        return true;
    }
    const std::uint32_t now = blocks(room(sequence)), wanted = blocks(length);
    if (wanted > now && wanted - now > units_free()) return false;
    Sequence& target = sequences[sequence];
    target.room = length;
    if (target.entries.size() > length) target.entries.resize(length);
    target.unwritten = std::min(target.unwritten, length - static_cast<std::uint32_t>(target.entries.size()));
    return true;
}

std::uint32_t Kv::room(std::int32_t sequence) const {
    const auto found = sequences.find(sequence);
    return found == sequences.end() ? 0 : found->second.room;
}

std::uint32_t Kv::length(std::int32_t sequence) const {
    const auto found = sequences.find(sequence);
    return found == sequences.end() ? 0 : static_cast<std::uint32_t>(found->second.entries.size());
}

std::uint32_t Kv::unwritten(std::int32_t sequence) const {
    const auto found = sequences.find(sequence);
    return found == sequences.end() ? 0 : found->second.unwritten;
}

void Kv::overwrite(std::int32_t sequence, std::uint32_t past, const std::vector<std::uint64_t>& entries) {
    Sequence& target = sequences[sequence];
    target.entries.resize(past);
    target.unwritten = 0;
    target.entries.insert(target.entries.end(), entries.begin(), entries.end());
    target.room = std::max(target.room, static_cast<std::uint32_t>(target.entries.size()));
}

}  // namespace calrt::sim
