#include "memory.hpp"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "model.hpp"

namespace calrt::sim {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

constexpr std::uint64_t chunk_bytes = 65536, line_bytes = 64, page_bytes = 4096;

// Some containers forbid the calls. Then the bytes move by memcpy, and memory that is gone ends the process.
std::atomic<bool> kernel_copies{true};

enum class Moved { yes, gone, forbidden };

// Directly, so that no sanitizer's interceptor looks at the ranges.
Moved through_kernel(long call, void* local, std::uintptr_t host, std::uint64_t bytes) {
    while (bytes > 0) {
        iovec here{local, bytes}, there{reinterpret_cast<void*>(host), bytes};
        const long moved = syscall(call, static_cast<long>(getpid()), &here, 1L, &there, 1L, 0L);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && (errno == EPERM || errno == ENOSYS)) return Moved::forbidden;
        if (moved <= 0) return Moved::gone;
        local = static_cast<char*>(local) + moved;
        host += static_cast<std::uint64_t>(moved);
        bytes -= static_cast<std::uint64_t>(moved);
    }
    return Moved::yes;
}

bool pages_are_there(std::uintptr_t host, std::uint64_t bytes) {
    char byte = 0;
    const std::uintptr_t last = host + bytes - 1;
    for (std::uintptr_t at = host; at <= last; at = (at / page_bytes + 1) * page_bytes) {
        if (through_kernel(SYS_process_vm_readv, &byte, at, 1) == Moved::gone) return false;
    }
    return true;
}

bool move(long call, void* local, std::uintptr_t host, std::uint64_t bytes) {
    if (bytes == 0) return true;
    if (!sanitized && kernel_copies.load(std::memory_order_relaxed)) {
        const Moved moved = through_kernel(call, local, host, bytes);
        if (moved != Moved::forbidden) return moved == Moved::yes;
        kernel_copies.store(false, std::memory_order_relaxed);
    }
    if (sanitized && !pages_are_there(host, bytes)) return false;
    void* const there = reinterpret_cast<void*>(host);
    if (call == SYS_process_vm_readv) {
        std::memcpy(local, there, bytes);
    } else {
        std::memcpy(there, local, bytes);
    }
    return true;
}

}  // namespace

bool read_host(std::uintptr_t host, void* target, std::uint64_t bytes) {
    return move(SYS_process_vm_readv, target, host, bytes);
}

bool write_host(std::uintptr_t host, const void* source, std::uint64_t bytes) {
    return move(SYS_process_vm_writev, const_cast<void*>(source), host, bytes);
}

bool checksum_host(const Range& range, std::uint64_t* sum) {
    std::array<char, chunk_bytes> chunk;
    std::uint64_t hash = range.bytes;
    for (std::uint64_t done = 0; done < range.bytes;) {
        const std::uint64_t bytes = std::min(chunk_bytes, range.bytes - done);
        if (!read_host(range.host + done, chunk.data(), bytes)) return false;
        for (std::uint64_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
            std::uint64_t word = 0;
            std::memcpy(&word, chunk.data() + i, std::min<std::uint64_t>(sizeof word, bytes - i));
            hash = mix64(hash * 31 + word);
        }
        done += bytes;
    }
    *sum = hash;
    return true;
}

Same compare_host(std::uintptr_t host, const void* expected, std::uint64_t bytes) {
    std::array<char, chunk_bytes> chunk;
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t now = std::min(chunk_bytes, bytes - done);
        if (!read_host(host + done, chunk.data(), now)) return Same::gone;
        if (std::memcmp(chunk.data(), static_cast<const char*>(expected) + done, now) != 0) return Same::no;
        done += now;
    }
    return Same::yes;
}

Part part_of(std::uint64_t bytes, std::uint32_t piece, std::uint32_t pieces) {
    const auto edge = [&](std::uint64_t k) {
        return k == pieces ? bytes : bytes * k / pieces / line_bytes * line_bytes;
    };
    return {edge(piece), edge(piece + 1)};
}

}  // namespace calrt::sim
