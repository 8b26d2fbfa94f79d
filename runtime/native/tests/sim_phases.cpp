// Time: the phases of a job, two engines that overlap, and the two clocks. Stepped, so every time is exact.
#include <thread>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

const rig::Keys timed = {{"clock", 1}, {"h2d_us", 100}, {"prefill_us", 1000}, {"prefill_token_ns", 2000},
                         {"decode_us", 300}, {"d2h_us", 40},  {"pieces", 4}};

// 3 tokens: 100 + (1000 + 3 * 2) + 40.
void one_job() {
    rig::Card card(0, timed);
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, {5, 6, 7}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(card.truth("next_event_us"), 25);
    CHECK_EQUAL(card.truth("events_pending"), 1);
    card.advance(1105);
    CHECK_EQUAL(card.kv_length(), 0);
    card.advance(1);  // compute ends: KV is there, the output is not
    CHECK_EQUAL(card.kv_length(), 3);
    CHECK_EQUAL(slot->logits[2 * rig::vocabulary], 0);
    card.advance(39);
    CHECK(slot->output->GetStatus() == BufStatus::RUNNING);
    CHECK(slot->logits[2 * rig::vocabulary] != 0);  // row 2 lies in the first pieces
    CHECK_EQUAL(slot->logits[16 * rig::vocabulary - 1], 0);
    card.advance(1);
    card.finish(*slot);
    CHECK(slot->logits[16 * rig::vocabulary - 1] != 0);
    CHECK_EQUAL(card.truth("now_us"), 1146);
    CHECK_EQUAL(card.truth("busy_us"), 1006);
    CHECK_EQUAL(card.truth("idle_gap_us"), 100);  // it waited for its own input
    CHECK_EQUAL(card.truth("traffic_bytes"), 2 * 3 * 4 + 16384);
    CHECK(rig::violations_are(card, ""));
}

// Each phase has its step even when it takes no time.
void without_latency() {
    rig::Card card(0, {{"clock", 1}, {"pieces", 1}});
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK(card.step());
    CHECK_EQUAL(card.kv_length(), 0);
    CHECK(card.step());
    CHECK_EQUAL(card.kv_length(), 1);
    CHECK(slot->output->GetStatus() == BufStatus::RUNNING);
    CHECK(card.step() && !card.step());
    card.finish(*slot);
}

// Serial: 2 * (100 + 300 + 40). Overlapped: the second job's H2D hides behind the first one's compute, the first one's
// D2H behind the second one's compute: 100 + 300 + 300 + 40.
std::int64_t two_decodes_us(bool parallel, bool overlap) {
    rig::Card card(0, timed);
    card.set("engines_overlap", overlap);
    CHECK_EQUAL(card.device->EnableParallelMode(parallel), CalrtSuccess);
    const auto first = card.slot(rig::decode), second = card.slot(rig::decode);
    card.prepare(*first, {5}, 0, 1);
    card.prepare(*second, {6}, 0, 2);
    CHECK_EQUAL(card.infer(*first), CalrtSuccess);
    if (!parallel) {
        CHECK_EQUAL(card.infer(*second), DeviceBusy);
        card.settle();
        card.finish(*first);
    }
    CHECK_EQUAL(card.infer(*second), CalrtSuccess);
    card.settle();
    if (parallel) card.finish(*first);
    card.finish(*second);
    CHECK_EQUAL(card.truth("busy_us"), 600);
    CHECK_EQUAL(card.truth("jobs_completed"), 2);
    CHECK(rig::violations_are(card, ""));
    return card.truth("now_us");
}

void engines() {
    CHECK_EQUAL(two_decodes_us(false, true), 880);
    CHECK_EQUAL(two_decodes_us(true, true), 740);
    CHECK_EQUAL(two_decodes_us(true, false), 880);
}

