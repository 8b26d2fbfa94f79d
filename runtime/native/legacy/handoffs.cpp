// What a hand-off between two threads costs where there is neither Python nor a device (see calrt_legacy.h).
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "calexec_tables.hpp"
#include "calrt_legacy.h"

namespace {

std::int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Two threads that hand one thing to and fro; turn i belongs to the thread i % 2.
struct Table {
    std::mutex mutex;
    std::condition_variable given;
    std::uint32_t turn = 0;
    std::int64_t given_ns = 0;

    void give(std::uint32_t next, std::uint32_t pause_us) {
        if (pause_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
        {
            const std::lock_guard<std::mutex> lock(mutex);
            turn = next;
            given_ns = now_ns();
        }
        given.notify_one();
    }

    std::int64_t taken_after_ns(std::uint32_t mine) {
        std::unique_lock<std::mutex> lock(mutex);
        given.wait(lock, [&] { return turn == mine; });
        return now_ns() - given_ns;
    }
};

// Takes the turns first, first + 2, ... up to `count` and hands on each but the last.
void play(Table& table, std::uint32_t first, std::uint32_t count, std::uint32_t pause_us, std::int64_t* each_ns) {
    for (std::uint32_t mine = first; mine <= count; mine += 2) {
        each_ns[mine - 1] = table.taken_after_ns(mine);
        if (mine < count) table.give(mine + 1, pause_us);
    }
}

}  // namespace

extern "C" int calrt_legacy_handoffs(uint32_t count, uint32_t pause_us, int64_t* each_ns) {
    if (each_ns == nullptr || count == 0) return static_cast<int>(calrt_c::ShimBadArgument);
    try {
        Table table;
        std::thread other([&] { play(table, 1, count, pause_us, each_ns); });
        table.give(1, pause_us);
        play(table, 2, count, pause_us, each_ns);
        other.join();
        return 0;
    } catch (...) {  // no thread could be made
        return static_cast<int>(calrt_c::ShimException);
    }
}
