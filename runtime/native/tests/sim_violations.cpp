// Each kind of violation, and that the mutants hide theirs; what infer() and the buffers refuse; and that a host that
// does all in order violates nothing.
#include <sys/mman.h>

#include <algorithm>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

const rig::Keys stepped = {{"clock", 1}, {"pieces", 2}};

// A job of one token in flight on a stepped card, then what `host` does, then the job's end.
template <class Host>
std::string after(Host host, const char* mutant = nullptr, const rig::Keys& keys = stepped) {
    rig::Card card(0, keys);
    if (mutant) card.set(mutant, 1);
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    host(card, *slot);
    card.settle();
    if (slot->output) CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
    return card.violations();
}

void steps(rig::Card& card, int count) {
    for (int i = 0; i < count; ++i) CHECK(card.step());
}

void memory() {
    const auto before_read = [](rig::Card&, rig::Slot& slot) { slot.ids[0] = 6; };
    CHECK(after(before_read) == "input_changed");
    CHECK(after(before_read, "mutant_no_checksum") == "");
    CHECK(after([](rig::Card& card, rig::Slot& slot) {  // the device has read it, but the job is not over
              steps(card, 3);
              slot.positions[0] = 9;
          }) == "input_changed");
    const auto over_output = [](rig::Card& card, rig::Slot& slot) {
        steps(card, 4);
        slot.logits[0] ^= 1;
    };
    CHECK(after(over_output) == "output_changed");
    CHECK(after(over_output, "mutant_no_checksum") == "");
    CHECK(after([](rig::Card&, rig::Slot& slot) { slot.ids[1] = 6; }) == "");  // beyond the slice
}