void busy() {
    rig::Card card(0, timed);
    CHECK_EQUAL(card.device->EnableParallelMode(true), CalrtSuccess);
    const auto a = card.slot(rig::decode), b = card.slot(rig::decode), c = card.slot(rig::decode);
    card.prepare(*a, {5}, 0, 1);
    card.prepare(*b, {5}, 0, 2);
    card.prepare(*c, {5}, 0, 3);
    const auto fixed = [&](rig::Slot& slot, TaskType task) {
        return infer_with_fixed_task_type(card.device.get(), card.model(rig::decode), slot.input.get(),
                                          slot.output.get(), task);
    };
    CHECK_EQUAL(fixed(*a, TaskType::kPong), CalrtSuccess);
    CHECK_EQUAL(fixed(*b, TaskType::kPong), DeviceBusy);
    CHECK_EQUAL(card.device->EnableParallelMode(false), DeviceBusy);
    CHECK_EQUAL(card.infer(*b), CalrtSuccess);  // Auto takes the free one
    CHECK_EQUAL(card.infer(*c), DeviceBusy);
    card.settle();
    card.finish(*a);
    card.finish(*b);
    CHECK_EQUAL(card.infer(*c), CalrtSuccess);  // Busy had moved nothing
    card.settle();
    card.finish(*c);
    CHECK_EQUAL(card.truth("jobs_started"), 3);
    CHECK(rig::violations_are(card, ""));
}

void jitter() {
    const auto duration_us = [](std::int64_t seed) {
        rig::Card card(0, timed);
        card.set("jitter_permille", 200);
        card.set("jitter_seed", seed);
        const auto slot = card.slot(rig::decode);
        card.prepare(*slot, {5}, 0);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.settle();
        card.finish(*slot);
        return card.truth("now_us");
    };
    CHECK_EQUAL(duration_us(7), duration_us(7));
    CHECK(duration_us(7) != 440 && duration_us(7) >= 352 && duration_us(7) <= 528);
    CHECK(duration_us(7) != duration_us(8) || duration_us(7) != duration_us(9));
}

void waits() {
    rig::Card card(0, timed);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.set("wait_blocks", 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(slot->output->Wait(), Timeout);
    card.set("wait_blocks", 1);
    card.set("wait_timeout_us", 200);
    ReturnCode code = CalrtSuccess;
    std::thread waiter([&] { code = slot->output->Wait(); });
    for (int waits = 0; waits < 2; std::this_thread::yield()) {  // until the second one is in the trace
        std::vector<calrtsim_call> calls(64);
        std::uint32_t read = 0;
        std::int64_t total = 0;
        CHECK_EQUAL(calrtsim_trace(0, 0, 64, calls.data(), &read, &total), 0);
        waits = 0;
        for (std::uint32_t i = 0; i < read; ++i) waits += std::string(calls[i].call) == "wait";
    }
    card.advance(199);
    card.advance(1);
    waiter.join();
    CHECK_EQUAL(code, Timeout);
    card.set("wait_timeout_us", 0);
    std::thread stepper([&] { card.settle(); });
    card.finish(*slot);  // blocks until the other thread has moved the clock
    stepper.join();
    CHECK_EQUAL(card.truth("now_us"), 440);
}

void real_clock() {
    rig::Card card(0, {{"decode_us", 20000}, {"wait_timeout_us", 1000}});
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(slot->output->Wait(), Timeout);
    CHECK(slot->output->GetStatus() == BufStatus::RUNNING);
    card.set("wait_timeout_us", 0);
    card.finish(*slot);
    CHECK_EQUAL(card.truth("busy_us") + card.truth("idle_gap_us"), 20000);  // idle: a late thread, nothing else
    CHECK_EQUAL(calrtsim_step(0, nullptr), -1);
    CHECK(std::string(calrtsim_last_error()).find("stepped") != std::string::npos);
}

}  // namespace

int main() {
    one_job();
    without_latency();
    engines();
    busy();
    jitter();
    waits();
    real_clock();
    return failures != 0;
}
