#include "cuda/device/random_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace tl::cuda {
namespace {

std::uint16_t to_bits(float value, DType dtype) {
  if (dtype == DType::kBFloat16) return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  // All values fit float16: rebias the exponent, truncate the significand.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent <= 0) return 0;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | static_cast<std::uint32_t>(exponent) << 10 |
                                    (bits >> 13 & 0x3ff));
}

// Truncates to three bits of fraction. Values below 2^-6 become zero.
std::uint8_t to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(std::clamp(value, -448.0f, 448.0f));
  const auto exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 7;
  if (exponent <= 0) return 0;
  return static_cast<std::uint8_t>((bits >> 24 & 0x80) | static_cast<std::uint32_t>(exponent) << 3 | (bits >> 20 & 7));
}

constexpr std::size_t kPatternItems = (std::size_t{4} << 20) + 24;  // not a power of two, so that no two rows are equal

// Makes a pattern of items. convert(next) returns an item made of normally distributed values from next().
template <typename Item, typename Convert>
std::vector<std::byte> make_pattern(float deviation, const Convert& convert) {
  std::vector<std::byte> pattern(kPatternItems * sizeof(Item));
  std::mt19937 generator(0);
  std::normal_distribution<float> normal(0, deviation);
  const auto next = [&] { return normal(generator); };
  for (std::size_t i = 0; i < kPatternItems; ++i) {
    const Item item = convert(next);
    std::memcpy(pattern.data() + i * sizeof(Item), &item, sizeof(Item));
  }
  return pattern;
}

// Makes words of random bits. The bits of `ones` are 1 in all words, those of `zeros` are 0.
std::vector<std::byte> make_words(std::uint32_t ones, std::uint32_t zeros) {
  std::vector<std::byte> pattern(kPatternItems);
  std::mt19937 generator(0);
  for (std::size_t i = 0; i < kPatternItems; i += sizeof(std::uint32_t)) {
    const auto word = static_cast<std::uint32_t>((generator() | ones) & ~zeros);
    std::memcpy(pattern.data() + i, &word, sizeof(word));
  }
  return pattern;
}

// The two highest bits of the exponents in a word of the layout spread_e4m3 (plugins/spread.py). Setting them to 1 and
// 0 makes elements from 2 to 30.
constexpr std::uint32_t kSpreadHighest = 0x44004400, kSpreadSecond = 0x22002200;

std::vector<std::byte> make_pattern(DType dtype, Layout layout, float deviation) {
  if (dtype == DType::kFloat4E2m1fn) return make_words(0, 0);
  if (layout == Layout::kSpreadE4m3) return make_words(kSpreadHighest, kSpreadSecond);
  const auto rounded = [](float value, float largest) {
    return static_cast<int>(std::clamp(std::round(value), -largest, largest));
  };
  if (dtype == DType::kInt8) {
    const auto convert = [&](const auto& next) { return static_cast<std::int8_t>(rounded(next(), 127)); };
    return make_pattern<std::int8_t>(deviation / kByteScale, convert);
  }
  if (bits_of(dtype) == 4) {
    const int middle = dtype == DType::kUint4 ? 8 : 0;
    const auto convert = [&](const auto& next) {
      const int low = rounded(next(), 7) + middle, high = rounded(next(), 7) + middle;
      return static_cast<std::uint8_t>((low & 15) | (high & 15) << 4);
    };
    return make_pattern<std::uint8_t>(deviation / kNibbleScale, convert);
  }
  if (dtype == DType::kFloat8E4m3fn) {
    return make_pattern<std::uint8_t>(deviation / kByteScale, [](const auto& next) { return to_e4m3(next()); });
  }
  return make_pattern<std::uint16_t>(deviation, [dtype](const auto& next) { return to_bits(next(), dtype); });
}

}  // namespace

unsigned word_of(float value, DType dtype) {
  if (dtype == DType::kFloat32) return std::bit_cast<unsigned>(value);
  const unsigned bits = to_bits(value, dtype);
  return bits << 16 | bits;
}

RandomValues::RandomValues(const Device& device, DType dtype, Layout layout, float deviation, Stream stream) {
  const std::vector<std::byte> values = make_pattern(dtype, layout, deviation);
  const std::size_t bytes = values.size();
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
