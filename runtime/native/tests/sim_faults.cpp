// Each action of the fault plan, and the plan itself: the nth call, the seed, what it refuses.
#include <algorithm>
#include <climits>
#include <new>
#include <stdexcept>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

const rig::Keys stepped = {{"clock", 1}, {"decode_us", 10}};

// One job under a fault of infer(), run to its end.
struct Run {
    rig::Card card;
    std::unique_ptr<rig::Slot> slot;
    Run(const char* action, std::int64_t a) : card(0, stepped), slot(card.slot(rig::prefill)) {
        card.prepare(*slot, {5, 6}, 0);
        card.fault("infer", action, a);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.settle();
    }
};

void outputs() {
    for (const auto& [action, bits] : {std::pair{"nan", 0x7FC0}, {"inf", 0x7F80}}) {
        Run run(action, 77);
        run.card.finish(*run.slot);
        CHECK_EQUAL(run.slot->logits[rig::vocabulary + 77], bits);
        CHECK_EQUAL(run.card.truth("broken"), 1);
    }
    Run run("short_tensor", 1000);
    run.card.finish(*run.slot);
    std::uint64_t bytes = 0;
    CHECK_EQUAL(run.slot->output->TensorSize("logits", &bytes), CalrtSuccess);
    CHECK_EQUAL(bytes, 1000);
    CHECK(run.slot->logits[499] != 0 && run.slot->logits[500] == 0);
    CHECK(rig::violations_are(run.card, ""));
}

void hang() {
    Run run("hang", 0);
    CHECK(run.slot->output->GetStatus() == BufStatus::RUNNING);
    CHECK_EQUAL(run.card.truth("events_pending"), 0);
    CHECK_EQUAL(run.card.truth("next_event_us"), -1);
    run.card.set("wait_blocks", 0);
    CHECK_EQUAL(run.slot->output->Wait(), Timeout);
    CHECK_EQUAL(run.card.device->ResetCCU(), CalrtSuccess);
    CHECK_EQUAL(run.slot->output->Wait(), DeviceUnavailable);
}

void exception() {
    for (const bool keeps : {true, false}) {
        rig::Card card(0, stepped);
        card.set("exception_keeps_kv", keeps);
        const auto slot = card.slot(rig::prefill);
        card.prepare(*slot, {5, 6, 7, 8}, 0);
        card.fault("infer", "ccu_exception");
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.settle();
        CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
        CHECK(slot->output->GetStatus() == BufStatus::DONE_CCU_EXCEPTION);
        CHECK_EQUAL(card.kv_length(), keeps ? 0 : 2);
        CHECK_EQUAL(slot->logits[3 * rig::vocabulary], 0);
    }
}

void partial_kv() {
    Run run("partial_kv", 0);
    run.card.finish(*run.slot);
    CHECK_EQUAL(run.card.kv_length(), 1);
    CHECK_EQUAL(run.card.argmax(*run.slot, 2), 267);  // and the row is right
    CHECK_EQUAL(run.card.truth("broken"), 0);
}

void late() {
    Run run("late", 5000);
    run.card.finish(*run.slot);
    CHECK_EQUAL(run.card.truth("now_us"), 5000);
}

void double_completion() {
    rig::Card card(0, stepped);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "double");
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    card.settle();
    card.finish(*slot);
    card.prepare(*slot, {6}, 1);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
    CHECK(slot->output->GetStatus() == BufStatus::RUNNING);
    CHECK_EQUAL(card.truth("jobs_running"), 1);
    card.settle();
    CHECK(slot->output->GetStatus() == BufStatus::DONE);
}

void write_after_reset() {
    rig::Card card(0, stepped);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "write_after_reset");
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(slot->logits[0], 0);
    slot->output = nullptr;  // which is why it must not be done
    CHECK(rig::violations_are(card, "destroyed"));
    card.settle();
    CHECK(slot->logits[0] != 0);
}

