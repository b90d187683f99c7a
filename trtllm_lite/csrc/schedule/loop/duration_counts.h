// A histogram of durations in constant memory.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tl {

// Bins of nanoseconds, sixteen per doubling, so that durations are known to 3%. All durations beyond 17 s share a bin.
class DurationCounts {
 public:
  void add(double seconds) {
    const double nanoseconds = std::clamp(seconds * 1e9, 0.0, static_cast<double>(kLongest));
    ++counts_[bin_of(static_cast<std::uint64_t>(nanoseconds))];
  }

  // Calls visit(seconds, count) for each nonempty bin, shortest first; `seconds` is the middle of the bin.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t bin = 0; bin < kNumBins; ++bin) {
      if (counts_[bin] > 0) visit(0.5e-9 * static_cast<double>(first_of(bin) + first_of(bin + 1)), counts_[bin]);
    }
  }

 private:
  static constexpr int kBits = 4, kMaxBits = 34;
  static constexpr std::uint64_t kBinsOfDoubling = std::uint64_t{1} << kBits;
  static constexpr std::uint64_t kLongest = (std::uint64_t{1} << kMaxBits) - 1;
  static constexpr std::size_t kNumBins = (kMaxBits - kBits + 1) * kBinsOfDoubling;

  // Each of the first sixteen bins spans one nanosecond.
  static constexpr std::size_t bin_of(std::uint64_t nanoseconds) {
    const int shift = std::max(static_cast<int>(std::bit_width(nanoseconds)) - 1 - kBits, 0);
    return static_cast<std::size_t>(shift) * kBinsOfDoubling + (nanoseconds >> shift);
  }
  static constexpr std::uint64_t first_of(std::size_t bin) {
    const std::uint64_t shift = bin < kBinsOfDoubling ? 0 : bin / kBinsOfDoubling - 1;
    return (bin - shift * kBinsOfDoubling) << shift;
  }

  std::array<std::uint32_t, kNumBins> counts_{};
};

}  // namespace tl
