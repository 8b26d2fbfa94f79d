// BF16 -> FP32 in one pass with the finite check (§10.1). Ours: no CalRT call is made.
//
// A BF16 is the upper half of the FP32 of the same value, so the conversion is a shift and exact for every pattern. A
// value is NaN or infinite where all eight bits of its exponent are ones: where, without its sign, it is at least an
// infinity. So the pass keeps the greatest pattern it has seen, in 16-bit lanes, which costs next to nothing beside the
// stores; the index is looked for only when it is needed.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "calexec_tables.hpp"
#include "calrt_c.h"
#include "last_error.hpp"

namespace {

constexpr std::int16_t infinity = 0x7F80;

// The pattern without its sign; not negative, so that the signed maximum of SSE2 serves.
std::int16_t magnitude(std::uint16_t bf16) { return static_cast<std::int16_t>(bf16 & 0x7FFF); }

bool is_finite(std::uint16_t bf16) { return magnitude(bf16) < infinity; }

// All of them converted; true when all are finite.
bool convert(const std::uint16_t* __restrict source, std::uint64_t count, float* __restrict target) {
    std::int16_t greatest = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint32_t wide = std::uint32_t{source[i]} << 16;
        std::memcpy(&target[i], &wide, sizeof wide);
        greatest = std::max(greatest, magnitude(source[i]));
    }
    return greatest < infinity;
}

bool aligned(const void* pointer, std::size_t to) { return reinterpret_cast<std::uintptr_t>(pointer) % to == 0; }

bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
    return first < second ? second - first < a_bytes : first - second < b_bytes;
}

}  // namespace

extern "C" int calrt_c_logits(const uint16_t* source, uint64_t source_elements, uint64_t base, uint64_t count,
                              float* target, uint64_t target_elements, uint64_t* first_bad) {
    using namespace calrt_c;
    // Subtractions only: base + count could wrap.
    if (base > source_elements || count > source_elements - base)
        return fail(ShimOutOfRange, "calrt_c_logits: %" PRIu64 " elements from %" PRIu64 " on, of %" PRIu64, count, base,
                    source_elements);
    if (count > target_elements)
        return fail(ShimOutOfRange, "calrt_c_logits: %" PRIu64 " elements do not fit into %" PRIu64, count,
                    target_elements);
    if (count == 0) return 0;
    if (source == nullptr || target == nullptr)
        return fail(ShimBadArgument, "calrt_c_logits: %s is NULL", source == nullptr ? "source" : "target");
    if (!aligned(source, alignof(uint16_t)) || !aligned(target, alignof(float)))
        return fail(ShimBadArgument, "calrt_c_logits: %s is not aligned to its elements",
                    aligned(source, alignof(uint16_t)) ? "target" : "source");
    const uint16_t* from = source + base;
    if (overlap(from, count * sizeof *from, target, count * sizeof *target))
        return fail(ShimBadArgument, "calrt_c_logits: source and target overlap");
    if (convert(from, count, target)) return 0;
    uint64_t bad = 0;
    while (is_finite(from[bad])) ++bad;
    if (first_bad != nullptr) *first_bad = bad;
    return fail(ShimNotFinite, "calrt_c_logits: element %" PRIu64 " of %" PRIu64 " is not finite (bits 0x%04x)", bad,
                count, static_cast<unsigned>(from[bad]));
}
