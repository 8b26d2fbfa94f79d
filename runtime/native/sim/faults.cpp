#include "faults.hpp"

#include <algorithm>
#include <string_view>

#include "calexec_tables.hpp"
#include "model.hpp"

namespace calrt::sim {

namespace {

constexpr std::size_t planned_max = 4096;
constexpr std::int64_t million = 1000000;

bool applies(const ActionInfo& info, CallKind call) {
    const std::string_view calls = info.calls, name = name_of(call);
    if (calls == "*") return call != CallKind::close && call != CallKind::destroy && call != CallKind::destroy_kv;
    for (std::size_t begin = 0; begin < calls.size();) {
        const std::size_t end = std::min(calls.find(' ', begin), calls.size());
        if (calls.substr(begin, end - begin) == name) return true;
        begin = end + 1;
    }
    return false;
}

bool seeded_call(CallKind call) {
    return call == CallKind::infer || call == CallKind::wait || call == CallKind::apply ||
           call == CallKind::can_allocate || call == CallKind::reset_ccu || call == CallKind::reset_configuration ||
           call == CallKind::reset;
}

// Arguments of a random fault. Every code but success; indices and sizes where they hurt.
Fault with_random_arguments(Action action, CallKind call, std::uint64_t random) {
    const bool answers_bool = call == CallKind::apply || call == CallKind::can_allocate;
    switch (action) {
        case Action::return_code:
            if (answers_bool) return {action, 0, 0};
            return {action, 1 + static_cast<std::int64_t>(random % WrongDirection), -1};
        case Action::throw_exception: return {action, static_cast<std::int64_t>(random % 3), 0};
        case Action::nan:
        case Action::inf: return {action, static_cast<std::int64_t>(random % 1024), 0};
        case Action::short_tensor: return {action, static_cast<std::int64_t>(random % 1024), 0};
        case Action::late: return {action, static_cast<std::int64_t>(random % 10000), 0};
        default: return {action, 0, 0};
    }
}

}  // namespace

const char* name_of(CallKind call) {
    static constexpr std::array names = {
#define X(name) #name,
        CALRTSIM_CALLS(X)
#undef X
    };
    return names[static_cast<std::size_t>(call)];
}

const std::vector<ActionInfo>& actions() {
    static const std::vector<ActionInfo> table = {
#define X(enumerator, ...) {Action::enumerator, __VA_ARGS__},
        CALRTSIM_ACTIONS(X)
#undef X
    };
    return table;
}

bool Faults::plan(const std::string& call, std::int64_t nth, const std::string& action, std::int64_t a, std::int64_t b,
                  std::string* why) {
    const auto info = std::find_if(actions().begin(), actions().end(), [&](const auto& i) { return action == i.name; });
    std::size_t kind = 0;
    while (kind < call_count && call != name_of(static_cast<CallKind>(kind))) ++kind;
    if (kind == call_count) {
        *why = "no call is called '" + call + "'; docs/simulator.md lists them";
    } else if (info == actions().end()) {
        *why = "no fault action is called '" + action + "'; calrtsim_action() lists them";
    } else if (!applies(*info, static_cast<CallKind>(kind))) {
        *why = "'" + action + "' may be planned for " + info->calls + ", not for " + call;
    } else if (nth < 1) {
        *why = "nth counts from 1, not " + std::to_string(nth);
    } else if (b < -1 || b > 1) {
        *why = "b is -1, 0 or 1, not " + std::to_string(b);
    } else if (a < info->least_a || a > info->most_a) {
        *why = "a of '" + action + "' is " + std::to_string(a) + "; allowed are " + std::to_string(info->least_a) +
               " to " + std::to_string(info->most_a);
    } else if (planned_.size() == planned_max) {
        *why = "the plan is full (" + std::to_string(planned_max) + " faults)";
    } else {
        planned_.push_back({static_cast<CallKind>(kind), calls_[kind] + nth, {info->action, a, b}});
        return true;
    }
    return false;
}

bool Faults::seed(std::uint64_t seed, std::int64_t per_million, std::string* why) {
    if (per_million < 0 || per_million > million) {
        *why = "per_million = " + std::to_string(per_million) + " is not within 0..1000000";
        return false;
    }
    seed_ = seed;
    per_million_ = per_million;
    calls_before_seed_ = calls_;
    return true;
}

void Faults::clear() {
    planned_.clear();
    per_million_ = 0;
}

Fault Faults::next(CallKind call) {
    const std::int64_t number = ++calls_[static_cast<std::size_t>(call)];
    const auto found = std::find_if(planned_.begin(), planned_.end(), [&](const Planned& p) {
        return p.call == call && p.at == number;
    });
    Fault fault;
    if (found != planned_.end()) {
        fault = found->fault;
        planned_.erase(found);
    } else if (per_million_ > 0 && seeded_call(call)) {
        fault = seeded(call, number - calls_before_seed_[static_cast<std::size_t>(call)]);
    }
    if (fault.action != Action::none) ++fired;
    return fault;
}

Fault Faults::seeded(CallKind call, std::int64_t number) const {
    const auto which = static_cast<std::uint64_t>(call) + 1;
    const std::uint64_t random = mix64(mix64(seed_ ^ mix64(which)) + static_cast<std::uint64_t>(number));
    if (static_cast<std::int64_t>(random % million) >= per_million_) return {};
    std::vector<Action> possible;
    for (const ActionInfo& info : actions()) {
        if (applies(info, call)) possible.push_back(info.action);
    }
    return with_random_arguments(possible[mix64(random) % possible.size()], call, mix64(random + 1));
}

}  // namespace calrt::sim
