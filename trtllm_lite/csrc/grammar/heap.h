// The memory that malloc hands out in this process, all threads together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tl {

// The bytes that are in use at one time, modulo 2^32: glibc before 2.33 counts no further (mallinfo), and wheels run
// from 2.28 on. Differences below 2 GiB are exact.
class AllocatedBytes {
 public:
  static AllocatedBytes now();

  // The bytes by which more is in use now than was at `before`, or 0.
  std::size_t since(AllocatedBytes before) const {
    return static_cast<std::size_t>(std::max(static_cast<std::int32_t>(count_ - before.count_), 0));
  }

 private:
  explicit AllocatedBytes(std::uint32_t count) : count_(count) {}

  std::uint32_t count_;
};

// Gives pages that hold nothing in use back to the system; free() alone does so only at the end of a heap. Takes some
// milliseconds where much was freed, and less than one elsewhere.
void return_free_memory();

}  // namespace tl
