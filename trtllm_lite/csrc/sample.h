// Stateless sampling: the next token of each row as a function of that row, its parameters and its random counter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tl {

// How one row is sampled. Truncations apply in this order to softmax(logits / temperature), as in transformers: top_k
// keeps the k most likely tokens and all that tie with the last of them; top_p the fewest most likely ones whose
// probabilities, renormalised, reach top_p (lower ids first among equals, at least one); min_p those at least min_p
// times as likely as the most likely.
struct SampleParams {
  float temperature = 0;  // 0 = greedy: the largest logit, the lowest id among equals
  int top_k = 0;          // 0 = off
  float top_p = 1;        // 1 = off
  float min_p = 0;        // 0 = off
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // of the token in its sequence: equal seed and offset give the same random number
};

// Throws ArgumentError, naming `row`, if a parameter is outside its domain.
void check_sample_params(const SampleParams& params, std::int64_t row);

// Keeps its memory from row to row. Not thread-safe.
class RowSampler {
 public:
  // `params` have been checked. Throws EngineError, naming `row`, if a logit is NaN or +inf or all are -inf.
  std::int32_t sample(std::span<const float> logits, const SampleParams& params, std::int64_t row);

 private:
  struct Candidate {
    float weight;  // exp((logit - max) / temperature)
    std::int32_t token;
  };

  void gather(std::span<const float> logits, const SampleParams& params, float max);
  void keep_top_p(float top_p);

  std::vector<float> values_;
  std::vector<Candidate> candidates_;  // in order of token
  std::vector<Candidate> ranked_;
};

}  // namespace tl
