// The ABI trace and the violations: bounded logs in which every record has a number for ever.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string_view>

#include "calrt_sim.h"

namespace calrt::sim {

template <class Record>
class BoundedLog {
  public:
    std::int64_t total() const { return total_; }

    std::int64_t add(Record record, std::int64_t limit) {
        record.number = total_++;
        kept_.push_back(record);
        keep(limit);
        return record.number;
    }

    // Drops the oldest beyond `limit`.
    void keep(std::int64_t limit) {
        while (static_cast<std::int64_t>(kept_.size()) > limit) kept_.pop_front();
    }

    // nullptr: dropped already, or never there.
    Record* find(std::int64_t number) {
        const std::int64_t first = total_ - static_cast<std::int64_t>(kept_.size());
        return number < first || number >= total_ ? nullptr : &kept_[static_cast<std::size_t>(number - first)];
    }

    // Copies the records there are of [from, from + capacity); returns how many.
    std::uint32_t read(std::int64_t from, std::uint32_t capacity, Record* out) {
        std::uint32_t count = 0;
        const std::int64_t first = total_ - static_cast<std::int64_t>(kept_.size());
        for (std::int64_t i = std::max(from, first); i < total_ && i - from < capacity; ++i) out[count++] = *find(i);
        return count;
    }

  private:
    std::deque<Record> kept_;
    std::int64_t total_ = 0;
};

// X(name, about)
#define CALRTSIM_VIOLATIONS(X)                                                                                         \
    X(input_changed, "the host changed an input of a job in flight")                                                   \
    X(output_changed, "the host wrote where a job in flight had written its output")                                   \
    X(unmapped, "memory of a job in flight is gone")                                                                   \
    X(remapped, "MapBuf, SliceTensor or UndoSlice on a buffer in flight")                                              \
    X(destroyed, "a handle was destroyed while a job in flight needed it")                                             \
    X(reused, "memory of a job in flight was mapped or submitted again")                                               \
    X(csr_mismatch, "the CSR of the current length is not the number of tokens in the slices")                         \
    X(past_len_mismatch, "the CSRs' past length is not the length of the sequence on the device")                      \
    X(call_order, "a call that is impossible in the handle's state (machines/abi.py)")

enum class ViolationKind : int {
#define X(name, about) name,
    CALRTSIM_VIOLATIONS(X)
#undef X
        count
};

const char* name_of(ViolationKind kind);

// Copies `text` and a final 0 into a C array, cut where it does not fit.
template <std::size_t size>
void copy_text(std::string_view text, char (&out)[size]) {
    const std::size_t length = std::min(text.size(), size - 1);
    std::copy_n(text.data(), length, out);
    out[length] = 0;
}

}  // namespace calrt::sim
