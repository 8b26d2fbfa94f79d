// The one way out of the C ABI: whatever is thrown inside becomes a code and a text, and nothing passes.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <string>
#include <utility>

#include "calexec_tables.hpp"
#include "last_error.hpp"

namespace calrt_c {

// Thrown by the shim itself, before CalRT is called: one of its own codes and what was wrong.
struct Refusal {
    int code;
    std::string text;
};

template <typename Body>
int guarded(const char* function, Body&& body) {
    try {
        return std::forward<Body>(body)();
    } catch (const Refusal& refusal) {
        return fail(refusal.code, "%s: %s", function, refusal.text.c_str());
    } catch (const std::exception& error) {
        const char* text = error.what();
        return fail(ShimException, "%s: %s", function, text != nullptr ? text : "an exception without a text");
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being cancelled, which must not be stopped
    } catch (...) {
        return fail(ShimException, "%s: an exception that is no std::exception", function);
    }
}

}  // namespace calrt_c
