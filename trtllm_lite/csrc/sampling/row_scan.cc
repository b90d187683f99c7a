#include "sampling/row_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// Each pass is compiled once per instruction set; the loader chooses a copy. AVX2 comes without FMA: contracted
// multiply-adds would round differently from the baseline copy. There is one copy with sanitizers,
// which start after the loader has chosen.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TL_PER_ISA __attribute__((target_clones("avx2", "default")))
#else
#define TL_PER_ISA
#endif

namespace tl {
namespace {

// The number of accumulators of a sum. It is fixed, so that any vector width adds in the same order.
constexpr int kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(z) for z <= 0, within 2 ulp; 0 below -87. Cephes' expf: 2^n exp(r), |r| <= ln(2)/2, exp(r) a polynomial. Only
// additions, multiplications and bit operations in a fixed order, so that every machine and vector width gives the same
// bits, and with them the same tokens.
[[gnu::always_inline]] inline float exp_nonpositive(float z) {
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low mantissa bits
  // Among non-positive floats, those further below zero have larger bits: integers are compared because a comparison
  // of floats may trap, which keeps GCC from making it branch-free.
  constexpr std::uint32_t kLowest = std::bit_cast<std::uint32_t>(-87.0f);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(z);
  const float clamped = std::bit_cast<float>(bits > kLowest ? kLowest : bits);
  const float shifted = clamped * 1.44269504088896341f + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float exp_r = p * r * r + r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  const float result = exp_r * std::bit_cast<float>(exponent);
  const std::uint32_t mask = bits > kLowest ? 0u : ~0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) & mask);
}

template <int kCount, typename T>
[[gnu::always_inline]] inline T reduce_lanes(T* lanes, T (*combine)(T, T)) {
  for (int width = kCount / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

[[gnu::always_inline]] inline float larger(float a, float b) { return a > b ? a : b; }

// Writes the largest value of each whole block, ignoring NaN; returns whether any value is NaN.
TL_PER_ISA bool whole_block_maxima(const float* x, int num_blocks, float* block_max) {
  constexpr int kHalf = kScanBlock / 2;
  std::uint32_t num_nan = 0;
  for (int b = 0; b < num_blocks; ++b, x += kScanBlock) {
    for (int i = 0; i < kScanBlock; ++i) num_nan += x[i] != x[i] ? 1 : 0;
    float lanes[kHalf];
    for (int i = 0; i < kHalf; ++i) lanes[i] = larger(x[i], -kInfinity);
    for (int i = 0; i < kHalf; ++i) lanes[i] = larger(x[i + kHalf], lanes[i]);
    block_max[b] = reduce_lanes<kHalf, float>(lanes, larger);
  }
  return num_nan > 0;
}

TL_PER_ISA double whole_block_sums(const float* x, int num_blocks, float temperature, float shift, double* block_sums) {
  double total = 0;
  for (int b = 0; b < num_blocks; ++b, x += kScanBlock) {
    float weights[kScanBlock];
    for (int i = 0; i < kScanBlock; ++i) weights[i] = exp_nonpositive(x[i] / temperature - shift);
    double lanes[kLanes] = {};
    for (int i = 0; i < kScanBlock; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += weights[i + lane];
    }
    const double sum = reduce_lanes<kLanes, double>(lanes, [](double a, double c) { return a + c; });
    if (block_sums != nullptr) block_sums[b] = sum;
    total += sum;
  }
  return total;
}

}  // namespace

void RowScan::assign(std::span<const float> row) {
  logits = row;
  const int num_whole = static_cast<int>(row.size()) / kScanBlock;
  const auto rest = row.subspan(static_cast<std::size_t>(num_whole) * kScanBlock);
  block_max.resize(num_whole + (rest.empty() ? 0 : 1));
  bool has_nan = whole_block_maxima(row.data(), num_whole, block_max.data());
  if (!rest.empty()) {
    float rest_max = -kInfinity;
    for (float value : rest) {
      rest_max = larger(value, rest_max);
      has_nan |= std::isnan(value);
    }
    block_max.back() = rest_max;
  }
  max = *std::max_element(block_max.begin(), block_max.end());
  has_nan_or_positive_inf = has_nan || max == kInfinity;
}

std::span<const float> RowScan::block(int index) const {
  const std::size_t begin = static_cast<std::size_t>(index) * kScanBlock;
  return logits.subspan(begin, std::min<std::size_t>(kScanBlock, logits.size() - begin));
}

int RowScan::argmax() const {
  const auto index = static_cast<int>(std::find(block_max.begin(), block_max.end(), max) - block_max.begin());
  const auto values = block(index);
  return index * kScanBlock + static_cast<int>(std::find(values.begin(), values.end(), max) - values.begin());
}

float softmax_weight(float logit, float temperature, float max_scaled) {
  return exp_nonpositive(logit / temperature - max_scaled);
}

const char* describe_unusable(const RowScan& scan, float temperature) {
  if (scan.has_nan_or_positive_inf) {
    return "the model's logits must be finite, but hold NaN or infinity; this request was ended, check the weights and "
           "the activation range of its prompt";
  }
  if (std::isinf(scan.max)) {
    return "at least one token must be possible, but the request's constraints (bad_words, allowed_token_ids, "
           "min_tokens, guided_decoding) ban all; relax them";
  }
  if (temperature > 0.0f && std::isinf(scan.max / temperature)) {
    return "the logits divided by the temperature must stay finite, but overflow float32; raise temperature";
  }
  return nullptr;
}

double sum_weights(const RowScan& scan, float temperature, double* block_sums) {
  const float max_scaled = scan.max / temperature;
  const int num_whole = static_cast<int>(scan.logits.size()) / kScanBlock;
  double total = whole_block_sums(scan.logits.data(), num_whole, temperature, max_scaled, block_sums);
  if (num_whole < scan.num_blocks()) {
    double sum = 0;
    for (float logit : scan.block(num_whole)) sum += softmax_weight(logit, temperature, max_scaled);
    if (block_sums != nullptr) block_sums[num_whole] = sum;
    total += sum;
  }
  return total;
}

}  // namespace tl