void gone(bool output) {
    rig::Card card(0, stepped);
    const std::size_t bytes = output ? 16384 : 1024;
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto slot = card.slot(rig::prefill);
    if (output) {
        CHECK_EQUAL(slot->output->MapBuf("logits", page, bytes), CalrtSuccess);
    } else {
        CHECK_EQUAL(slot->input->MapBuf("positions", page, bytes), CalrtSuccess);
    }
    card.prepare(*slot, {5}, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    munmap(page, bytes);
    card.settle();
    CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
    CHECK(slot->output->GetStatus() == BufStatus::DONE_CCU_EXCEPTION);
    CHECK_EQUAL(card.truth("broken"), 1);
    CHECK(rig::violations_are(card, "unmapped"));
}

void handles() {
    const auto map = [](rig::Card&, rig::Slot& slot) {
        CHECK_EQUAL(slot.input->MapBuf("ids", slot.ids.data(), 1024), Unexpected);
    };
    CHECK(after(map) == "remapped");
    CHECK(after(map, "mutant_forget_live_range") == "call_order");
    CHECK(after([](rig::Card&, rig::Slot& slot) {
              CHECK_EQUAL(slot.input->UndoSlice("ids"), Unexpected);
          }) == "remapped");
    CHECK(after([](rig::Card&, rig::Slot& slot) {
              CHECK_EQUAL(slot.output->SliceTensor("logits", 0, 1), Unexpected);
          }) == "remapped");
    CHECK(after([](rig::Card&, rig::Slot& slot) { slot.input = nullptr; }) == "destroyed");
    CHECK(after([](rig::Card&, rig::Slot& slot) { slot.output = nullptr; }) == "destroyed");
    CHECK(after([](rig::Card& card, rig::Slot&) { card.device = nullptr; }) == "destroyed");
}

void reuse() {
    const auto map = [](rig::Card& card, rig::Slot& slot) {
        const auto other = card.slot(rig::decode);
        CHECK_EQUAL(other->input->MapBuf("ids", slot.ids.data(), 4), CalrtSuccess);
    };
    CHECK(after(map) == "reused");
    CHECK(after(map, "mutant_forget_live_range") == "");
    rig::Card card(0, stepped);
    CHECK_EQUAL(card.device->EnableParallelMode(true), CalrtSuccess);
    const auto a = card.slot(rig::decode), b = card.slot(rig::decode);
    CHECK_EQUAL(b->output->MapBuf("logits", a->logits.data(), 1024), CalrtSuccess);
    card.prepare(*a, {5}, 0, 1);
    card.prepare(*b, {6}, 0, 2);
    CHECK_EQUAL(card.infer(*a), CalrtSuccess);
    CHECK(rig::violations_are(card, ""));
    CHECK_EQUAL(card.infer(*b), CalrtSuccess);
    CHECK(rig::violations_are(card, "reused"));
}

void lengths() {
    const auto status = [](const char* csr, std::int64_t value, const char* mutant, const char* wanted) {
        rig::Card card(0, stepped);
        if (mutant) card.set(mutant, 1);
        const auto slot = card.slot(rig::prefill);
        card.prepare(*slot, {5, 6, 7}, 0);
        CHECK_EQUAL(slot->input->SetCsrByName(csr, value), CalrtSuccess);
        CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
        card.settle();
        CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
        CHECK(rig::violations_are(card, wanted));
        return slot->output->GetStatus();
    };
    CHECK(status("cur", 2, nullptr, "csr_mismatch") == BufStatus::DONE_CCU_EXCEPTION);
    CHECK(status("cur", 2, "mutant_ignore_csr", "") == BufStatus::DONE);
    CHECK(status("total", 2, nullptr, "past_len_mismatch") == BufStatus::DONE_CCU_EXCEPTION);
    CHECK(status("total", 2, "mutant_ignore_csr", "") == BufStatus::DONE);
    // A job that says it goes on from 2 where the device holds 3.
    const auto wrong_past = [](const char* mutant, const char* wanted) {
        rig::Card card;
        if (mutant) card.set(mutant, 1);
        const auto prefill = card.slot(rig::prefill), decode = card.slot(rig::decode);
        card.run(*prefill, {5, 6, 7}, 0);
        card.prepare(*decode, {8}, 3);
        decode->positions[0] = 2;
        CHECK_EQUAL(decode->input->SetCsrByName("total", 3), CalrtSuccess);
        CHECK_EQUAL(card.infer(*decode), CalrtSuccess);
        CHECK_EQUAL(decode->output->Wait(), CalrtSuccess);
        CHECK(rig::violations_are(card, wanted));
        return decode->output->GetStatus();
    };
    CHECK(wrong_past(nullptr, "past_len_mismatch") == BufStatus::DONE_CCU_EXCEPTION);
    CHECK(wrong_past("mutant_any_past_len", "") == BufStatus::DONE);
}

void wrong_position() {
    rig::Card card;
    const auto slot = card.slot(rig::prefill);
    card.prepare(*slot, {5, 6}, 0);
    slot->positions[1] = 0;
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
    CHECK(slot->output->GetStatus() == BufStatus::DONE_CCU_EXCEPTION);
    CHECK(rig::violations_are(card, ""));
}

void order() {
    rig::Card card;
    const auto slot = card.slot(rig::decode);
    CHECK_EQUAL(slot->output->Wait(), Unexpected);
    CHECK_EQUAL(card.infer(*slot), Unexpected);  // the input is Mapped, not Programmed
    CHECK_EQUAL(card.device->Configure(card.calbin), AlreadyConfigured);
    CHECK(rig::violations_are(card, "call_order call_order call_order"));
    std::shared_ptr<VirtualDevice> again;
    CHECK_EQUAL(VirtualDevice::Open(0, &again), AlreadyRegistered);
    CHECK(!again);
}

void refusals() {
    rig::Card card;
    const auto slot = card.slot(rig::prefill), decode = card.slot(rig::decode);
    CHECK_EQUAL(slot->input->MapBuf("logits", slot->logits.data(), 16384), WrongDirection);
    CHECK_EQUAL(slot->output->MapBuf("ids", slot->ids.data(), 1024), WrongDirection);
    CHECK_EQUAL(slot->input->MapBuf("idz", slot->ids.data(), 1024), IllegalValue);
    CHECK_EQUAL(slot->input->MapBuf("ids", nullptr, 1024), IllegalValue);
    CHECK_EQUAL(slot->input->MapBuf("ids", slot->ids.data(), 1025), OutOfRange);
    CHECK_EQUAL(slot->output->MapBuf("logits", slot->logits.data(), 16383), OutOfRange);
    CHECK_EQUAL(slot->output->MapBuf("logits", slot->logits.data(), UINT64_MAX), OutOfRange);  // its end wraps
    CHECK_EQUAL(slot->input->SliceTensor("ids", 0, 257), OutOfRange);
    CHECK_EQUAL(slot->input->SliceTensor("ids", 257, 0), OutOfRange);
    CHECK_EQUAL(slot->input->SliceTensor("ids", UINT64_MAX, 2), OutOfRange);
    CHECK_EQUAL(decode->output->SliceTensor("logits", 0, 1), Unsupported);
    CHECK_EQUAL(slot->input->SetCsrByName("curr", 1), IllegalValue);
    CHECK_EQUAL(slot->input->SetCsrByName("cur", 2), CalrtSuccess);
    CHECK_EQUAL(card.infer(*slot), IllegalValue);  // no sequence, no total
    card.prepare(*decode, {5}, 0);
    CHECK_EQUAL(decode->input->SetCsrByName("total", 2), CalrtSuccess);
    CHECK_EQUAL(card.infer(*decode), OutOfRange);  // room for 1
    const auto two = card.slot(rig::prefill);
    card.prepare(*two, {5, 6}, 0);
    CHECK_EQUAL(infer(card.device.get(), card.model(rig::decode), two->input.get(), two->output.get()), IllegalValue);
    CHECK_EQUAL(infer(card.device.get(), card.model(rig::prefill), two->input.get(), decode->output.get()), WrongShape);
    CHECK(!card.kv->Apply(0, rig::max_seq + 1) && !card.kv->Apply(-1, 1));
    CHECK_EQUAL(card.truth("jobs_started"), 0);
    CHECK(rig::violations_are(card, ""));
}

void unequal_slices() {
    rig::Card card;
    const auto slot = card.slot(rig::prefill);
    CHECK(card.kv->Apply(0, 2));
    CHECK_EQUAL(slot->input->SliceTensor("ids", 0, 2), CalrtSuccess);
    CHECK_EQUAL(slot->input->SliceTensor("positions", 0, 1), CalrtSuccess);
    CHECK_EQUAL(slot->input->SetCsrByName("cur", 2), CalrtSuccess);
    CHECK_EQUAL(slot->input->SetCsrByName("total", 2), CalrtSuccess);
    CHECK_EQUAL(slot->input->BindSequence(0), CalrtSuccess);
    CHECK_EQUAL(card.infer(*slot), WrongShape);
}

void kv_blocks() {
    rig::Card card(0, {{"kv_units", 3}, {"kv_block_tokens", 64}});
    CHECK_EQUAL(card.kv->TokensPerUnit(), 64);
    CHECK_EQUAL(card.kv->UnitsTotal(), 3);
    CHECK(card.kv->Apply(1, 64) && card.kv->Apply(2, 65));
    CHECK(!card.kv->canAllocate(1) && !card.kv->Apply(1, 65));
    CHECK(card.kv->Apply(2, 64) && card.kv->canAllocate(1) && !card.kv->canAllocate(2));
    CHECK(card.kv->Apply(1, 65) && card.kv->Apply(1, 0) && card.kv->canAllocate(2));
    CHECK_EQUAL(calrtsim_set(0, "kv_units", 5), -1);  // sequence 2 is held
}

// An output slice: only those elements are written, at their own place.
void output_slice() {
    rig::Card card;
    const auto slot = card.slot(rig::prefill);
    CHECK_EQUAL(slot->output->SliceTensor("logits", 100, 50), CalrtSuccess);
    card.run(*slot, {5}, 0);
    const auto written = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        const auto first = slot->logits.begin();
        return std::any_of(first + begin, first + end, [](std::uint16_t w) { return w != 0; });
    };
    CHECK(!written(0, 100) && written(100, 104) && written(146, 150));
    CHECK(!written(150, static_cast<std::ptrdiff_t>(slot->logits.size())));
    std::uint64_t bytes = 0;
    CHECK_EQUAL(slot->output->TensorSize("logits", &bytes), CalrtSuccess);
    CHECK_EQUAL(bytes, 100);
}

