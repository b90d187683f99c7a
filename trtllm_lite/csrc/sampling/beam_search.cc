#include "sampling/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sampling/logit_processors.h"
#include "sampling/logprobs.h"
#include "sampling/number_rules.h"
#include "sampling/truncation.h"

namespace tl {

std::vector<std::string> violations(const BeamSearchParams& beams, const SamplingParams& params, int vocab_size) {
  auto out = violations(params, vocab_size);
  const auto require = [&out](bool holds, std::string message) {
    if (!holds) out.push_back(std::move(message));
  };
  require(beams.num_beams >= 1 && beams.num_beams <= BeamSearchParams::kMaxBeams,
          "num_beams must be from 1 to " + std::to_string(BeamSearchParams::kMaxBeams) + ", not " +
              std::to_string(beams.num_beams) + "; ask for fewer beams");
  require(std::fabs(beams.length_penalty) <= BeamSearchParams::kMaxLengthPenalty,
          "length_penalty must be from -100 to 100, not " + std::to_string(beams.length_penalty) +
              "; 0 ignores the length, 1 compares the mean log-probability");
  require(params.temperature == 0.0f || params.temperature == 1.0f,
          "temperature must be 0 or 1 with beam search, not " + std::to_string(params.temperature) +
              ": a beam search draws nothing; leave it out");
  if (!keeps_all(params, vocab_size)) {
    visit_numbers([&](auto member, const auto& rule) {
      require(!rule.cuts || params.*member == rule.off, std::string(rule.name) + " must be off with beam search, not " +
                                                            std::to_string(params.*member) +
                                                            ": a beam search draws nothing; leave it out");
    });
  }
  require(!params.logprobs, "logprobs must not be set with beam search, which reports scores; leave it out");
  return out;
}

BeamSearch::BeamSearch(const BeamSearchParams& beams, SamplingParams params, std::span<const TokenId> prompt)
    : params_(beams),
      prompt_(prompt.begin(), prompt.end()),
      end_tokens_(ending_tokens(params)),
      max_tokens_(params.max_tokens) {
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
  live_.push_back({SlotState(std::move(params), prompt), -1, 0.0f});
}

bool BeamSearch::ends(TokenId token) const {
  return num_generated_ == max_tokens_ || std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
}

double BeamSearch::length_divisor(int length) const { return std::pow(length, params_.length_penalty); }

// Collects the best continuations of all beams, best first: enough that num_beams remain without those that end.
std::string BeamSearch::collect_continuations(std::span<const std::span<const float>> rows,
                                              SamplerWorkspace& workspace) {
  const int num_kept = std::max(2, 1 + static_cast<int>(end_tokens_.size())) * params_.num_beams;
  continuations_.clear();
  for (int beam = 0; beam < num_live(); ++beam) {
    workspace.raw.assign(rows[beam]);
    if (const char* error = describe_unusable(workspace.raw, 0.0f)) return error;
    const double normalizer = log_sum_exp(workspace.raw);
    logprobs_.resize(rows[beam].size());
    std::transform(rows[beam].begin(), rows[beam].end(), logprobs_.begin(),
                   [normalizer](float logit) { return static_cast<float>(logit - normalizer); });
    workspace.processed.assign(process_logits(live_[beam].state, logprobs_, workspace.processed_logits));
    if (std::isinf(workspace.processed.max)) continue;  // this beam's constraints leave it no continuation
    gather_top_k(workspace.processed, num_kept, 1.0f, workspace.candidates);
    for (int i = 0; i < workspace.candidates.size(); ++i) {
      const float score = workspace.candidates.scaled[i] + live_[beam].score;
      continuations_.push_back({beam, workspace.candidates.ids[i], score});
    }
  }
  const auto better = [](const Continuation& a, const Continuation& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.parent, a.token) < std::pair(b.parent, b.token);
  };
  const auto kept = std::min<std::size_t>(num_kept, continuations_.size());
  std::partial_sort(continuations_.begin(), continuations_.begin() + kept, continuations_.end(), better);
  continuations_.resize(kept);
  return {};
}

void BeamSearch::finish(const Continuation& continuation) {
  const float score = continuation.score / static_cast<float>(length_divisor(num_generated_));
  const auto place =
      std::find_if(finished_.begin(), finished_.end(), [score](const auto& f) { return f.score < score; });
  const auto rank = place - finished_.begin();
  if (rank >= params_.num_beams) return;
  nodes_.push_back({live_[continuation.parent].node, continuation.token});
  finished_.insert(place, {static_cast<int>(nodes_.size()) - 1, score});
  if (static_cast<int>(finished_.size()) > params_.num_beams) finished_.pop_back();
}

void BeamSearch::move_beams(std::span<const Continuation> kept) {
  std::vector<Beam> next;
  moves_.clear();
  for (const auto& [parent, token, score] : kept) {
    nodes_.push_back({live_[parent].node, token});
    next.push_back({live_[parent].state, static_cast<int>(nodes_.size()) - 1, score});
    next.back().state.append(token);
    moves_.push_back({parent, token});
  }
  live_ = std::move(next);
}

bool BeamSearch::can_improve() const {
  if (static_cast<int>(finished_.size()) < params_.num_beams) return true;
  if (params_.early_stopping == EarlyStopping::kTrue) return false;
  const bool longer_may_be_better = params_.early_stopping == EarlyStopping::kNever && params_.length_penalty > 0.0;
  const double divisor = length_divisor(longer_may_be_better ? max_tokens_ : num_generated_);
  return live_.front().score / static_cast<float>(divisor) > finished_.back().score;
}

std::string BeamSearch::step(std::span<const std::span<const float>> rows, SamplerWorkspace& workspace) {
  if (auto error = collect_continuations(rows, workspace); !error.empty()) return error;
  ++num_generated_;
  std::vector<Continuation> kept;
  for (std::size_t i = 0; i < continuations_.size(); ++i) {
    const bool ended = ends(continuations_[i].token);
    // Continuations below the best num_beams only serve as running beams, so one that ends is dropped.
    if (ended && i < static_cast<std::size_t>(params_.num_beams)) finish(continuations_[i]);
    if (!ended && static_cast<int>(kept.size()) < params_.num_beams) kept.push_back(continuations_[i]);
  }
  move_beams(kept);
  done_ = live_.empty() || !can_improve();
  if (done_) {
    live_.clear();
    moves_.clear();
  }
  if (done_ && finished_.empty()) return "the constraints leave no possible sequence; relax bad_words or the like";
  return {};
}

std::vector<BeamHypothesis> BeamSearch::hypotheses() const {
  std::vector<BeamHypothesis> out;
  for (const auto& [leaf, score] : finished_) {
    BeamHypothesis hypothesis{{}, score};
    for (int node = leaf; node >= 0; node = nodes_[node].parent) hypothesis.tokens.push_back(nodes_[node].token);
    std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
    out.push_back(std::move(hypothesis));
  }
  return out;
}

}  // namespace tl
