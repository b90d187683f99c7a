// Several streams of memory that a core reads side by side, so that it waits less for memory than with one stream.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"

namespace tl::TL_ISA {

constexpr int kLineBytes = 64;
// The most panels that are streamed side by side: their lines in use and their prefetched lines fit the L1 cache.
constexpr std::int64_t kMaxStreams = 5;

// Streams that begin `stride` bytes apart. Lines are prefetched from each in turn.
class Streams {
 public:
  Streams() = default;
  Streams(const void* first, std::int64_t stride, std::int64_t count)
      : next_(static_cast<const char*>(first)), stride_(stride), span_(count * stride), end_(next_ + span_) {}

  // A single stream.
  explicit Streams(const void* first)
      : next_(static_cast<const char*>(first)), stride_(kLineBytes), end_(reinterpret_cast<const char*>(INTPTR_MAX)) {}

  TL_INLINE void prefetch_line() {
    __builtin_prefetch(next_);
    next_ += stride_;
    if (next_ < end_) return;
    next_ -= span_ - kLineBytes;
    end_ += kLineBytes;
  }

 private:
  const char* next_ = nullptr;
  std::int64_t stride_ = 0;
  std::int64_t span_ = 0;
  const char* end_ = nullptr;
};

// The number of tasks into which `panels` panels are divided, with up to `most` panels side by side. Each thread gets
// equally many tasks of about equal size.
TL_INLINE std::int64_t streaming_tasks(std::int64_t panels, std::int64_t threads, std::int64_t most) {
  return min(panels, ceil_div(ceil_div(panels, most), threads) * threads);
}

}  // namespace tl::TL_ISA
