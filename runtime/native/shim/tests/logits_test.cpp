// Logits over memory of exactly the size it needs: a sanitizer sees every byte read or written beside it.
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "calexec_tables.hpp"
#include "calrt_c.h"
#include "check.hpp"

namespace {

using namespace calrt_c;

std::vector<uint16_t> finite(std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(count));
    std::vector<uint16_t> bits(count);
    for (uint16_t& b : bits) b = static_cast<uint16_t>(random() % 0x7F80);
    return bits;
}

void exact_sizes() {
    for (uint64_t count = 0; count < 80; ++count)
        for (uint64_t base = 0; base < 5; ++base) {
            std::vector<uint16_t> source = finite(base + count);
            std::vector<float> target(count);
            CHECK(calrt_c_logits(source.data(), source.size(), base, count, target.data(), target.size(), nullptr) == 0);
            for (uint64_t i = 0; i < count; ++i) {
                uint32_t bits;
                std::memcpy(&bits, &target[i], sizeof bits);
                CHECK(bits == static_cast<uint32_t>(source[base + i]) << 16);
            }
            if (count == 0) continue;
            source.back() = 0xFF80;
            uint64_t bad = 99;
            CHECK(calrt_c_logits(source.data(), source.size(), base, count, target.data(), target.size(), &bad) ==
                  ShimNotFinite);
            CHECK(bad == count - 1);
        }
}

void bounds() {
    const std::vector<uint16_t> source = finite(8);
    std::vector<float> target(8, 1.5f);
    const uint64_t top = UINT64_MAX;
    const uint64_t ranges[][2] = {{0, 9}, {8, 1}, {9, 0}, {top, 1}, {top, top}, {1, top}, {top / 2, top / 2 + 2}, {4, top - 3}};
    for (const auto& [base, count] : ranges) {
        uint64_t bad = 99;
        CHECK(calrt_c_logits(source.data(), 8, base, count, target.data(), 8, &bad) == ShimOutOfRange);
        CHECK(bad == 99);
    }
    CHECK(calrt_c_logits(source.data(), 8, 0, 8, target.data(), 7, nullptr) == ShimOutOfRange);
    CHECK(calrt_c_logits(nullptr, 8, 0, 8, target.data(), 8, nullptr) == ShimBadArgument);
    CHECK(calrt_c_logits(source.data(), 8, 0, 8, nullptr, 8, nullptr) == ShimBadArgument);
    for (const float value : target) CHECK(value == 1.5f);
}

// One source, many readers, each with a target of its own.
void threads() {
    const std::vector<uint16_t> source = finite(50000);
    std::vector<std::thread> workers;
    for (int i = 0; i < 4; ++i)
        workers.emplace_back([&source] {
            std::vector<float> target(source.size());
            for (int round = 0; round < 10; ++round)
                CHECK(calrt_c_logits(source.data(), source.size(), 0, source.size(), target.data(), target.size(),
                                     nullptr) == 0);
        });
    for (std::thread& worker : workers) worker.join();
}

}  // namespace

int main() {
    exact_sizes();
    bounds();
    threads();
    return failures();
}
