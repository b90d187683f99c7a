// Which pixels of an image, and in which shares, make up the pixels of a resized one along one of its two axes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tl {

// Filters, with the numbers that Pillow gives them.
enum class Filter : int { kLanczos = 1, kBilinear = 2, kBicubic = 3, kBox = 4, kHamming = 5 };

// The shares of pixels are fixed-point numbers of kWeightBits fractional bits, as in Pillow, whose results are
// therefore the same bit for bit. A share is kept as three signed bytes, the digits of its number in base 256, lowest
// first: the shares of four pixels in a row are four lowest digits, four middle ones, and four highest ones.
constexpr int kWeightBits = 22;
constexpr int kGroup = 4;
constexpr int kDigits = 3;

class AxisWeights {
 public:
  // The weights by which `size` pixels are resized to `new_size`, both positive.
  AxisWeights(int size, int new_size, Filter filter);

  // New pixel i consists of count(i) pixels from first(i) on.
  int first(int i) const { return first_[i]; }
  int count(int i) const { return count_[i]; }

  // The digits of their weights, in groups of four pixels; weights of 0 fill the last group up.
  const std::int8_t* digits(int i) const { return digits_.data() + i * stride_; }

 private:
  std::ptrdiff_t stride_;
  std::vector<int> first_;
  std::vector<int> count_;
  std::vector<std::int8_t> digits_;
};

}  // namespace tl
