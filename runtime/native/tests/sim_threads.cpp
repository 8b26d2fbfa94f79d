// Many host threads on two devices with the real clock: the card's own locking, with true waiting and true DMA.
#include <atomic>
#include <thread>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

// Each thread has a sequence and buffers of its own; Busy is answered by trying again after the running job.
void generate(rig::Card& card, std::int32_t sequence, std::vector<std::int32_t>* out) {
    const auto prefill = card.slot(rig::prefill), decode = card.slot(rig::decode);
    const auto run = [&](rig::Slot& slot, const std::vector<std::int32_t>& tokens, std::uint32_t past) {
        card.prepare(slot, tokens, past, sequence);
        ReturnCode code = DeviceBusy;
        while ((code = card.infer(slot)) == DeviceBusy) std::this_thread::yield();
        CHECK_EQUAL(code, CalrtSuccess);
        card.finish(slot);
        return card.argmax(slot, tokens.size());
    };
    std::int32_t token = run(*prefill, {5, 6}, 0);
    for (std::uint32_t past = 2; past < 22; ++past) {
        out->push_back(token);
        token = run(*decode, {token}, past);
    }
}

void two_cards() {
    rig::Card first(0, {{"decode_us", 20}, {"d2h_us", 10}}), second(1);
    CHECK_EQUAL(first.device->EnableParallelMode(true), CalrtSuccess);
    std::vector<std::vector<std::int32_t>> streams(8);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < streams.size(); ++i) {
        threads.emplace_back([&, i] { generate(i % 2 ? first : second, static_cast<std::int32_t>(i), &streams[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& stream : streams) CHECK(stream == streams[0]);
    CHECK((std::vector<std::int32_t>(streams[0].begin(), streams[0].begin() + 6) ==
           std::vector<std::int32_t>{267, 125, 385, 203, 304, 17}));
    CHECK(rig::violations_are(first, "") && rig::violations_are(second, ""));
}

// A reset wakes whoever waits, and the card runs on.
void reset_while_waiting() {
    rig::Card card(0, {{"decode_us", 3000}});
    for (int round = 0; round < 20; ++round) {
        const auto slot = card.slot(rig::decode);
        card.prepare(*slot, {5}, 0);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        ReturnCode code = CalrtSuccess;
        std::thread waiter([&] { code = slot->output->Wait(); });
        if (round % 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
        CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
        waiter.join();
        CHECK(code == DeviceUnavailable || code == CalrtSuccess);
        CHECK((code == DeviceUnavailable) == (slot->output->GetStatus() == BufStatus::KILLED));
    }
    CHECK(rig::violations_are(card, ""));
}

// The other threads ask, set and read while jobs run.
void panel_meanwhile() {
    rig::Card card;
    std::atomic<bool> over{false};
    std::thread asker([&] {
        while (!over) {
            card.truth("idle_gap_us");
            card.kv_length();
            card.violations();
            card.device->MemoryUsed();
            std::vector<calrtsim_call> calls(16);
            std::uint32_t read = 0;
            std::int64_t total = 0;
            CHECK_EQUAL(calrtsim_trace(0, 0, 16, calls.data(), &read, &total), 0);
        }
    });
    std::vector<std::int32_t> stream;
    generate(card, 0, &stream);
    over = true;
    asker.join();
}

// A handle destroyed under a waiting thread: recorded, and the waiter still gets its answer.
void destroyed_under_a_waiter() {
    rig::Card card(0, {{"decode_us", 5000}});
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    const std::shared_ptr<CalrtOutputBuf> shared = slot->output;
    std::thread waiter([shared] { CHECK_EQUAL(shared->Wait(), CalrtSuccess); });
    slot->input = nullptr;
    waiter.join();
    CHECK(rig::violations_are(card, "destroyed"));
}

void power_cycles() {
    for (int round = 0; round < 50; ++round) {
        std::unique_ptr<rig::Slot> slot;  // its memory outlives the card's last job
        {
            rig::Card card(0, {{"decode_us", 1000}});
            CHECK_EQUAL(calrtsim_power_cycle(0), -1);
            slot = card.slot(rig::decode);
            card.prepare(*slot, {5}, 0);
            CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
            if (round % 3) card.finish(*slot);
        }
        CHECK_EQUAL(calrtsim_power_cycle(0), 0);
        std::int64_t jobs = -1;
        CHECK_EQUAL(calrtsim_truth(0, "jobs_running", &jobs), 0);
        CHECK_EQUAL(jobs, 0);
        CHECK_EQUAL(slot->output->MapBuf("logits", slot->logits.data(), 1024), NotConfigured);
    }
}

// Power cycles while another thread opens the card, works and closes it: no job is ever left without an engine.
void power_cycles_against_open() {
    constexpr int rounds = 2000;
    std::shared_ptr<Calbin> calbin;
    CHECK_EQUAL(rig::load(rig::calbin_text(), &calbin), CalrtSuccess);
    const Model& model = calbin->GetAllModels()[rig::decode];
    CHECK_EQUAL(calrtsim_power_cycle(0), 0);
    std::atomic<bool> over{false};
    std::atomic<int> tries{0}, cycles{0};
    std::thread cycler([&] {
        while (!over) {
            ++tries;
            if (calrtsim_power_cycle(0) == 0) ++cycles;
            std::this_thread::yield();
        }
    });
    std::int32_t id = 5, position = 0;
    std::vector<std::uint16_t> logits(rig::vocabulary);
    for (int round = 0; round < rounds && failures == 0; ++round) {
        std::shared_ptr<VirtualDevice> device;
        for (const int seen = tries; seen == tries;) std::this_thread::yield();  // a power cycle is just beginning
        for (int pause = 0; pause < round % 8; ++pause) std::this_thread::yield();
        CHECK_EQUAL(VirtualDevice::Open(0, &device), CalrtSuccess);
        CHECK_EQUAL(calrtsim_set(0, "wait_timeout_us", 20000000), 0);
        CHECK_EQUAL(device->Configure(calbin), CalrtSuccess);
        std::shared_ptr<KvManager> kv;
        CHECK_EQUAL(KvManager::Create(device, &kv), CalrtSuccess);
        std::shared_ptr<CalrtInputBuf> input;
        std::shared_ptr<CalrtOutputBuf> output;
        CHECK_EQUAL(CalrtInputBuf::Create(device, model, &input), CalrtSuccess);
        CHECK_EQUAL(CalrtOutputBuf::Create(device, model, &output), CalrtSuccess);
        CHECK_EQUAL(input->MapBuf("ids", &id, sizeof id), CalrtSuccess);
        CHECK_EQUAL(input->MapBuf("positions", &position, sizeof position), CalrtSuccess);
        CHECK_EQUAL(output->MapBuf("logits", logits.data(), logits.size() * 2), CalrtSuccess);
        CHECK(kv->Apply(0, 1));
        CHECK_EQUAL(input->SetCsrByName("cur", 1), CalrtSuccess);
        CHECK_EQUAL(input->SetCsrByName("total", 1), CalrtSuccess);
        CHECK_EQUAL(input->BindSequence(0), CalrtSuccess);
        CHECK_EQUAL(infer(device.get(), model, input.get(), output.get()), CalrtSuccess);
        CHECK_EQUAL(output->Wait(), CalrtSuccess);
        CHECK_EQUAL(output->GetStatus(), BufStatus::DONE);
    }
    over = true;
    cycler.join();
    CHECK(cycles > 0);
    CHECK_EQUAL(calrtsim_power_cycle(0), 0);
}

}  // namespace

int main() {
    two_cards();
    reset_while_waiting();
    panel_meanwhile();
    destroyed_under_a_waiter();
    power_cycles();
    power_cycles_against_open();
    return failures != 0;
}
