// The ABI trace and the violations: what is recorded, and that nothing grows without end.
#include "sim_rig.hpp"

using namespace calrt;

namespace {

std::vector<calrtsim_call> trace(std::int64_t from, std::uint32_t capacity, std::int64_t* total) {
    std::vector<calrtsim_call> calls(capacity);
    std::uint32_t read = 0;
    CHECK_EQUAL(calrtsim_trace(0, from, capacity, calls.data(), &read, total), 0);
    calls.resize(read);
    return calls;
}

void one_job() {
    std::int64_t total = 0;
    {
        rig::Card card;
        const auto slot = card.slot(rig::prefill);
        card.run(*slot, {5, 6}, 0);
    }
    std::string names;
    const auto calls = trace(0, 100, &total);
    for (const auto& call : calls) names += std::string(call.call) + " ";
    CHECK(names == "open configure create_kv create_input create_output map_buf map_buf map_buf apply slice_tensor "
                   "slice_tensor set_csr set_csr bind_sequence infer wait get_status destroy destroy destroy_kv "
                   "close ");
    CHECK_EQUAL(total, calls.size());
    const auto& input = calls[3], &output = calls[4], &infer = calls[14], &wait = calls[15];
    CHECK(infer.handle == input.handle && infer.other == output.handle && wait.handle == output.handle);
    CHECK(infer.a == 1 && infer.b == -1 && wait.a == 1);  // job 1, engine Auto
    CHECK(calls[5].a == 1024 && std::string(calls[5].text) == "ids");
    CHECK(calls[12].a == 2 && std::string(calls[12].text) == "total");
    CHECK_EQUAL(calls[16].result, BufStatus::DONE);
    CHECK(calls[8].a == 0 && calls[8].b == 2 && calls[8].result == 1);  // Apply(0, 2)
    for (std::size_t i = 0; i < calls.size(); ++i) {
        CHECK(calls[i].number == static_cast<std::int64_t>(i) && calls[i].thread == gettid());
        CHECK(calls[i].begin_ns <= calls[i].end_ns && (i == 0 || calls[i - 1].begin_ns <= calls[i].begin_ns));
        CHECK(calls[i].begin_us <= calls[i].end_us && (i == 0 || calls[i - 1].begin_us <= calls[i].begin_us));
    }
}

void bounded() {
    rig::Card card(0, {{"trace_limit", 10}, {"violation_limit", 3}});
    const auto slot = card.slot(rig::decode);
    for (int i = 0; i < 100; ++i) CHECK_EQUAL(slot->output->Wait(), Unexpected);
    std::int64_t total = 0;
    const auto calls = trace(0, 1000, &total);
    CHECK(calls.size() == 0 || calls.front().number == total - 10);
    const auto kept = trace(total - 10, 1000, &total);
    CHECK_EQUAL(kept.size(), 10);
    CHECK_EQUAL(total, 8 + 100);
    CHECK(trace(total, 5, &total).empty() && trace(total - 2, 1, &total).size() == 1);
    std::vector<calrtsim_violation> found(10);
    std::uint32_t read = 0;
    CHECK_EQUAL(calrtsim_violations(0, 97, 10, found.data(), &read, &total), 0);
    CHECK(read == 3 && total == 100 && found[0].number == 97 && std::string(found[0].kind) == "call_order");
    CHECK(std::string(found[0].text).find("wait is impossible in state Mapped") != std::string::npos);
    card.set("trace_limit", 0);
    CHECK_EQUAL(slot->output->Wait(), Unexpected);
    CHECK(trace(0, 1000, &total).empty());
}

// A smaller limit drops what is beyond it at once, and not with the next record.
void smaller_limits() {
    rig::Card card;
    const auto slot = card.slot(rig::decode);
    for (int i = 0; i < 50; ++i) CHECK_EQUAL(slot->output->Wait(), Unexpected);
    std::int64_t total = 0, before = 0;
    CHECK_EQUAL(trace(0, 1000, &before).size(), before);
    card.set("trace_limit", 7);
    const auto kept = trace(0, 1000, &total);
    CHECK(kept.size() == 7 && total == before && kept.front().number == total - 7);
    card.set("trace_limit", 0);
    CHECK(trace(0, 1000, &total).empty() && total == before);
    std::vector<calrtsim_violation> found(100);
    std::uint32_t read = 0;
    for (const std::uint32_t limit : {4u, 0u}) {
        card.set("violation_limit", limit);
        CHECK_EQUAL(calrtsim_violations(0, 0, 100, found.data(), &read, &total), 0);
        CHECK(read == limit && total == 50);
    }
}

void counts() {
    rig::Card card;
    const std::int64_t empty = card.truth("memory_used");
    {
        const auto slot = card.slot(rig::prefill);
        CHECK(card.kv->Apply(0, 1));
        CHECK(card.truth("buffers_created") == 2 && card.truth("buffers_alive") == 2);
        CHECK_EQUAL(card.device->MemoryUsed() - static_cast<std::uint64_t>(empty), 2 * 1024 + 16384 + 128 * 1024);
        CHECK(card.kv->Apply(0, 0));
    }
    CHECK(card.truth("buffers_created") == 2 && card.truth("buffers_alive") == 0);
    CHECK_EQUAL(card.truth("memory_used"), empty);
}

void panel() {
    rig::Card card;
    std::int64_t value = 0;
    std::uint32_t keys = 0;
    calrtsim_key_info info;
    for (; calrtsim_key(keys, &info) == 0; ++keys) {
        CHECK_EQUAL(calrtsim_get(0, info.name, &value), 0);
        CHECK_EQUAL(value, info.default_value);
        const bool bounded = info.maximum < INT64_MAX;
        CHECK_EQUAL(calrtsim_set(0, info.name, info.maximum + bounded), bounded ? -1 : 0);
        CHECK(std::strlen(info.about) > 10 && std::strlen(info.about) < sizeof info.about - 1);
    }
    CHECK(keys > 20);
    CHECK_EQUAL(calrtsim_set(0, "colour", 1), -1);
    CHECK(std::string(calrtsim_last_error()).find("colour") != std::string::npos);
    CHECK_EQUAL(calrtsim_truth(0, "weather", &value), -1);
    CHECK_EQUAL(calrtsim_set(64, "clock", 1), -1);
    CHECK_EQUAL(calrtsim_kv(0, 5, &value, nullptr), -1);
    card.set("clock", 1);
    for (int i = 0; i < 1024; ++i) CHECK_EQUAL(calrtsim_advance(0, std::int64_t{1} << 50), 0);
    CHECK_EQUAL(calrtsim_advance(0, 1), -1);  // 2^60 is the end of time
    std::shared_ptr<VirtualDevice> none;
    CHECK_EQUAL(VirtualDevice::Open(64, &none), OutOfRange);
}

// By the stepped clock: from the call of infer() on, through all three phases, and no moment longer.
void ended_jobs() {
    rig::Card card(0, {{"clock", 1}, {"h2d_us", 100}, {"decode_us", 500}, {"d2h_us", 40}, {"wait_blocks", 0}});
    const auto slot = card.slot(rig::decode);
    card.advance(7);
    for (int i = 0; i < 3; ++i) {
        card.prepare(*slot, {5}, static_cast<std::uint32_t>(i));
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.advance(1000);
        card.finish(*slot);
    }
    std::vector<calrtsim_job> jobs(10);
    std::uint32_t read = 0;
    std::int64_t total = 0;
    CHECK_EQUAL(calrtsim_jobs(0, 0, 10, jobs.data(), &read, &total), 0);
    CHECK(read == 3 && total == 3);
    for (std::uint32_t i = 0; i < read; ++i) {
        CHECK(jobs[i].number == i && jobs[i].job == i + 1);
        CHECK_EQUAL(jobs[i].begin_us, 7 + 1000 * i);
        CHECK_EQUAL(jobs[i].end_us, 7 + 1000 * i + 640);
        CHECK_EQUAL(jobs[i].told_us, jobs[i].end_us);
    }
    card.set("trace_limit", 2);
    CHECK_EQUAL(calrtsim_jobs(0, 0, 10, jobs.data(), &read, &total), 0);
    CHECK(read == 2 && total == 3 && jobs[0].job == 2);
    CHECK_EQUAL(calrtsim_jobs(0, 0, 10, nullptr, &read, &total), -1);
}

}  // namespace

int main() {
    ended_jobs();
    one_job();
    bounded();
    smaller_limits();
    counts();
    panel();
    return failures != 0;
}
