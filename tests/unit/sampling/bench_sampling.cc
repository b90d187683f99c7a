// Microseconds per row of the sampler, by vocabulary and sampling parameters. From the repository root:
//   g++ -std=c++20 -O3 -I trtllm_lite/csrc -o bench_sampling tests/unit/sampling/bench_sampling.cc
//     trtllm_lite/csrc/sampling/*.cc
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "sampling/sampler.h"

namespace {

using namespace tl;

// peaked: the nucleus of top_p = 0.9 has tens of tokens, like most rows of a language model; broad: a few thousand,
// like its least certain rows; flat: Gaussian logits, whose nucleus is half of the vocabulary, the worst case.
enum Shape { kPeaked, kBroad, kFlat };

std::vector<float> make_row(int vocab_size, Shape shape, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, shape == kFlat ? 1.0f : 2.0f);
  std::vector<float> row(vocab_size);
  for (float& logit : row) logit = normal(random);
  const float slope = shape == kPeaked ? 2.0f : 0.8f;
  for (int i = 0; shape != kFlat && i < 5000; ++i) row[random() % vocab_size] = 20.0f - slope * std::log2(1.0f + i);
  return row;
}

double median_microseconds(int vocab_size, Shape shape, const SamplingParams& params) {
  constexpr int kRows = 16;  // enough that a row has left the caches when its turn comes, as in a running batch
  constexpr int kRuns = 25;
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < kRows; ++i) rows.push_back(make_row(vocab_size, shape, i));
  std::vector<TokenId> prompt(512);
  for (int i = 0; i < 512; ++i) prompt[i] = i * 37;
  Sampler sampler(1, vocab_size);
  if (!sampler.set_slot(0, params, prompt).empty()) return NAN;
  SamplerWorkspace workspace;
  SampledToken token;
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (const auto& row : rows) sampler.sample_row(0, row, workspace, token);
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back(elapsed.count() / kRows);
  }
  std::sort(times.begin(), times.end());
  return times[kRuns / 2];
}

void report(const char* name, const SamplingParams& params) {
  std::printf("%-28s", name);
  for (int vocab_size : {49152, 151936}) {
    for (Shape shape : {kPeaked, kBroad, kFlat}) std::printf("%10.1f", median_microseconds(vocab_size, shape, params));
  }
  std::printf("\n");
}

}  // namespace

int main() {
  std::printf("microseconds per row        %30s%30s\n%28s", "vocabulary 49152", "vocabulary 151936", "");
  for (int i = 0; i < 2; ++i) std::printf("%10s%10s%10s", "peaked", "broad", "flat");
  std::printf("\n");
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = SamplingLimits::kMaxTokens;
  SamplingParams sampled = greedy;
  sampled.temperature = 0.8f;
  auto with = [](SamplingParams params, auto change) {
    change(params);
    return params;
  };
  report("greedy", greedy);
  report("greedy, 5 logprobs", with(greedy, [](auto& p) { p.logprobs = 5; }));
  report("greedy, repetition penalty", with(greedy, [](auto& p) { p.repetition_penalty = 1.1f; }));
  report("temperature 0.8", sampled);
  report("top_k 50", with(sampled, [](auto& p) { p.top_k = 50; }));
  report("top_p 0.9", with(sampled, [](auto& p) { p.top_p = 0.9f; }));
  report("top_k 50, top_p 0.9", with(sampled, [](auto& p) { p.top_k = 50, p.top_p = 0.9f; }));
  report("min_p 0.05", with(sampled, [](auto& p) { p.min_p = 0.05f; }));
}
