// The function that the fake device computes: a token, or the next beams, from all tokens before.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "drafts/sequence_drafter.h"
#include "schedule/request.h"

using Tokens = std::vector<std::int32_t>;

struct FakeParams : tl::SlotParams {
  std::uint64_t seed = 0;
  bool prompt_outputs = false;
  bool guided = false;
  int num_beams = 0;
  int max_new_tokens = 0;  // max_new_tokens of a beam search
  int errs_on = 0;         // where the seed's token is a multiple of this, another is sampled; 0: never
};

struct FakeOutputs : tl::RowOutputs {
  std::vector<int> positions;
  std::vector<Tokens> found;  // results of a search: prompt and generated tokens of each beam
};

constexpr int kVocab = 1000;

inline std::int32_t next_token(std::uint64_t seed, std::span<const std::int32_t> history) {
  std::uint64_t hash = seed + 0x9e3779b97f4a7c15ull;
  for (const std::int32_t token : history)
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 0xff51afd7ed558ccdull + (hash >> 29);
  return static_cast<std::int32_t>((hash >> 33) % kVocab);
}

// Returns the tokens that a request must generate, whatever else happens.
inline Tokens reference(Tokens prompt, std::uint64_t seed, int num_tokens) {
  const std::size_t num_prompt = prompt.size();
  for (int i = 0; i < num_tokens; ++i) prompt.push_back(next_token(seed, prompt));
  return {prompt.begin() + static_cast<std::ptrdiff_t>(num_prompt), prompt.end()};
}

// Drafts a random number of tokens, of which a random number are right.
class FakeDrafter : public tl::SequenceDrafter {
 public:
  explicit FakeDrafter(std::uint64_t seed) : seed_(seed), random_(seed) {}
  void draft(std::span<const std::int32_t> tokens, int most, tl::TokenRun& out) override {
    Tokens history(tokens.begin(), tokens.end());
    int num_drafts = static_cast<int>(random_() % static_cast<std::uint64_t>(most + 1));
    for (int num_right = static_cast<int>(random_() % 10); num_drafts > 0; --num_drafts, --num_right) {
      const std::int32_t token = next_token(seed_, history);
      history.push_back(num_right > 0 ? token : (token + 1) % kVocab);
      out.push_back(history.back());
    }
  }

 private:
  std::uint64_t seed_;
  std::mt19937_64 random_;
};

// Drafts for two of three requests.
inline std::shared_ptr<tl::Drafter> fake_drafter() {
  return std::make_shared<tl::SequenceDrafters>([](const tl::Request& request) -> std::unique_ptr<FakeDrafter> {
    const auto* params = dynamic_cast<const FakeParams*>(request.spec.params.get());
    if (params == nullptr || params->seed % 3 == 0) return nullptr;
    return std::make_unique<FakeDrafter>(params->seed);
  });
}

// Returns beams that continue random parents, mostly as many as allowed; none at the limit, or at random before it.
inline std::vector<tl::BeamMove> fake_moves(const FakeParams& params, const std::vector<Tokens>& beams,
                                            int num_generated) {
  const int mood = next_token(params.seed + 77, beams[0]);
  if (num_generated + 1 == params.max_new_tokens || mood % 32 == 0) return {};
  std::vector<tl::BeamMove> moves;
  const int count = mood % 7 == 0 ? (params.num_beams + 1) / 2 : params.num_beams;
  for (int i = 0; i < count; ++i) {
    const auto draw = static_cast<std::size_t>(next_token(params.seed + i, beams[i % beams.size()]));
    const std::size_t parent = mood % 3 == 0 ? i % beams.size() : draw % beams.size();
    moves.push_back({static_cast<std::int32_t>(parent), next_token(params.seed + 31 * i, beams[parent])});
  }
  return moves;
}

inline std::vector<Tokens> moved(const std::vector<Tokens>& beams, std::span<const tl::BeamMove> moves) {
  std::vector<Tokens> next;
  for (const tl::BeamMove& move : moves) {
    next.push_back(beams[move.parent]);
    next.back().push_back(move.token);
  }
  return next;
}

// Returns the beams that a search must find.
inline std::vector<Tokens> reference_search(const Tokens& prompt, const FakeParams& params) {
  std::vector<Tokens> beams{prompt};
  for (int num_generated = 0;; ++num_generated) {
    const auto moves = fake_moves(params, beams, num_generated);
    if (moves.empty()) return beams;
    beams = moved(beams, moves);
  }
}
