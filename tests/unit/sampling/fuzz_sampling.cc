// Random parameters, rows and slot changes against the sampler and beam search, with four threads on distinct slots.
// Usage: fuzz_sampling SEED. Exits with 1 and a line on a wrong result.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>

#include "check.h"
#include "sampling/beam_search.h"
#include "sampling/logit_processors.h"
#include "sampling/sampler.h"
#include "sampling/truncation.h"

namespace {

using namespace tl;
using Random = std::mt19937;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

int upto(Random& random, int max) { return std::uniform_int_distribution<int>(0, max)(random); }
bool one_in(Random& random, int n) { return upto(random, n - 1) == 0; }
float real(Random& random, float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); }

std::vector<TokenId> make_tokens(Random& random, int count, int vocab_size) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = upto(random, std::min(vocab_size - 1, 12));
  return tokens;
}

std::vector<float> make_row(Random& random, int vocab_size) {
  const float scale = real(random, 0.0f, 10.0f);
  const float grid = one_in(random, 3) ? 0.5f : 0.0f;  // a grid makes ties
  std::vector<float> row(vocab_size);
  for (float& logit : row) {
    logit = std::normal_distribution<float>(0.0f, 1.0f)(random) * scale;
    if (grid > 0.0f) logit = std::round(logit / grid) * grid;
    if (one_in(random, 20)) logit = -kInfinity;
  }
  const float extremes[] = {NAN, kInfinity, 3e38f, -3e38f, 1e-40f, 0.0f};
  if (one_in(random, 5)) row[upto(random, vocab_size - 1)] = extremes[upto(random, 5)];
  if (one_in(random, 50)) std::fill(row.begin(), row.end(), -kInfinity);
  return row;
}

SamplingParams make_params(Random& random, int vocab_size) {
  SamplingParams p;
  p.temperature = one_in(random, 4) ? 0.0f : real(random, 0.01f, 3.0f);
  if (one_in(random, 2)) p.top_k = upto(random, 2 * vocab_size);
  if (one_in(random, 2)) p.top_p = real(random, 0.0f, 1.0f);
  if (one_in(random, 2)) p.min_p = real(random, 0.0f, 1.0f);
  if (one_in(random, 3)) p.top_n_sigma = real(random, 0.01f, 4.0f);
  if (one_in(random, 3)) p.repetition_penalty = real(random, 0.01f, 3.0f);
  if (one_in(random, 3)) p.presence_penalty = real(random, -2.0f, 2.0f);
  if (one_in(random, 3)) p.frequency_penalty = real(random, -2.0f, 2.0f);
  p.seed = random();
  p.max_tokens = 1 + upto(random, 20);
  p.min_tokens = upto(random, p.max_tokens);
  p.ignore_eos = one_in(random, 3);
  p.end_ids = make_tokens(random, upto(random, 3), vocab_size);
  p.stop_token_ids = make_tokens(random, upto(random, 3), vocab_size);
  for (int i = upto(random, 4); i > 0; --i) p.bad_words.push_back(make_tokens(random, 1 + upto(random, 3), vocab_size));
  for (int token = upto(random, 9); token < std::min(vocab_size, 9); ++token) {
    p.logit_bias.emplace_back(token, real(random, -100.0f, 100.0f));
  }
  if (one_in(random, 4)) p.allowed_token_ids = make_tokens(random, 1 + upto(random, 5), vocab_size);
  if (one_in(random, 2)) p.logprobs = upto(random, std::min(20, vocab_size));
  return p;
}

