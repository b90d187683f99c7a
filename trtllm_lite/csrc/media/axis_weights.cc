#include "media/axis_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tl {
namespace {

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

double bilinear(double x) { return std::max(1 - std::fabs(x), 0.0); }

double bicubic(double x) {
  constexpr double kSlope = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((kSlope + 2) * x - (kSlope + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kSlope;
  return 0;
}

double box(double x) { return -0.5 < x && x <= 0.5 ? 1 : 0; }

double hamming(double x) {
  x = std::fabs(x);
  if (x >= 1) return 0;
  return sinc(x) * (0.54 + 0.46 * std::cos(x * std::numbers::pi));
}

struct Kernel {
  double (*at)(double);
  double support;  // it is 0 beyond this distance
};

Kernel kernel_of(Filter filter) {
  switch (filter) {
    case Filter::kLanczos:
      return {lanczos, 3};
    case Filter::kBilinear:
      return {bilinear, 1};
    case Filter::kBicubic:
      return {bicubic, 2};
    case Filter::kBox:
      return {box, 0.5};
    case Filter::kHamming:
      return {hamming, 1};
  }
  __builtin_unreachable();
}

std::int32_t fixed_point(double weight) {
  const double scaled = weight * (1 << kWeightBits);
  return static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

// The highest digit of a weight fits: weights have the sum 1, and the negative ones among them are small.
void set_digits(std::int8_t* group, int place, std::int32_t weight) {
  for (int digit = 0; digit < kDigits; ++digit) {
    const auto low = static_cast<std::int8_t>(weight);
    group[digit * kGroup + place] = low;
    weight = (weight - low) >> 8;
  }
}

}  // namespace

AxisWeights::AxisWeights(int size, int new_size, Filter filter) : first_(new_size), count_(new_size) {
  const Kernel kernel = kernel_of(filter);
  const double scale = static_cast<double>(size) / new_size;
  const double stretch = std::max(scale, 1.0);
  const double support = kernel.support * stretch;
  const std::ptrdiff_t most = 2 * static_cast<std::ptrdiff_t>(std::ceil(support)) + 1;
  stride_ = (most + kGroup - 1) / kGroup * kGroup * kDigits;
  digits_.resize(stride_ * new_size);
  std::vector<double> weights(most);
  for (int i = 0; i < new_size; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int count = std::min(static_cast<int>(centre + support + 0.5), size) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      weights[k] = kernel.at((k + first - centre + 0.5) * (1.0 / stretch));
      sum += weights[k];
    }
    std::int8_t* digits = digits_.data() + i * stride_;
    for (int k = 0; k < count; ++k) {
      const double share = sum != 0 ? weights[k] / sum : weights[k];
      set_digits(digits + k / kGroup * kGroup * kDigits, k % kGroup, fixed_point(share));
    }
    first_[i] = first;
    count_[i] = count;
  }
}

}  // namespace tl
