// Each vendor fact on both settings: what a host can see of it. Stepped, but for the process that leaves.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

const rig::Keys stepped = {{"clock", 1}, {"decode_us", 10}};

rig::Card card_with(const char* fact, std::int64_t holds) {
    rig::Keys keys = stepped;
    keys.emplace_back(fact, holds);
    return rig::Card(0, keys);
}

bool all_zero(const std::vector<std::uint16_t>& words) {
    return std::all_of(words.begin(), words.end(), [](std::uint16_t w) { return w == 0; });
}

void submit_error_starts_nothing(bool holds) {
    rig::Card card = card_with("submit_error_starts_nothing", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "return", UnknownError);
    CHECK_EQUAL(card.infer(*slot), UnknownError);
    card.settle();
    CHECK_EQUAL(card.kv_length(), holds ? 0 : 1);
    CHECK_EQUAL(all_zero(slot->logits), holds);
}

void busy_starts_nothing(bool holds) {
    rig::Card card = card_with("busy_starts_nothing", holds);
    const auto first = card.slot(rig::decode), second = card.slot(rig::decode);
    card.prepare(*first, {5}, 0, 1);
    card.prepare(*second, {6}, 0, 2);
    CHECK_EQUAL(card.infer(*first), CalrtSuccess);
    CHECK_EQUAL(card.infer(*second), DeviceBusy);
    card.settle();
    card.finish(*first);
    CHECK_EQUAL(card.kv_length(1), 1);
    CHECK_EQUAL(card.kv_length(2), holds ? 0 : 1);
    CHECK_EQUAL(card.truth("now_us"), holds ? 10 : 20);
}

void exception_stops_dma(bool holds) {
    rig::Card card = card_with("exception_stops_dma", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "ccu_exception");
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    card.advance(10);
    CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
    CHECK(slot->output->GetStatus() == BufStatus::DONE_CCU_EXCEPTION);
    CHECK(all_zero(slot->logits));
    card.settle();
    CHECK_EQUAL(all_zero(slot->logits), holds);
    CHECK_EQUAL(card.truth("broken"), 1);
    CHECK_EQUAL(card.kv_length(), 0);
}