// CSRs at the ends of 64 bits, on every way to the arithmetic: the card computes them, or raises an exception, and no
// sum of them overflows (which the address build sees).
void extreme_csrs() {
    const std::vector<std::int64_t> extremes = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, 2, UINT32_MAX, INT64_MAX - 1,
                                                INT64_MAX};
    struct Way {
        const char *key, *other;
        bool reset;
    };
    for (const Way& way : {Way{"clock", "clock", false}, Way{"mutant_any_past_len", "clock", false},
                           Way{"mutant_any_past_len", "mutant_ignore_csr", false}, Way{"clock", "clock", true}}) {
        for (const std::int64_t cur : extremes) {
            for (const std::int64_t total : extremes) {
                rig::Card card(0, {{"clock", 1}, {"pieces", 1}, {"submit_error_starts_nothing", 0}});
                card.set("reset_stops_dma", !way.reset);
                card.set(way.key, 1);
                card.set(way.other, 1);
                const auto slot = card.slot(rig::decode);
                card.prepare(*slot, {5}, 0);
                CHECK_EQUAL(slot->input->SetCsrByName("cur", cur), CalrtSuccess);
                CHECK_EQUAL(slot->input->SetCsrByName("total", total), CalrtSuccess);
                CHECK_EQUAL(card.infer(*slot), total > 1 ? OutOfRange : CalrtSuccess);
                if (way.reset) CHECK_EQUAL(card.device->ResetCCU(), CalrtSuccess);
                card.settle();
                CHECK_EQUAL(card.truth("jobs_running"), 0);
                if (total <= 1) {
                    CHECK_EQUAL(slot->output->Wait(), CalrtSuccess);
                    const bool right = cur == 1 && total == 1;
                    const bool runs = right || way.reset || std::string(way.other) == "mutant_ignore_csr";
                    CHECK(slot->output->GetStatus() == (runs ? BufStatus::DONE : BufStatus::DONE_CCU_EXCEPTION));
                }
            }
        }
    }
}

void dead_buffers() {
    rig::Card card;
    const auto old = card.slot(rig::decode);
    card.prepare(*old, {5}, 0);
    const auto old_kv = card.kv;
    CHECK_EQUAL(card.device->Reset(), CalrtSuccess);
    CHECK_EQUAL(card.infer(*old), NotConfigured);  // and out of order: the device is not configured
    card.configure();
    CHECK_EQUAL(old->input->SetCsrByName("cur", 1), NotConfigured);
    CHECK_EQUAL(old->input->UndoSlice("ids"), NotConfigured);
    CHECK_EQUAL(card.infer(*old), NotConfigured);
    CHECK(!old_kv->Apply(0, 1) && !old_kv->canAllocate(1));
    CHECK(rig::violations_are(card, "call_order"));
    const auto fresh = card.slot(rig::decode);
    card.run(*fresh, {5}, 0);
}

}  // namespace

int main() {
    memory();
    gone(false);
    gone(true);
    handles();
    reuse();
    lengths();
    wrong_position();
    order();
    refusals();
    unequal_slices();
    kv_blocks();
    output_slice();
    extreme_csrs();
    dead_buffers();
    return failures != 0;
}
