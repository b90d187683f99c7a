// Beam search over one request: which beams to continue with which tokens, and which sequences are finished. Gives the
// tokens and scores of transformers' GenerationMixin._beam_search (do_sample=False) for a batch of one. Equal scores
// are ordered by beam, then by token id.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "executor/beam_move.h"
#include "sampling/slot_state.h"
#include "sampling/workspace.h"

namespace tl {

// When a search with num_beams finished sequences ends: at once (kTrue); when the best running beam could not beat
// the worst of them at the present length (kFalse); or at any length up to max_tokens (kNever).
enum class EarlyStopping : std::uint8_t { kFalse, kTrue, kNever };

struct BeamSearchParams {
  static constexpr int kMaxBeams = 64;
  static constexpr double kMaxLengthPenalty = 100.0;  // length^penalty stays finite in float64: [-100, 100]

  int num_beams = 1;
  double length_penalty = 1.0;  // a sequence's score is the sum of its log-probabilities / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};

// Everything wrong with a beam search and with the sampling parameters of its request, in sentences as in
// violations(SamplingParams). Sampling parameters may edit the logits (here log-probabilities, as in transformers) but
// must not change a draw: temperature 0 or 1, no truncation, no logprobs.
std::vector<std::string> violations(const BeamSearchParams& beams, const SamplingParams& params, int vocab_size);

struct BeamHypothesis {
  std::vector<TokenId> tokens;  // generated ones, with the end token if it has one
  float score;
};

class BeamSearch {
 public:
  // The arguments must have no violations. The search starts with one beam, the prompt.
  BeamSearch(const BeamSearchParams& beams, SamplingParams params, std::span<const TokenId> prompt);

  std::span<const TokenId> prompt() const { return prompt_; }
  int num_live() const { return static_cast<int>(live_.size()); }
  bool done() const { return done_; }

  // Advances the search by one token. `rows`: the model's logits of the live beams, row i [vocab_size] of beam i.
  // Returns what is wrong with a row, or that the constraints allow no sequence at all. If it returns an empty text,
  // moves() has the beams of the next step, none if the search is done.
  [[nodiscard]] std::string step(std::span<const std::span<const float>> rows, SamplerWorkspace& workspace);
  std::span<const BeamMove> moves() const { return moves_; }

  // Finished sequences, best first: num_beams when done, or fewer (at least one) if the constraints allow no more.
  std::vector<BeamHypothesis> hypotheses() const;

 private:
  struct Beam {
    SlotState state;
    int node;  // its newest token in nodes_; -1: none yet
    float score;
  };
  struct Continuation {
    int parent;
    TokenId token;
    float score;
  };
  struct Node {
    int parent;
    TokenId token;
  };
  struct Finished {
    int node;
    float score;
  };

  std::string collect_continuations(std::span<const std::span<const float>> rows, SamplerWorkspace& workspace);
  bool ends(TokenId token) const;
  void finish(const Continuation& continuation);
  void move_beams(std::span<const Continuation> kept);
  bool can_improve() const;
  double length_divisor(int length) const;

  BeamSearchParams params_;
  std::vector<TokenId> prompt_;
  std::vector<TokenId> end_tokens_;  // sorted, distinct
  int max_tokens_;
  int num_generated_ = 0;
  bool done_ = false;
  std::vector<Beam> live_;  // best first
  std::vector<Continuation> continuations_;
  std::vector<Node> nodes_;         // all sequences, as paths to the root
  std::vector<Finished> finished_;  // best first, at most num_beams
  std::vector<BeamMove> moves_;
  std::vector<float> logprobs_;
};

}  // namespace tl
