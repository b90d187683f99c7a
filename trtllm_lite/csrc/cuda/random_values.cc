#include "cuda/random_values.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace tl::cuda {
namespace {

std::uint16_t to_bits(float value, DType dtype) {
  if (dtype == DType::kBFloat16) return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  // No value below is too large for float16: rebias the exponent, cut the significand.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent <= 0) return 0;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | static_cast<std::uint32_t>(exponent) << 10 |
                                    (bits >> 13 & 0x3ff));
}

std::vector<std::uint16_t> make_pattern(DType dtype, float deviation) {
  constexpr std::size_t kPatternItems = (std::size_t{4} << 20) + 24;  // no power of two: no two rows are alike
  std::vector<std::uint16_t> pattern(kPatternItems);
  std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, deviation);
  for (std::uint16_t& value : pattern) value = to_bits(normal(generator), dtype);
  return pattern;
}

}  // namespace

RandomValues::RandomValues(const Device& device, DType dtype, float deviation, Stream stream) {
  const std::vector<std::uint16_t> values = make_pattern(dtype, deviation);
  const std::size_t bytes = values.size() * sizeof(values[0]);
  pattern_ = DeviceBuffer(device, bytes, "random values", "use a GPU with more memory");
  driver().check(driver().copy_to_device(pattern_.address(), values.data(), bytes, stream), "making up values");
  driver().check(driver().stream_synchronize(stream), "making up values");
}

void RandomValues::fill(DevicePtr to, std::size_t bytes, Stream stream) const {
  for (std::size_t done = 0; done < bytes; done += pattern_.size()) {
    const std::size_t count = std::min(pattern_.size(), bytes - done);
    driver().check(driver().copy_on_device(to + done, pattern_.address(), count, stream), "making up values");
  }
}

}  // namespace tl::cuda
