#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "sampling/philox.h"
#include "sampling/truncation.h"

namespace tl {
namespace {

// If rounding leaves no other token, each draw_from_ function returns the last possible one: uniform < 1, but the
// target may round up to the total, and a block's sum may differ from the sum of its tokens in order.
TokenId draw_from_candidates(const Candidates& candidates, double uniform) {
  const double total = std::accumulate(candidates.weights.begin(), candidates.weights.end(), 0.0);
  const double target = uniform * total;
  TokenId last_possible = candidates.ids[0];
  double cumulative = 0;
  for (int i = 0; i < candidates.size(); ++i) {
    cumulative += candidates.weights[i];
    if (cumulative > target) return candidates.ids[i];
    if (candidates.weights[i] > 0.0f) last_possible = candidates.ids[i];
  }
  return last_possible;
}

TokenId draw_from_block(const RowScan& scan, int block, float temperature, double target) {
  const float max_scaled = scan.max / temperature;
  TokenId id = block * kScanBlock;
  TokenId last_possible = id;
  double cumulative = 0;
  for (float logit : scan.block(block)) {
    const float weight = softmax_weight(logit, temperature, max_scaled);
    cumulative += weight;
    if (weight > 0.0f) last_possible = id;
    if (cumulative > target) return id;
    ++id;
  }
  return last_possible;
}

// Draws from the whole vocabulary: finds the block by the blocks' sums, then the token within the block.
TokenId draw_from_row(const RowScan& scan, float temperature, double uniform, std::vector<double>& block_sums) {
  block_sums.resize(scan.num_blocks());
  const double target = uniform * sum_weights(scan, temperature, block_sums.data());
  double below = 0;
  int last_possible = 0;
  for (int b = 0; b < scan.num_blocks(); ++b) {
    if (below + block_sums[b] > target) return draw_from_block(scan, b, temperature, target - below);
    if (block_sums[b] > 0.0) last_possible = b;
    below += block_sums[b];
  }
  return draw_from_block(scan, last_possible, temperature, block_sums[last_possible]);
}

TokenId draw(const SlotState& slot, const RowScan& scan, SamplerWorkspace& workspace) {
  const auto& params = slot.params();
  const double uniform =
      token_uniform(params.seed, static_cast<std::uint64_t>(slot.num_generated()), slot.sequence_index());
  if (keeps_all(params, static_cast<int>(scan.logits.size()))) {
    return draw_from_row(scan, params.temperature, uniform, workspace.block_sums);
  }
  truncate(scan, params, workspace.candidates);
  return draw_from_candidates(workspace.candidates, uniform);
}

std::string joined(const std::vector<std::string>& messages) {
  std::string all;
  for (const auto& message : messages) all += all.empty() ? message : "\n" + message;
  return all;
}

}  // namespace

void choose_token(const SlotState& slot, std::span<const float> logits, SamplerWorkspace& workspace, SampledToken& out,
                  TokenMask mask) {
  out.error.clear();
  out.token = -1;
  const float temperature = slot.params().temperature;
  workspace.raw.assign(logits);
  const RowScan* scan = &workspace.raw;
  // The raw row is checked even if the processors hide its NaN: no token is drawn from a broken row.
  if (!scan->has_nan_or_positive_inf) {
    const auto processed = process_logits(slot, logits, workspace.processed_logits, mask);
    if (processed.data() != logits.data()) {
      workspace.processed.assign(processed);
      scan = &workspace.processed;
    }
  }
  if (const char* error = describe_unusable(*scan, temperature)) {
    out.error = error;
    return;
  }
  out.token = temperature == 0.0f ? scan->argmax() : draw(slot, *scan, workspace);
}

Sampler::Sampler(int num_slots, int vocab_size) : vocab_size_(vocab_size), slots_(num_slots) {}

std::string Sampler::set_slot(int slot, SamplingParams params, std::span<const TokenId> prompt,
                              std::span<const TokenId> generated, std::uint32_t sequence_index) {
  auto messages = violations(params, vocab_size_);
  if (auto message = out_of_vocabulary("prompt", prompt, vocab_size_)) messages.push_back(*message);
  if (auto message = out_of_vocabulary("generated", generated, vocab_size_)) messages.push_back(*message);
  if (messages.empty()) slots_[slot].emplace<SlotState>(std::move(params), prompt, generated, sequence_index);
  return joined(messages);
}

std::string Sampler::set_search(int slot, const BeamSearchParams& beams, SamplingParams params,
                                std::span<const TokenId> prompt) {
  auto messages = violations(beams, params, vocab_size_);
  if (auto message = out_of_vocabulary("prompt", prompt, vocab_size_)) messages.push_back(*message);
  if (messages.empty()) slots_[slot].emplace<BeamSearch>(beams, std::move(params), prompt);
  return joined(messages);
}

void Sampler::clear_slot(int slot) { slots_[slot].emplace<std::monostate>(); }

std::span<const TokenId> Sampler::prompt(int index) const {
  const auto* search = std::get_if<BeamSearch>(&slots_[index]);
  return search ? search->prompt() : std::get<SlotState>(slots_[index]).prompt();
}

void Sampler::sample_row(int slot, std::span<const float> logits, SamplerWorkspace& workspace, SampledToken& out,
                         TokenMask mask) {
  auto& state = std::get<SlotState>(slots_[slot]);
  choose_token(state, logits, workspace, out, mask);
  out.has_logprobs = false;
  if (!out.error.empty()) return;
  if (state.params().logprobs) {
    out.has_logprobs = true;
    row_logprobs(workspace.raw, out.token, *state.params().logprobs, workspace.candidates, out.logprobs);
  }
  state.append(out.token);
}

std::string Sampler::prompt_logprobs(std::span<const float> logits, std::span<const TokenId> next_tokens, int num_top,
                                     SamplerWorkspace& workspace, std::span<RowLogprobs> out) const {
  if (auto message = out_of_vocabulary("prompt", next_tokens, vocab_size_)) return *message;
  for (std::size_t i = 0; i < next_tokens.size(); ++i) {
    workspace.raw.assign(logits.subspan(i * vocab_size_, vocab_size_));
    if (const char* error = describe_unusable(workspace.raw, 0.0f)) return error;
    row_logprobs(workspace.raw, next_tokens[i], num_top, workspace.candidates, out[i]);
  }
  return {};
}

}  // namespace tl
