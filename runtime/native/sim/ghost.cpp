#include "ghost.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace calrt::sim {

namespace {

constexpr int poll_ms = 50;  // another child of the process may hold our end open; then only getppid() tells
constexpr int descriptors_max = 65536;
constexpr std::int64_t second_ns = 1000000000;

using Written = std::atomic<std::uint32_t>;
static_assert(Written::is_always_lock_free, "the count is read by another process");

void sleep_until(std::int64_t at_ns) {
    const timespec at{static_cast<time_t>(at_ns / second_ns), static_cast<long>(at_ns % second_ns)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
}

bool close_range_of(unsigned first, unsigned last) {
#ifdef SYS_close_range
    return first > last || syscall(SYS_close_range, first, last, 0U) == 0;
#else
    return false;
#endif
}

void close_all_but(int kept) {
    const auto socket = static_cast<unsigned>(kept);
    if (close_range_of(socket + 1, ~0U) && (socket == 0 || close_range_of(0, socket - 1))) return;
    const long open_max = sysconf(_SC_OPEN_MAX);  // a kernel before 5.9
    const int last = open_max < 0 || open_max > descriptors_max ? descriptors_max : static_cast<int>(open_max);
    for (int fd = 0; fd < last; ++fd) {
        if (fd != kept) close(fd);
    }
}

// True: the parent is gone. False: it said that the job is over.
bool parent_left(int socket, pid_t parent) {
    while (true) {
        pollfd ready{socket, POLLIN, 0};
        if (poll(&ready, 1, poll_ms) > 0) {
            char byte = 0;
            const ssize_t got = read(socket, &byte, 1);
            if (got == 1) return false;
            if (got == 0) return true;
        }
        if (getppid() != parent) return true;
    }
}

[[noreturn]] void haunt(int socket, pid_t parent, const Written& written, const Range& output, std::uint32_t pieces,
                        std::int64_t begin_ns, std::int64_t length_ns) {
    close_all_but(socket);
    if (parent_left(socket, parent)) {
        auto* const host = reinterpret_cast<volatile unsigned char*>(output.host);
        for (std::uint32_t piece = written.load(); piece < pieces; ++piece) {
            sleep_until(begin_ns + length_ns * (piece + 1) / pieces);
            const Part part = part_of(output.bytes, piece, pieces);
            for (std::uint64_t i = part.begin; i < part.end; ++i) host[i] = ghost_byte;
        }
    }
    _exit(0);
}

void forget(Written* written) { munmap(written, sizeof *written); }

}  // namespace

Ghost start_ghost(const Range& output, std::uint32_t pieces, std::int64_t begin_ns, std::int64_t length_ns) {
    void* const page = mmap(nullptr, sizeof(Written), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return {};
    auto* const written = new (page) Written(0);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        forget(written);
        return {};
    }
    const pid_t parent = getpid(), child = fork();
    if (child == 0) haunt(ends[0], parent, *written, output, pieces, begin_ns, length_ns);
    close(ends[0]);
    if (child > 0) return {child, ends[1], written};
    close(ends[1]);
    forget(written);
    return {};
}

void tell_ghost(const Ghost& ghost, std::uint32_t pieces_written) {
    if (ghost.written) ghost.written->store(pieces_written);
}

void stop_ghost(Ghost* ghost) {
    if (ghost->process == 0) return;
    const char done = 'd';
    while (send(ghost->socket, &done, 1, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
    close(ghost->socket);
    while (waitpid(ghost->process, nullptr, 0) < 0 && errno == EINTR) {
    }
    forget(ghost->written);
    *ghost = {};
}

}  // namespace calrt::sim