// The tokens that truncation leaves, by sorting everything. `near` is set if rounding may move a token across a border.
std::vector<TokenId> sorted_reference(std::span<const float> row, const SamplingParams& p, bool* near) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] / p.temperature > -kInfinity) ids.push_back(static_cast<TokenId>(i));
  }
  const auto scaled = [&](TokenId id) { return row[id] / p.temperature; };
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return scaled(a) > scaled(b); });
  if (p.top_n_sigma > 0) {
    std::vector<double> finite;
    for (const float logit : row) {
      if (std::isfinite(logit)) finite.push_back(logit);
    }
    double mean = 0, variance = 0;
    for (const double logit : finite) mean += logit / static_cast<double>(finite.size());
    for (const double logit : finite) variance += (logit - mean) * (logit - mean) / static_cast<double>(finite.size());
    const double least = row[ids[0]] - p.top_n_sigma * std::sqrt(variance), slack = 1e-5 * (1 + std::fabs(least));
    while (row[ids.back()] < least - slack) ids.pop_back();
    if (row[ids.back()] < least + slack) *near = true;
  }
  if (p.top_k > 0 && p.top_k < static_cast<int>(ids.size())) {
    const float kth = scaled(ids[p.top_k - 1]);
    while (scaled(ids.back()) < kth) ids.pop_back();
  }
  const auto weight = [&](TokenId id) { return std::exp(static_cast<double>(scaled(id)) - scaled(ids[0])); };
  double total = 0, above = 0;
  for (TokenId id : ids) total += weight(id);
  std::vector<TokenId> kept;
  for (TokenId id : ids) {
    if (p.top_p < 1.0f && std::fabs(above / total - p.top_p) < 1e-5) *near = true;
    if (std::fabs(weight(id) - p.min_p) < 1e-5) *near = true;
    const bool in_nucleus = p.top_p >= 1.0f || kept.empty() || above < total * p.top_p;
    if (in_nucleus && weight(id) >= p.min_p) kept.push_back(id);
    above += weight(id);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

void check_truncation(std::span<const float> row, const SamplingParams& p, TokenId token) {
  bool near = false;
  const auto expected = sorted_reference(row, p, &near);
  if (near) return;
  check(std::binary_search(expected.begin(), expected.end(), token), "the token is one that truncation leaves");
  if (keeps_all(p, static_cast<int>(row.size()))) return;
  RowScan scan;
  scan.assign(row);
  Candidates candidates;
  truncate(scan, p, candidates);
  check(candidates.ids == expected, "truncation leaves what sorting the row leaves");
}

// Samples a slot until it ends, replacing it by a copy made from its history now and then.
void run_slot(Sampler& sampler, int slot, Random random) {
  const int vocab_size = sampler.vocab_size();
  SamplerWorkspace workspace;
  SampledToken out;
  const auto params = make_params(random, vocab_size);
  const auto prompt = make_tokens(random, upto(random, 10), vocab_size);
  if (!sampler.set_slot(slot, params, prompt).empty()) {
    check(!violations(params, vocab_size).empty(), "only a request with violations is refused");
    return;
  }
  do {
    if (one_in(random, 4)) {
      const auto history = sampler.slot(slot)->history();
      const std::vector<TokenId> generated(history.begin() + prompt.size(), history.end());
      check(sampler.set_slot(slot, params, prompt, generated).empty(), "a resumed request is valid");
    }
    const auto row = make_row(random, vocab_size);
    std::vector<float> buffer;
    const auto processed_span = process_logits(*sampler.slot(slot), row, buffer);
    const std::vector<float> processed(processed_span.begin(), processed_span.end());
    sampler.sample_row(slot, row, workspace, out);
    if (!out.error.empty()) continue;
    check(out.token >= 0 && out.token < vocab_size && processed[out.token] > -kInfinity, "the token is possible");
    if (params.temperature > 0.0f) check_truncation(processed, params, out.token);
    if (params.temperature == 0.0f) {
      check(out.token == std::max_element(processed.begin(), processed.end()) - processed.begin(),
            "greedy takes the largest");
    }
    check(out.has_logprobs == params.logprobs.has_value(), "logprobs come if asked for");
  } while (sampler.slot(slot)->num_generated() < params.max_tokens && !one_in(random, 30));
  sampler.clear_slot(slot);
}

void run_beams(Random& random, int vocab_size) {
  BeamSearchParams beams;
  beams.num_beams = 1 + upto(random, 7);
  beams.length_penalty = real(random, -2.0f, 2.0f);
  beams.early_stopping = static_cast<EarlyStopping>(upto(random, 2));
  auto params = make_params(random, vocab_size);
  params.temperature = params.top_p = 1.0f;
  params.top_k = 0;
  params.min_p = 0.0f;
  params.logprobs.reset();
  if (!violations(beams, params, vocab_size).empty()) return;
  BeamSearch search(beams, params, make_tokens(random, 5, vocab_size));
  SamplerWorkspace workspace;
  for (int step = 1; !search.done(); ++step) {
    check(step <= params.max_tokens, "a search ends by max_tokens");
    std::vector<std::vector<float>> rows;
    for (int i = 0; i < search.num_live(); ++i) rows.push_back(make_row(random, vocab_size));
    const int num_parents = search.num_live();
    if (!search.step(std::vector<std::span<const float>>(rows.begin(), rows.end()), workspace).empty()) return;
    for (const auto& [parent, token] : search.moves()) {
      check(parent >= 0 && parent < num_parents && token >= 0 && token < vocab_size, "moves name beams and tokens");
    }
  }
  const auto found = search.hypotheses();
  check(static_cast<int>(found.size()) <= beams.num_beams, "at most num_beams hypotheses");
  check(std::is_sorted(found.begin(), found.end(), [](auto& a, auto& b) { return a.score > b.score; }),
        "best hypothesis first");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Random random(std::atoi(argv[1]));
  const int vocab_sizes[] = {1, 2, 127, 128, 129, 600, 5000};
  for (int round = 0; round < static_cast<int>(rounds(150)); ++round) {
    const int vocab_size = vocab_sizes[upto(random, 6)];
    Sampler sampler(8, vocab_size);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&sampler, t, seed = random()] {
        run_slot(sampler, t, Random(seed));
        run_slot(sampler, 7 - t, Random(seed + 1));
      });
    }
    for (auto& thread : threads) thread.join();
    run_beams(random, vocab_size);
  }
}
