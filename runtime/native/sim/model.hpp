// The language model of the simulated device: logits from a hash over all KV entries of a sequence.
//
// It is a model in the sense that matters here: the next token depends on every token and every position before it, so
// one wrong, missing or foreign KV entry changes what the host reads. All arithmetic is modulo 2^64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace calrt::sim {

inline constexpr std::uint64_t broken_mask = 0xBAD0BAD;  // a broken device computes with the history ^ this

std::uint64_t mix64(std::uint64_t x);  // splitmix64's finalizer

// The KV entry of `token` at `position`.
std::uint64_t kv_entry(std::uint64_t seed, std::uint32_t token, std::uint64_t position);

// What stands for the token where the graph takes embeddings: the low 32 bits of FNV-1a-64 over the row's bytes.
std::uint32_t embedding_token(const std::uint8_t* row, std::size_t bytes);

std::uint64_t history(std::uint64_t seed, const std::vector<std::uint64_t>& entries);

// One row of background logits, BF16 [vocabulary].
std::vector<std::uint16_t> background(std::uint64_t seed, std::uint64_t vocabulary);

// The logits of history `h`: the background turned by h, and up to four peaks. row: BF16 [base.size()].
void write_row(std::uint64_t h, const std::vector<std::uint16_t>& base, std::uint16_t* row);

// Row (tokens - 1) % tile holds the logits of `h`; every other row is a decoy. out: BF16 [tile, base.size()].
void write_tile(std::uint64_t h, std::uint64_t tokens, std::uint32_t tile, const std::vector<std::uint16_t>& base,
                std::uint16_t* out);

}  // namespace calrt::sim
