// The handle table by itself: numbers, generations, the limit, and many threads at once.
#include "handles.hpp"

#include <random>
#include <set>
#include <thread>

#include "check.hpp"

using namespace calrt_c;

namespace {

std::atomic<int> alive{0};

struct Thing final : Object {
    explicit Thing(Kind kind) : kind_(kind) { ++alive; }
    ~Thing() override { --alive; }
    Kind kind() const override { return kind_; }

  private:
    Kind kind_;
};

void numbers() {
    Handles table;
    const std::uint64_t first = table.add(std::make_shared<Thing>(Kind::Kv));
    CHECK(first != 0);
    CHECK(table.find(first) != nullptr);
    CHECK(table.find(0) == nullptr);
    const Number n = Number::of(first);
    CHECK(n.kind == Kind::Kv && n.raw() == first);
    for (const Number wrong : {Number{Kind::Input, n.generation, n.slot}, Number{n.kind, n.generation + 1, n.slot},
                               Number{n.kind, n.generation, n.slot + 1}, Number{n.kind, n.generation, 0}}) {
        CHECK(table.find(wrong.raw()) == nullptr);
        CHECK(table.take(wrong.raw()) == nullptr);
        CHECK(table.why_not(wrong.raw()).find("is no handle") != std::string::npos);
    }
    CHECK(table.take(first) != nullptr);
    CHECK(table.take(first) == nullptr);
    CHECK(table.why_not(first) == "kv handle 1 was released");
    const std::uint64_t second = table.add(std::make_shared<Thing>(Kind::Kv));
    CHECK(Number::of(second).slot == n.slot && second != first);  // the slot comes back, the number does not
}

void limit() {
    Handles table;
    std::vector<std::uint64_t> held;
    bool full = false;
    for (std::size_t i = 0; i <= max_handles && !full; ++i) try {
            held.push_back(table.add(std::make_shared<Thing>(Kind::Kv)));
        } catch (const std::length_error&) {
            full = true;
        }
    CHECK(full && held.size() == max_handles);
    CHECK(table.take(held.back()) != nullptr);
    CHECK(table.add(std::make_shared<Thing>(Kind::Kv)) != held.back());
}

// A slot whose generations are used up is retired: its old numbers never come to life again.
void generations() {
    constexpr std::uint32_t generations = 5;
    Handles table(generations);
    std::vector<std::uint64_t> old;
    for (std::uint32_t i = 0; i < generations; ++i) {
        old.push_back(table.add(std::make_shared<Thing>(Kind::Kv)));
        CHECK(Number::of(old.back()).slot == 1 && Number::of(old.back()).generation == i + 1);
        table.take(old.back());
    }
    CHECK(Number::of(table.add(std::make_shared<Thing>(Kind::Kv))).slot == 2);
    for (const std::uint64_t number : old) CHECK(table.find(number) == nullptr);
}

// Threads make, look up and take, also each other's numbers and old ones. An object that was found stays whole.
void threads() {
    Handles table;
    std::atomic<std::uint64_t> shared[16] = {};
    std::vector<std::thread> workers;
    for (unsigned seed = 0; seed < 4; ++seed)
        workers.emplace_back([&, seed] {
            std::mt19937 random(seed);
            for (int i = 0; i < 5000; ++i) {
                std::atomic<std::uint64_t>& place = shared[random() % 16];
                const auto kind = static_cast<Kind>(1 + random() % 5);
                if (random() % 2 == 0) {
                    table.take(place.exchange(table.add(std::make_shared<Thing>(kind))));
                } else if (const auto found = table.find(place.load())) {
                    CHECK(found->kind() >= Kind::Calbin && found->kind() <= Kind::Output);
                }
                if (i % 500 == 0) CHECK(table.all().size() <= 16 + 4);
            }
        });
    for (std::thread& worker : workers) worker.join();
    for (const auto& place : shared) table.take(place.load());
    CHECK(table.all().empty());
}

}  // namespace

int main() {
    numbers();
    limit();
    generations();
    threads();
    CHECK(alive == 0);
    return failures();
}
