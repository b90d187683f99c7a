#include "sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "errors.h"

namespace tl {
namespace {

constexpr std::ptrdiff_t kSortedAtMost = 64;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed, at
// counter `offset`; 53 random bits in [0, 1).
double random_number(std::uint64_t seed, std::uint64_t offset) {
  std::array<std::uint32_t, 4> counter{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32)};
  std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const std::uint64_t bits = std::uint64_t{counter[1]} << 32 | counter[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The position of the largest logit, the first among equals.
std::size_t checked_argmax(std::span<const float> logits, std::int64_t row) {
  std::size_t best = 0;
  bool usable = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    usable &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN, too
    if (logits[i] > logits[best]) best = i;
  }
  if (usable && logits[best] > -std::numeric_limits<float>::infinity()) return best;
  throw EngineError("logits of row " + std::to_string(row) +
                    ": expected finite numbers, found NaN or infinity; the model computes garbage for this input: "
                    "check the checkpoint, or build with a wider --dtype");
}

void expect(bool holds, std::int64_t row, const std::string& expected, double found) {
  if (holds) return;
  throw ArgumentError("row " + std::to_string(row) + ": expected " + expected + ", found " + std::to_string(found) +
                      "; pass a value in this range");
}

}  // namespace

void check_sample_params(const SampleParams& params, std::int64_t row) {
  expect(params.temperature >= 0 && std::isfinite(params.temperature), row, "temperature >= 0", params.temperature);
  expect(params.top_k >= 0, row, "top_k >= 0", params.top_k);
  expect(params.top_p > 0 && params.top_p <= 1, row, "0 < top_p <= 1", params.top_p);
  expect(params.min_p >= 0 && params.min_p <= 1, row, "0 <= min_p <= 1", params.min_p);
}

// Candidates in order of id: all tokens, or those that top_k leaves.
void RowSampler::gather(std::span<const float> logits, const SampleParams& params, float max) {
  float lowest = -std::numeric_limits<float>::infinity();
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    values_.assign(logits.begin(), logits.end());
    const auto kth = values_.begin() + (params.top_k - 1);
    std::nth_element(values_.begin(), kth, values_.end(), std::greater<>());
    lowest = *kth;
  }
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < lowest) continue;
    // A difference first: dividing large logits by a small temperature would overflow.
    candidates_.push_back({std::exp((logits[i] - max) / params.temperature), static_cast<std::int32_t>(i)});
  }
}

// Finds the last token of the nucleus by quickselect on mass: nothing is sorted but a few tokens around it.
void RowSampler::keep_top_p(float top_p) {
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  const auto mass = [](auto begin, auto end) {
    return std::accumulate(begin, end, 0.0, [](double sum, const Candidate& c) { return sum + c.weight; });
  };
  ranked_ = candidates_;
  const double wanted = top_p * mass(ranked_.begin(), ranked_.end());
  double covered = 0;  // by what lies before `first`
  auto first = ranked_.begin();
  auto last = ranked_.end();
  while (last - first > kSortedAtMost) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, more_likely);
    const double upper = mass(first, middle);
    if (covered + upper >= wanted) {
      last = middle;
    } else {
      covered += upper;
      first = middle;
    }
  }
  std::sort(first, last, more_likely);
  while (first + 1 < last && covered + first->weight < wanted) covered += (first++)->weight;
  const Candidate border = *first;
  std::erase_if(candidates_, [&](const Candidate& c) { return more_likely(border, c); });
}

std::int32_t RowSampler::sample(std::span<const float> logits, const SampleParams& params, std::int64_t row) {
  const std::size_t best = checked_argmax(logits, row);
  if (params.temperature == 0) return static_cast<std::int32_t>(best);
  gather(logits, params, logits[best]);
  if (params.top_p < 1) keep_top_p(params.top_p);
  // The most likely token has weight 1.
  if (params.min_p > 0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < params.min_p; });

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = random_number(params.seed, params.offset) * total;
  std::int32_t token = static_cast<std::int32_t>(best);
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight <= 0) continue;
    token = candidate.token;  // rounding may leave a crumb at the end: then the last one that is possible
    left -= candidate.weight;
    if (left < 0) break;
  }
  return token;
}

}  // namespace tl