void reset_stops_dma(bool holds) {
    rig::Card card = card_with("reset_stops_dma", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK(slot->output->GetStatus() == (holds ? BufStatus::KILLED : BufStatus::RUNNING));
    card.settle();
    CHECK_EQUAL(all_zero(slot->logits), holds);
    CHECK_EQUAL(slot->output->Wait(), holds ? DeviceUnavailable : CalrtSuccess);
}

void reset_clears_kv(bool holds) {
    rig::Card card = card_with("reset_clears_kv", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    card.settle();
    card.finish(*slot);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(card.kv_length(), holds ? -1 : 1);
}

void reset_is_honest(bool holds) {
    rig::Card card = card_with("reset_is_honest", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    card.fault("infer", "hang");
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    card.settle();
    CHECK_EQUAL(card.truth("broken"), 1);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(card.truth("broken"), holds ? 0 : 1);
    CHECK_EQUAL(card.truth("jobs_running"), holds ? 0 : 1);
    card.configure();
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);  // only the first one lies
    CHECK_EQUAL(card.truth("broken"), 0);
    CHECK_EQUAL(card.truth("jobs_running"), 0);
}

void leftover_harmless(bool holds) {
    rig::Card card = card_with("leftover_harmless", holds);
    card.set("reset_stops_dma", 0);
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, {5, 6}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
    CHECK(card.kv->Apply(0, 4));
    card.settle();
    CHECK_EQUAL(card.kv_length(), holds ? 0 : 2);
}

// A golden run of few tokens after a NaN that no reset has cured.
void golden_sees_broken_device(bool holds) {
    rig::Card card = card_with("golden_sees_broken_device", holds);
    const auto slot = card.slot(rig::decode);
    const auto golden = [&](std::int32_t sequence) {
        card.prepare(*slot, {5}, 0, sequence);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.settle();
        card.finish(*slot);
        CHECK_EQUAL(slot->input->UndoSlice("ids"), CalrtSuccess);
        return std::vector<std::uint16_t>(slot->logits);
    };
    const auto right = golden(0);
    card.fault("infer", "nan", 3);
    const auto with_nan = golden(1);
    CHECK_EQUAL(with_nan[3], 0x7FC0);
    CHECK_EQUAL(card.truth("broken"), 1);
    CHECK_EQUAL(golden(2) == right, !holds);
    const auto longer = card.slot(rig::prefill);
    std::vector<std::int32_t> tokens(64, 5);
    card.prepare(*longer, tokens, 0, 3);
    CHECK_EQUAL(card.infer(*longer), CalrtSuccess);
    card.settle();
    card.finish(*longer);
    const auto wrong = longer->logits;
    CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
    const auto again = card.slot(rig::prefill);
    card.prepare(*again, tokens, 0, 3);
    CHECK_EQUAL(card.infer(*again), CalrtSuccess);
    card.settle();
    card.finish(*again);
    CHECK(wrong != again->logits);  // from 64 tokens on it shows either way
}

void no_late_completion(bool holds) {
    rig::Card card = card_with("no_late_completion", holds);
    const auto slot = card.slot(rig::decode);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(slot->output->Wait(), holds ? DeviceUnavailable : CalrtSuccess);
    CHECK(slot->output->GetStatus() == (holds ? BufStatus::KILLED : BufStatus::DONE));
    CHECK(all_zero(slot->logits));
}

// A process that leaves with a job in flight over shared memory. Its parent looks what is written afterwards.
void process_exit_stops_dma(bool holds) {
    const std::size_t bytes = 1024;
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const auto* const words = static_cast<volatile std::uint16_t*>(page);
    CHECK_EQUAL(calrtsim_power_cycle(0), 0);  // no engine thread may exist where we fork
    const pid_t child = fork();
    if (child == 0) {
        failures = 0;
        rig::Card card(0, {{"process_exit_stops_dma", holds}, {"decode_us", 200000}});
        const auto slot = card.slot(rig::decode);
        CHECK_EQUAL(slot->output->MapBuf("logits", page, bytes), CalrtSuccess);
        card.prepare(*slot, {5}, 0);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        if (failures == 0) raise(SIGKILL);  // not _exit(): the thread sanitizer lingers there
        _exit(1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQUAL(words[0], 0);
    for (int tries = 0; tries < (holds ? 40 : 1000) && words[511] == 0; ++tries) usleep(10000);
    CHECK_EQUAL(words[0], holds ? 0 : 0x5A5A);
    CHECK_EQUAL(words[511], holds ? 0 : 0x5A5A);
    munmap(page, bytes);
}

// The process stops in the middle of its output, and leaves when the planned time is long over: what it did not live to
// write is written all the same, and what it wrote stays.
void late_ghost_writes_the_rest() {
    const std::size_t bytes = 1024;  // 8 pieces of 64 words
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const auto* const words = static_cast<volatile std::uint16_t*>(page);
    CHECK_EQUAL(calrtsim_power_cycle(0), 0);
    const pid_t child = fork();
    if (child == 0) {
        failures = 0;
        setpgid(0, 0);            // the ghost is stopped with it
        signal(SIGHUP, SIG_IGN);  // which the group gets when it is left alone
        rig::Card card(0, {{"process_exit_stops_dma", 0}, {"d2h_us", 1000000}});
        const auto slot = card.slot(rig::decode);
        CHECK_EQUAL(slot->output->MapBuf("logits", page, bytes), CalrtSuccess);
        card.prepare(*slot, {5}, 0);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        while (failures == 0 && words[64] == 0) usleep(1000);  // the first piece, and that it was told, are over
        if (failures == 0) kill(0, SIGSTOP);
        _exit(1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    usleep(1200000);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    kill(-child, SIGCONT);
    for (int tries = 0; tries < 1000 && words[511] != 0x5A5A; ++tries) usleep(10000);
    CHECK(words[0] != 0 && words[0] != 0x5A5A);
    CHECK_EQUAL(words[448], 0x5A5A);
    CHECK_EQUAL(words[511], 0x5A5A);
    munmap(page, bytes);
}

// The ghost is asked to leave when the job is over, and is reaped: this process has no child then.
void ghost_leaves() {
    std::unique_ptr<rig::Slot> slot;  // its memory outlives the card's last job
    {
        rig::Card card(0, {{"process_exit_stops_dma", 0}, {"decode_us", 2000}});
        slot = card.slot(rig::decode);
        card.run(*slot, {5}, 0);
        CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
        card.prepare(*slot, {6}, 1);
        card.fault("infer", "hang");
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        CHECK(waitpid(-1, nullptr, WNOHANG) == 0);
    }
    CHECK_EQUAL(calrtsim_power_cycle(0), 0);
    CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

}  // namespace

int main() {
    for (const bool holds : {true, false}) {
        submit_error_starts_nothing(holds);
        busy_starts_nothing(holds);
        exception_stops_dma(holds);
        reset_stops_dma(holds);
        reset_clears_kv(holds);
        reset_is_honest(holds);
        leftover_harmless(holds);
        golden_sees_broken_device(holds);
        no_late_completion(holds);
        process_exit_stops_dma(holds);
    }
    late_ghost_writes_the_rest();
    ghost_leaves();
    return failures != 0;
}
