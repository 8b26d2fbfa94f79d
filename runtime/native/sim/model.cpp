#include "model.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace calrt::sim {

namespace {

// Exact for what is written here: multiples of 1/16 within ±8 and of 1/8 below 25 need at most 8 significant bits.
std::uint16_t bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

}  // namespace

std::uint64_t mix64(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9;
    x ^= x >> 27;
    x *= 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

std::uint64_t kv_entry(std::uint64_t seed, std::uint32_t token, std::uint64_t position) {
    return mix64(seed ^ mix64(std::uint64_t{token} * 0x9E3779B97F4A7C15 + position));
}

std::uint32_t embedding_token(const std::uint8_t* row, std::size_t bytes) {
    std::uint64_t hash = 0xCBF29CE484222325;
    for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ row[i]) * 0x100000001B3;
    return static_cast<std::uint32_t>(hash);
}

std::uint64_t history(std::uint64_t seed, const std::vector<std::uint64_t>& entries) {
    std::uint64_t h = mix64(seed + 0x1234);
    for (const std::uint64_t entry : entries) h = mix64(h * 6364136223846793005 + entry);
    return h;
}

std::vector<std::uint16_t> background(std::uint64_t seed, std::uint64_t vocabulary) {
    std::vector<std::uint16_t> row(vocabulary);
    for (std::uint64_t v = 0; v < vocabulary; ++v) {
        row[v] = bf16(static_cast<float>(mix64(seed ^ (v + 0x5EED)) & 0xFF) / 16 - 8);
    }
    return row;
}

void write_row(std::uint64_t h, const std::vector<std::uint16_t>& base, std::uint16_t* row) {
    const std::uint64_t vocabulary = base.size(), turn = h % vocabulary;
    std::copy(base.begin() + static_cast<std::ptrdiff_t>(turn), base.end(), row);
    std::copy(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(turn), row + (vocabulary - turn));
    std::array<std::uint64_t, 4> peaks{};
    for (std::uint64_t j = 0; j < peaks.size(); ++j) {
        peaks[j] = mix64(h + j + 1) % vocabulary;
        const auto end = peaks.begin() + static_cast<std::ptrdiff_t>(j);
        if (std::find(peaks.begin(), end, peaks[j]) != end) continue;
        row[peaks[j]] = bf16(24 - 2 * static_cast<float>(j) + static_cast<float>(mix64(h ^ (0xABC + j)) & 7) / 8);
    }
}

void write_tile(std::uint64_t h, std::uint64_t tokens, std::uint32_t tile, const std::vector<std::uint16_t>& base,
                std::uint16_t* out) {
    const std::uint64_t real = (tokens - 1) % tile;
    for (std::uint64_t i = 0; i < tile; ++i) {
        write_row(i == real ? h : mix64(h ^ (0xDEC0 + i)), base, out + i * base.size());
    }
}

}  // namespace calrt::sim
