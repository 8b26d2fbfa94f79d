// Handles are numbers: kind (8 bits), generation (24), slot (32). A number is good for one life of its slot, so one that
// was released, or is of another kind, or was never given out, is found out instead of being followed.
//
// The table's mutex is held only to look up, never while CalRT runs; who looked up holds a shared_ptr, so an object lives
// until the last call on it has returned. Freed slots are used again under the next generation; a slot whose generations
// are used up is retired. At most `max_handles` live at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace calrt_c {

enum class Kind : std::uint8_t { None = 0, Calbin, Device, Kv, Input, Output };

inline const char* kind_name(Kind kind) {
    static const char* const names[] = {"none", "calbin", "device", "kv", "input", "output"};
    const auto i = static_cast<std::size_t>(kind);
    return i < sizeof names / sizeof *names ? names[i] : "unknown";
}

// Every object behind a handle says its kind.
struct Object {
    virtual ~Object() = default;
    virtual Kind kind() const = 0;
};

constexpr std::size_t max_handles = 65536;
constexpr std::uint32_t max_generation = (1u << 24) - 1;

struct Number {
    Kind kind;
    std::uint32_t generation, slot;

    static Number of(std::uint64_t raw) {
        return {static_cast<Kind>(raw >> 56), static_cast<std::uint32_t>(raw >> 32) & max_generation,
                static_cast<std::uint32_t>(raw)};
    }
    std::uint64_t raw() const {
        return static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(generation) << 32 | slot;
    }
    std::string text() const { return std::string(kind_name(kind)) + " handle " + std::to_string(slot); }
};

class Handles {
  public:
    explicit Handles(std::uint32_t last_generation = max_generation) : last_generation_(last_generation) {}

    std::uint64_t add(std::shared_ptr<Object> object) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const std::uint32_t slot = free_slot();
        slots_[slot].object = std::move(object);
        return number(slot).raw();
    }

    // The object, or null.
    std::shared_ptr<Object> find(std::uint64_t raw) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        const Number n = Number::of(raw);
        return alive(n) ? slots_[n.slot].object : nullptr;
    }

    // Takes the object out: its handle is dead from now on. The caller lets it go, outside the lock.
    std::shared_ptr<Object> take(std::uint64_t raw) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const Number n = Number::of(raw);
        if (!alive(n)) return nullptr;
        Slot& slot = slots_[n.slot];
        std::shared_ptr<Object> object = std::move(slot.object);
        slot.object = nullptr;
        if (++slot.generation <= last_generation_) free_.push_back(n.slot);  // never throws: reserved in free_slot
        return object;
    }

    std::vector<std::shared_ptr<Object>> all() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<std::shared_ptr<Object>> found;
        for (const Slot& slot : slots_)
            if (slot.object) found.push_back(slot.object);
        return found;
    }

    // What is wrong with a number that `find` did not find.
    std::string why_not(std::uint64_t raw) const {
        const std::lock_guard<std::mutex> lock(mutex_);
        const Number n = Number::of(raw);
        const bool known = n.kind > Kind::None && n.kind <= Kind::Output && n.generation > 0 && n.slot > 0;
        if (known && n.slot < slots_.size() && n.generation < slots_[n.slot].generation)
            return n.text() + " was released";
        return std::to_string(raw) + " is no handle";
    }

  private:
    struct Slot {
        std::shared_ptr<Object> object;
        std::uint32_t generation = 1;
    };

    bool alive(const Number& n) const {
        if (n.slot == 0 || n.slot >= slots_.size()) return false;
        const Slot& slot = slots_[n.slot];
        return slot.object != nullptr && slot.generation == n.generation && slot.object->kind() == n.kind;
    }

    Number number(std::uint32_t slot) const { return {slots_[slot].object->kind(), slots_[slot].generation, slot}; }

    std::uint32_t free_slot() {
        if (!free_.empty()) {
            const std::uint32_t slot = free_.back();
            free_.pop_back();
            return slot;
        }
        if (slots_.size() > max_handles)
            throw std::length_error("all " + std::to_string(max_handles) + " handles are in use");
        if (free_.capacity() < slots_.size()) free_.reserve(2 * slots_.size());
        slots_.emplace_back();
        return static_cast<std::uint32_t>(slots_.size() - 1);
    }

    const std::uint32_t last_generation_;
    mutable std::mutex mutex_;
    std::vector<Slot> slots_ = std::vector<Slot>(1);  // slot 0 is never used
    std::vector<std::uint32_t> free_;
};

// Never destroyed: at the process's end CalRT may be gone already, and threads may still be inside its calls.
inline Handles& handles() {
    static Handles* const table = std::make_unique<Handles>().release();
    return *table;
}

}  // namespace calrt_c
