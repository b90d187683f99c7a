// Drafts of which as many are right as is asked for: how speculative decoding is measured and tested with any weights,
// random ones among them. The drafter knows what the same prompt was continued with before, so that devices verify and
// keep its drafts as they do any others, and what is generated does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "batching/request.h"
#include "speculation/sequence_drafter.h"

namespace tl {

// How often the draft in each place is kept, those before it kept, too: not increasing, each 0 to 1.
struct SyntheticOptions {
  std::vector<double> acceptance_rates;
};

// What prompts were continued with, by prompt and cache_salt, the latest kMaxTokens tokens.
class KnownOutputs {
 public:
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 20;
  static std::uint64_t key_of(std::span<const std::int32_t> prompt, const std::string& salt);
  // Null if there is none.
  std::shared_ptr<const std::vector<std::int32_t>> find(std::uint64_t key) const;
  void add(std::uint64_t key, std::span<const std::int32_t> generated);

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::vector<std::int32_t>>> outputs_;
  std::deque<std::uint64_t> keys_;  // the oldest first
  std::size_t num_tokens_ = 0;
};

// Drafts nothing for a prompt that was not run before, and behind a token that differs from what was generated then.
class SyntheticDrafter : public SequenceDrafter {
 public:
  SyntheticDrafter(const SyntheticOptions& options, std::shared_ptr<KnownOutputs> outputs, const Request& request);
  void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) override;
  void end(std::span<const std::int32_t> generated) override;

 private:
  const SyntheticOptions options_;
  const std::shared_ptr<KnownOutputs> outputs_;
  const std::uint64_t key_;
  const std::size_t num_prompt_;
  const std::shared_ptr<const std::vector<std::int32_t>> known_;
  std::size_t num_checked_ = 0;  // tokens that are as they were before
};

}  // namespace tl
