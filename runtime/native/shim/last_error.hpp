// The text of this thread's last shim code: a fixed buffer, so that keeping it can never fail.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace calrt_c {

constexpr std::size_t last_error_bytes = 1024;

inline char* last_error() {
    thread_local char text[last_error_bytes] = "";
    return text;
}

// Keeps the text, cut to the buffer, and returns the code.
__attribute__((format(printf, 2, 3))) inline int fail(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error(), last_error_bytes, format, arguments);
    va_end(arguments);
    return code;
}

}  // namespace calrt_c
