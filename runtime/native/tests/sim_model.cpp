// The language model, against numbers that a Python script of its own computed from the definition in
// docs/simulator.md (whole numbers modulo 2^64; the script shares nothing with the simulator):
//   seed 42, vocabulary 512, tokens 5 and 6 at positions 0 and 1.
#include "../sim/model.hpp"

#include "sim_rig.hpp"

using namespace calrt::sim;

namespace {

// Order-sensitive sum of a row: s = mix64(s * 31 + value + index).
std::uint64_t digest(const std::uint16_t* row, std::size_t size) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum = mix64(sum * 31 + row[i] + i);
    return sum;
}

void numbers() {
    CHECK(mix64(0) == 0 && mix64(1) == 0x5692161d100b05e5);
    CHECK(kv_entry(42, 7, 3) == 0x113785175ee4a51f);
    CHECK(kv_entry(42, static_cast<std::uint32_t>(-1), 0) == 0x54e8297746a410b7);
    const std::uint8_t bytes[] = {0, 1, 2, 3, 4, 5, 6, 7};
    CHECK(embedding_token(bytes, sizeof bytes) == 0xb28ecb7d);
    CHECK(history(42, {}) == 0x3bb4c0b99d5862db);
    CHECK(history(42, {kv_entry(42, 5, 0), kv_entry(42, 6, 1)}) == 0xe98abf40ce6a74b2);
    CHECK(history(42, {kv_entry(42, 6, 0), kv_entry(42, 5, 1)}) == 0x1a0debe2ee5bc967);
}

void rows() {
    const std::vector<std::uint16_t> base = background(42, 512);
    CHECK(base[0] == 0xc094 && base[1] == 0xc040 && base[2] == 0xc060 && base[3] == 0xc0ea);
    std::vector<std::uint16_t> tile(16 * 512);
    write_tile(0xe98abf40ce6a74b2, 2, 16, base, tile.data());
    const std::uint16_t* const row = &tile[512];
    CHECK(row[0] == 0xc0ec && row[1] == 0x40fc && row[267] == 0x41c4 && row[111] == 0x41b0 && row[237] == 0x41a3 &&
          row[329] == 0x4192);
    CHECK(digest(row, 512) == 0x36765b5218c7685e);
    CHECK(digest(&tile[0], 512) == 0xe3e15cf48c41c2a2);        // decoys
    CHECK(digest(&tile[2 * 512], 512) == 0x53249ea0a7a93d4d);
    std::vector<std::uint16_t> one(512);
    write_row(0xe98abf40ce6a74b2 ^ broken_mask, base, one.data());
    CHECK(digest(one.data(), 512) == 0xba0035b6dff04662);
}

// h = 0 and 7 words: two of the four peaks fall on one index, and the first one stays.
void colliding_peaks() {
    std::vector<std::uint16_t> row(7);
    write_row(0, background(42, 7), row.data());
    CHECK((row == std::vector<std::uint16_t>{0xc094, 0x41b0, 0xc060, 0xc0ea, 0x41a2, 0xc100, 0x41c1}));
}

void through_the_device() {
    rig::Card card;
    const auto prefill = card.slot(rig::prefill), decode = card.slot(rig::decode);
    const std::vector<std::int32_t> wanted = {267, 125, 385, 203, 304, 17};
    std::vector<std::int32_t> got = {card.run(*prefill, {5, 6}, 0)};
    CHECK(digest(&prefill->logits[512], 512) == 0x36765b5218c7685e);
    CHECK(digest(&prefill->logits[0], 512) == 0xe3e15cf48c41c2a2);
    std::int64_t length = 0;
    std::uint64_t kv = 0;
    CHECK_EQUAL(calrtsim_kv(card.number, 0, &length, &kv), 0);
    CHECK(length == 2 && kv == 0x9408e9390ca3a384);  // the digest is the history with seed 0
    for (std::uint32_t past = 2; got.size() < wanted.size(); ++past) {
        got.push_back(card.run(*decode, {got.back()}, past));
    }
    CHECK(got == wanted);
    CHECK(rig::violations_are(card, ""));
}

// The same sequence in two pieces gives the same row; positions are the mapped ones, not the index.
void in_pieces() {
    rig::Card card;
    const auto slot = card.slot(rig::prefill);
    card.run(*slot, {5}, 0);
    CHECK_EQUAL(card.run(*slot, {6}, 1), 267);
    CHECK(digest(slot->logits.data(), 512) == 0x36765b5218c7685e);
}

// An embeds row counts as the token that its bytes hash to.
void from_embeddings() {
    rig::Card card;
    const auto embeds = card.slot(rig::embeds), prefill = card.slot(rig::prefill);
    for (std::size_t i = 0; i < rig::hidden; ++i) {
        embeds->rows[i] = static_cast<std::uint16_t>(2 * i + ((2 * i + 1) << 8));
    }
    card.run(*embeds, {0}, 0, 1);  // bytes 0, 1, ... 7
    card.run(*prefill, {static_cast<std::int32_t>(0xb28ecb7d)}, 0, 2);
    CHECK(embeds->logits == prefill->logits);
    CHECK(rig::violations_are(card, ""));
}

}  // namespace

int main() {
    numbers();
    rows();
    colliding_peaks();
    through_the_device();
    in_pieces();
    from_embeddings();
    return failures != 0;
}