void returns() {
    rig::Card card(0, stepped);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "return", DeviceBusy, 1);  // it says Busy, and has started
    CHECK_EQUAL(card.infer(*slot), DeviceBusy);
    CHECK_EQUAL(card.truth("jobs_running"), 1);
    card.settle();
    CHECK_EQUAL(card.kv_length(), 1);

    card.prepare(*slot, {6}, 1);
    card.fault("infer", "return", CalrtSuccess, 0);  // it says success, and nothing runs
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    card.settle();
    CHECK(slot->output->GetStatus() == BufStatus::RUNNING);
    card.fault("wait", "timeout");
    CHECK_EQUAL(slot->output->Wait(), Timeout);
    card.fault("wait", "return", 99);
    CHECK_EQUAL(slot->output->Wait(), 99);
    card.fault("reset_ccu", "fail");
    CHECK_EQUAL(card.device->ResetCCU(), SoftResetFailed);
    card.fault("reset_ccu", "ignore");
    CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
    CHECK_EQUAL(card.truth("jobs_running"), 1);
    CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
    CHECK_EQUAL(card.truth("jobs_running"), 0);

    card.fault("apply", "refuse");
    card.fault("can_allocate", "refuse");
    CHECK(!card.kv->Apply(0, 1) && !card.kv->canAllocate(1));
    CHECK(card.kv->Apply(0, 1) && card.kv->canAllocate(1));
    card.fault("map_buf", "return", -5);
    const auto other = std::make_unique<rig::Slot>();
    CHECK_EQUAL(CalrtInputBuf::Create(card.device, card.model(rig::decode), &other->input), CalrtSuccess);
    other->ids.resize(1);
    CHECK_EQUAL(other->input->MapBuf("ids", other->ids.data(), 4), -5);
    CHECK_EQUAL(other->input->MapBuf("ids", other->ids.data(), 4), CalrtSuccess);
    CHECK(rig::violations_are(card, ""));
}

// An engine that the card does not have is refused before anything else is asked, whatever the facts say.
void unknown_task_types() {
    for (const int facts : {0, 1}) {
        rig::Keys keys = stepped;
        for (const char* fact : {"submit_error_starts_nothing", "busy_starts_nothing"}) keys.emplace_back(fact, facts);
        rig::Card card(0, keys);
        CHECK_EQUAL(card.device->EnableParallelMode(true), CalrtSuccess);
        const auto slot = card.slot(rig::decode);
        card.prepare(*slot, {5}, 0);
        for (const int task : {7, 2, 1000, 100000000, -1, -2, INT_MAX, INT_MIN}) {
            CHECK_EQUAL(infer_with_fixed_task_type(card.device.get(), card.model(rig::decode), slot->input.get(),
                                                   slot->output.get(), static_cast<TaskType>(task)),
                        IllegalValue);
            CHECK_EQUAL(card.truth("jobs_started"), 0);
        }
        CHECK_EQUAL(infer_with_fixed_task_type(card.device.get(), card.model(rig::decode), slot->input.get(),
                                               slot->output.get(), TaskType::kPong),
                    CalrtSuccess);
        card.settle();
        card.finish(*slot);
        CHECK(rig::violations_are(card, ""));
    }
}

// What an argument may be: just inside and just outside.
void limits() {
    rig::Card card(0, stepped);
    const auto refused = [&](const char* call, const char* action, std::int64_t a) {
        const bool no = calrtsim_fault(0, call, 1, action, a, -1) != 0;
        const std::string text = calrtsim_last_error();
        if (no) CHECK(text.find(action) != std::string::npos && text.find(std::to_string(a)) != std::string::npos);
        return no;
    };
    struct Limit {
        const char *call, *action;
        std::int64_t least, most;
    };
    constexpr std::int64_t hour_us = 3600000000, index_max = (1 << 24) - 1, bytes_max = std::int64_t{1} << 40;
    for (const auto& [call, action, least, most] :
         {Limit{"infer", "return", INT_MIN, INT_MAX}, Limit{"reset", "throw", 0, 2},
          Limit{"infer", "nan", 0, index_max}, Limit{"infer", "inf", 0, index_max},
          Limit{"infer", "short_tensor", 0, bytes_max}, Limit{"infer", "late", 0, hour_us},
          Limit{"infer", "hang", 0, 0}, Limit{"wait", "timeout", 0, 0}}) {
        CHECK(!refused(call, action, least) && !refused(call, action, most));
        CHECK(refused(call, action, least - 1) && refused(call, action, most + 1));
        CHECK(refused(call, action, INT64_MAX) && refused(call, action, INT64_MIN));
    }
}

