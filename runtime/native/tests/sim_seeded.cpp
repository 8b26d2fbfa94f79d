// Negative controls of the sanitizers: a host that does what no host may. Built with a sanitizer, the argument's
// mistake must end the program with a report and not with 0; `clean` makes none.
//   race       a host thread writes into an input while the device reads it (-fsanitize=thread)
//   overflow   a host buffer is smaller than MapBuf was told (-fsanitize=address)
#include <thread>

#include "sim_rig.hpp"

using namespace calrt;

namespace {

void race(bool seeded) {
    rig::Card card(0, {{"h2d_us", 20000}, {"pieces", 64}});
    const auto slot = card.slot(rig::prefill);
    std::vector<std::int32_t> tokens(rig::max_seq, 5);
    card.prepare(*slot, tokens, 0);
    CHECK_EQUAL(card.infer(*slot), CalrtSuccess);
    std::thread host([&] {
        if (seeded) slot->ids[255] = 5;  // the same value: only the race is wrong
    });
    card.finish(*slot);
    host.join();
}

void overflow(bool seeded) {
    rig::Card card;
    const auto slot = card.slot(rig::decode);
    std::vector<std::uint16_t> logits(rig::vocabulary - (seeded ? 8 : 0));
    CHECK_EQUAL(slot->output->MapBuf("logits", logits.data(), rig::vocabulary * 2), CalrtSuccess);
    card.run(*slot, {5}, 0);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string mistake = argc == 2 ? argv[1] : "";
    if (mistake != "clean" && mistake != "race" && mistake != "overflow") {
        std::fprintf(stderr, "usage: sim_seeded clean|race|overflow\n");
        return 64;
    }
    race(mistake == "race");
    overflow(mistake == "overflow");
    return failures != 0;
}
