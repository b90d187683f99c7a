#include "sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace tl {
namespace {

// The border of a nucleus: tokens above `scaled` stay, and so do `num_ties` of those equal to it.
struct Border {
  float scaled = -std::numeric_limits<float>::infinity();
  int num_ties = 0;
};

constexpr int kSortBelow = 64;
// The nucleus of top_p = 0.9 of a typical language model's row has fewer tokens than this.
constexpr int kFirstCount = 64;
constexpr int kCountGrowth = 8;

double mass(std::span<const WeightedLogit> tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), 0.0,
                         [](double sum, const WeightedLogit& t) { return sum + t.weight; });
}

// How many of num_equal tokens, each of mass `weight`, raise the mass from `above` to `target`: at least one.
int ties_to_reach(double target, double above, double weight, int num_equal) {
  int count = 0;
  do {
    above += weight;
    ++count;
  } while (above < target && count < num_equal);
  return count;
}

Border border_by_sorting(std::span<WeightedLogit> tokens, double above, double target) {
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.scaled > b.scaled; });
  for (std::size_t begin = 0; begin < tokens.size();) {
    std::size_t end = begin;
    double through = above;
    for (; end < tokens.size() && tokens[end].scaled == tokens[begin].scaled; ++end) through += tokens[end].weight;
    if (through >= target || end == tokens.size()) {
      const int num_equal = static_cast<int>(end - begin);
      return {tokens[begin].scaled, ties_to_reach(target, above, tokens[begin].weight, num_equal)};
    }
    above = through;
    begin = end;
  }
  return {};
}

float median_of_three(std::span<const WeightedLogit> tokens) {
  const float a = tokens.front().scaled, b = tokens[tokens.size() / 2].scaled, c = tokens.back().scaled;
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// Quickselect by mass instead of rank: narrows `tokens` to the part that holds the border. Expected O(tokens).
Border find_border(std::span<WeightedLogit> tokens, double target) {
  double above = 0;
  while (tokens.size() > kSortBelow) {
    const float pivot = median_of_three(tokens);
    const auto larger_end =
        std::partition(tokens.begin(), tokens.end(), [pivot](const auto& t) { return t.scaled > pivot; });
    const auto equal_end =
        std::partition(larger_end, tokens.end(), [pivot](const auto& t) { return t.scaled == pivot; });
    const std::span larger(tokens.begin(), larger_end), equal(larger_end, equal_end), smaller(equal_end, tokens.end());
    const double through_larger = above + mass(larger);
    if (through_larger >= target && !larger.empty()) {
      tokens = larger;
      continue;
    }
    const double through_equal = through_larger + mass(equal);
    if (through_equal >= target || smaller.empty()) {
      return {pivot, ties_to_reach(target, through_larger, equal[0].weight, static_cast<int>(equal.size()))};
    }
    above = through_equal;
    tokens = smaller;
  }
  return border_by_sorting(tokens, above, target);
}

double total_weight(const Candidates& candidates) {
  return std::accumulate(candidates.weights.begin(), candidates.weights.end(), 0.0);
}

// A lower bound of the logits of tokens of at least this weight, whatever the rounding of log and exp.
float logit_below_weight(const RowScan& scan, float temperature, double weight) {
  constexpr float kSlack = 0.01f;
  return scan.max + temperature * (static_cast<float>(std::log(weight)) - kSlack) - 1e-5f * std::fabs(scan.max);
}

// Fills `out` with a superset of the nucleus: takes more and more of the most likely tokens until their mass suffices.
void gather_nucleus_superset(const RowScan& scan, float temperature, double total, float top_p, Candidates& out) {
  for (int count = kFirstCount; count < scan.num_blocks(); count *= kCountGrowth) {
    gather_at_least(scan, reached_by_at_least(scan, count, out.scratch), temperature, out);
    if (total_weight(out) >= total * top_p) return;
  }
  // All tokens of less than this weight together have less mass than the nucleus leaves out.
  const double negligible = total * (1.0 - top_p) / static_cast<double>(scan.logits.size());
  gather_at_least(scan, logit_below_weight(scan, temperature, negligible), temperature, out);
}

// The least logit that top_n_sigma keeps: n standard deviations (of all finite logits) below the largest (Tang et al.
// 2024, "Top-n-sigma: Not All Logits Are You Need"). It comes before the other cuts, as in llama.cpp; the temperature
// divides the deviation as it does the logits, and so leaves the same tokens.
float least_by_sigma(const RowScan& scan, float n) {
  double sum = 0, squares = 0;
  std::size_t count = 0;
  for (const float logit : scan.logits) {
    if (std::isinf(logit)) continue;
    const double below = static_cast<double>(scan.max) - logit;
    sum += below;
    squares += below * below;
    ++count;
  }
  const double mean = sum / static_cast<double>(count), variance = squares / static_cast<double>(count) - mean * mean;
  return static_cast<float>(scan.max - n * std::sqrt(std::max(variance, 0.0)));
}

// The candidates of largest weight have weight 1, so the threshold relative to the most likely token is min_p itself.
void keep_likely(Candidates& out, float min_p) {
  out.filter([&](std::size_t i) { return out.weights[i] >= min_p; });
}

}  // namespace

void keep_nucleus(Candidates& out, double total_weight, float top_p) {
  auto& tokens = out.weighted_scratch;
  tokens.resize(out.ids.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = {out.scaled[i], out.weights[i]};
  const Border border = find_border(tokens, total_weight * top_p);
  int num_ties_left = border.num_ties;
  out.filter([&](std::size_t i) {
    if (out.scaled[i] == border.scaled) return num_ties_left-- > 0;
    return out.scaled[i] > border.scaled;
  });
}

bool keeps_all(const SamplingNumbers& numbers, int vocab_size) {
  return (numbers.top_k == 0 || numbers.top_k >= vocab_size) && numbers.top_p >= 1.0f && numbers.min_p <= 0.0f &&
         numbers.top_n_sigma <= 0.0f;
}

void truncate(const RowScan& scan, const SamplingNumbers& numbers, Candidates& out) {
  const float temperature = numbers.temperature;
  const bool has_top_k = numbers.top_k > 0 && numbers.top_k < static_cast<int>(scan.logits.size());
  const bool has_sigma = numbers.top_n_sigma > 0.0f;
  const float least = has_sigma ? least_by_sigma(scan, numbers.top_n_sigma) : 0.0f;
  if (has_top_k) {
    gather_top_k(scan, numbers.top_k, temperature, out);
    if (has_sigma) out.filter([&](std::size_t i) { return out.scaled[i] >= least / temperature; });
    if (numbers.top_p < 1.0f) keep_nucleus(out, total_weight(out), numbers.top_p);
  } else if (has_sigma) {
    gather_at_least(scan, least, temperature, out);
    if (numbers.top_p < 1.0f) keep_nucleus(out, total_weight(out), numbers.top_p);
  } else if (numbers.top_p < 1.0f) {
    const double total = sum_weights(scan, temperature, nullptr);
    gather_nucleus_superset(scan, temperature, total, numbers.top_p, out);
    keep_nucleus(out, total, numbers.top_p);
  } else {
    gather_at_least(scan, logit_below_weight(scan, temperature, numbers.min_p), temperature, out);
  }
  if (numbers.min_p > 0.0f) keep_likely(out, numbers.min_p);
}

}  // namespace tl
