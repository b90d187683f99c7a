// The memory that malloc has given out in this process, over all threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tl {

// The bytes in use at one time, modulo 2^32: glibc before 2.33 counts no further (mallinfo), and wheels support
// glibc 2.28 and later. Differences below 2 GiB are exact.
class AllocatedBytes {
 public:
  static AllocatedBytes now();

  // How many more bytes are in use now than at `before`; 0 if fewer.
  std::size_t since(AllocatedBytes before) const {
    return static_cast<std::size_t>(std::max(static_cast<std::int32_t>(count_ - before.count_), 0));
  }

 private:
  explicit AllocatedBytes(std::uint32_t count) : count_(count) {}

  std::uint32_t count_;
};

// Returns unused pages to the system; free() alone does so only at the end of a heap. Takes some milliseconds if much
// was freed, otherwise less than one.
void return_free_memory();

}  // namespace tl
