// The order of calls per handle, from the generated tables of machines/abi.py.
//
// In debug builds every call is an event of its handles: it is refused before CalRT sees it where the table has no entry,
// and it moves the handles when CalRT has returned success. One mutex holds all states; it is never held during a CalRT
// call, so an event may have become impossible meanwhile (a reset orphaned the job): then it moves nothing. In release
// builds all of this is compiled out.
#pragma once

#include <initializer_list>
#include <mutex>
#include <string>

#include "guard.hpp"
#include "handles.hpp"

namespace calrt_c {

constexpr bool enforces_order = CALEXEC_CALL_ORDER != 0;

struct OrderTable {
    const char* const* state_names;
    const char* const* event_names;
    const signed char* next;  // [state][event]
    int events;
};

inline constexpr OrderTable device_order{abi_device_state_names, abi_device_event_names, &abi_device_next[0][0],
                                         abi_device_events};
inline constexpr OrderTable input_order{abi_input_state_names, abi_input_event_names, &abi_input_next[0][0],
                                        abi_input_events};
inline constexpr OrderTable output_order{abi_output_state_names, abi_output_event_names, &abi_output_next[0][0],
                                         abi_output_events};

struct Order {
    const OrderTable& table;
    int state;

    int next(int event) const { return table.next[state * table.events + event]; }
    void move(int event) {
        if (next(event) >= 0) state = next(event);
    }
    std::string allowed() const {
        std::string names;
        for (int event = 0; event < table.events; ++event)
            if (next(event) >= 0) names += (names.empty() ? "" : ", ") + std::string(table.event_names[event]);
        return names;
    }
};

struct Step {
    Order& order;
    std::uint64_t handle;
    int event;
};

inline std::mutex& order_mutex() {
    static std::mutex mutex;
    return mutex;
}

inline void refuse_unless_allowed(std::initializer_list<Step> steps) {
    const std::lock_guard<std::mutex> lock(order_mutex());
    for (const Step& step : steps) {
        const OrderTable& table = step.order.table;
        if (step.order.next(step.event) < 0)
            throw Refusal{ShimCallOrder, Number::of(step.handle).text() + " is " + table.state_names[step.order.state] +
                                             ": " + table.event_names[step.event] + " is not allowed; allowed are " +
                                             step.order.allowed()};
    }
}

inline void move_all(std::initializer_list<Step> steps) {
    const std::lock_guard<std::mutex> lock(order_mutex());
    for (const Step& step : steps) step.order.move(step.event);
}

// One call of CalRT: its raw code, in its place in the order.
template <typename Body>
int in_order(std::initializer_list<Step> steps, Body&& body) {
    if constexpr (enforces_order) refuse_unless_allowed(steps);
    const int code = static_cast<int>(body());
    if constexpr (enforces_order)
        if (code == 0) move_all(steps);
    return code;
}

}  // namespace calrt_c