// With the real clock: the engine sleeps until a far time, and the card answers meanwhile.
void far_times() {
    rig::Card card(0, {{"prefill_token_ns", 1000000000}, {"jitter_permille", 1000}, {"pieces", 4096}});
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, std::vector<std::int32_t>(rig::max_seq, 5), 0);
    card.fault("infer", "late", 3600000000);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    for (int i = 0; i < 50; ++i) CHECK_EQUAL(card.truth("jobs_running"), 1);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(card.truth("jobs_running"), 0);
}

template <class Exception>
bool throws(rig::Card& card, std::int64_t which) {
    card.fault("apply", "throw", which);
    try {
        card.kv->Apply(0, 1);
    } catch (const Exception&) {
        return true;
    } catch (...) {
    }
    return false;
}

void exceptions() {
    rig::Card card;
    CHECK(throws<std::runtime_error>(card, 0) && throws<std::bad_alloc>(card, 1) && throws<int>(card, 2));
    CHECK(card.kv->Apply(0, 1));  // the card's lock was given back
    std::int64_t fired = 0;
    CHECK_EQUAL(calrtsim_faults_fired(0, &fired), 0);
    CHECK_EQUAL(fired, 3);
}

void plan() {
    rig::Card card;
    card.fault("apply", "refuse", 0, -1, 3);
    CHECK(card.kv->Apply(0, 1) && card.kv->Apply(0, 1) && !card.kv->Apply(0, 1) && card.kv->Apply(0, 1));
    card.fault("apply", "refuse");
    CHECK_EQUAL(calrtsim_faults_clear(0), 0);
    CHECK(card.kv->Apply(0, 1));
    CHECK_EQUAL(calrtsim_fault(0, "aply", 1, "refuse", 0, 0), -1);
    CHECK_EQUAL(calrtsim_fault(0, "apply", 1, "hang", 0, 0), -1);
    CHECK_EQUAL(calrtsim_fault(0, "apply", 0, "refuse", 0, 0), -1);
    CHECK_EQUAL(calrtsim_fault(0, "close", 1, "throw", 0, 0), -1);
    CHECK_EQUAL(calrtsim_fault(0, "apply", 1, "explode", 0, 0), -1);
    CHECK_EQUAL(calrtsim_fault_seed(0, 1, 1000001), -1);
    for (std::uint32_t i = 0;; ++i) {  // what an action says of its calls is what the plan takes
        calrtsim_action_info info;
        if (calrtsim_action(i, &info) != 0) {
            CHECK_EQUAL(i, 15);
            break;
        }
        const std::string calls = info.calls, first = calls == "*" ? "open" : calls.substr(0, calls.find(' '));
        CHECK_EQUAL(calrtsim_fault(0, first.c_str(), 1, info.name, 0, 0), 0);
    }
}

std::string answers(std::uint64_t seed, std::int64_t per_million) {
    rig::Card card;
    CHECK_EQUAL(calrtsim_fault_seed(0, seed, per_million), 0);
    std::string all;
    for (int i = 0; i < 300; ++i) {
        try {
            all += card.kv->Apply(0, 1) ? '1' : '0';
        } catch (...) {
            all += 'x';
        }
    }
    CHECK_EQUAL(calrtsim_faults_clear(0), 0);
    return all;
}

void seeds() {
    CHECK(answers(7, 100000) == answers(7, 100000));
    CHECK(answers(7, 100000) != answers(8, 100000));
    CHECK(answers(7, 0) == std::string(300, '1'));
    const std::string all = answers(7, 100000);
    const auto faults = 300 - std::count(all.begin(), all.end(), '1');
    CHECK(faults > 10 && faults < 60);  // 30 are to be expected
    CHECK(all.find('x') != std::string::npos && all.find('0') != std::string::npos);
}

}  // namespace

int main() {
    outputs();
    hang();
    exception();
    partial_kv();
    late();
    double_completion();
    write_after_reset();
    returns();
    unknown_task_types();
    limits();
    far_times();
    exceptions();
    plan();
    seeds();
    return failures != 0;
}
