// What goes on writing when the process has left (vendor fact process_exit_stops_dma = 0).
//
// A forked child that only waits for the end of its parent, and then does to shared memory what the device's DMA would
// have gone on doing. It calls nothing but what is safe after a fork, closes every descriptor it inherited, and leaves
// by _exit().
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "memory.hpp"

namespace calrt::sim {

struct Ghost {
    pid_t process = 0;
    int socket = -1;
    // In a page that both processes have: the pieces that the device has written. It outlives the parent, and telling
    // it never blocks.
    std::atomic<std::uint32_t>* written = nullptr;
};

inline constexpr unsigned char ghost_byte = 0x5A;

// The output that will be written from `begin_ns` (CLOCK_MONOTONIC) over `length_ns` in `pieces`. What the parent did
// not live to write is written at its time, or at once if that is over (with the stepped clock, which the child has
// not, it always is). A ghost that cannot be made is none.
Ghost start_ghost(const Range& output, std::uint32_t pieces, std::int64_t begin_ns, std::int64_t length_ns);
void tell_ghost(const Ghost& ghost, std::uint32_t pieces_written);
void stop_ghost(Ghost* ghost);

}  // namespace calrt::sim
