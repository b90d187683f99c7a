// Drafts with a given acceptance rate, to measure and test speculative decoding with any weights, even random ones. The
// drafter knows the earlier continuation of the same prompt, so devices verify and accept its drafts like any others,
// and the generated text does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "drafts/sequence_drafter.h"
#include "schedule/request.h"

namespace tl {

// For each place, the probability that its draft and all before it are accepted: not increasing, each 0 to 1.
struct SyntheticOptions {
  std::vector<double> acceptance_rates;
};

// The continuations of prompts, by prompt and cache_salt: the latest kMaxTokens tokens.
class KnownOutputs {
 public:
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 20;
  static std::uint64_t key_of(std::span<const std::int32_t> prompt, const std::string& salt);
  // Returns null if there is none.
  std::shared_ptr<const std::vector<std::int32_t>> find(std::uint64_t key) const;
  void add(std::uint64_t key, std::span<const std::int32_t> generated);

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<const std::vector<std::int32_t>>> outputs_;
  std::deque<std::uint64_t> keys_;  // the oldest first
  std::size_t num_tokens_ = 0;
};

// Proposes nothing for a prompt that was not run before, or after a token that differs from the earlier continuation.
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
  std::size_t num_checked_ = 0;  // leading tokens that equal the earlier continuation
};

}  // namespace tl
