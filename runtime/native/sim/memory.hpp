// The card's way to host memory. A copy goes through the kernel (process_vm_readv/writev on ourselves), so that memory
// that is gone is seen as a fault and does not end the process. Under a sanitizer the bytes move by memcpy, so that the
// sanitizer sees the device as one more thread; whether the pages are there is asked first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace calrt::sim {

struct Range {
    std::uintptr_t host = 0;
    std::uint64_t bytes = 0;
    bool overlaps(const Range& other) const {
        return bytes && other.bytes && host < other.host + other.bytes && other.host < host + bytes;
    }
};

// False: some of the host's memory is not there (or may not be written).
bool read_host(std::uintptr_t host, void* target, std::uint64_t bytes);
bool write_host(std::uintptr_t host, const void* source, std::uint64_t bytes);

// A checksum of host memory; false as above.
bool checksum_host(const Range& range, std::uint64_t* sum);

enum class Same { yes, no, gone };
Same compare_host(std::uintptr_t host, const void* expected, std::uint64_t bytes);

// The part of `bytes` that piece `piece` of `pieces` moves: whole cache lines, except at the end.
struct Part {
    std::uint64_t begin, end;
};
Part part_of(std::uint64_t bytes, std::uint32_t piece, std::uint32_t pieces);

}  // namespace calrt::sim
