// The smallest test harness: a check that fails is printed with its place, and the program returns how many failed.
#pragma once

#include <atomic>
#include <cstdio>

inline std::atomic<int>& failures() {
    static std::atomic<int> count{0};
    return count;
}

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            ++failures();                                                                 \
        }                                                                                 \
    } while (false)
