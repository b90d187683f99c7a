#include "drafts/synthetic_drafter.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

namespace tl {
namespace {

std::uint64_t extend_hash(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

}  // namespace

// A collision with another prompt costs time but changes no result.
std::uint64_t KnownOutputs::key_of(std::span<const std::int32_t> prompt, const std::string& salt) {
  std::uint64_t hash = extend_hash(prompt.size(), std::hash<std::string>()(salt));
  for (const std::int32_t token : prompt) hash = extend_hash(hash, static_cast<std::uint32_t>(token));
  return hash;
}

std::shared_ptr<const std::vector<std::int32_t>> KnownOutputs::find(std::uint64_t key) const {
  const auto found = outputs_.find(key);
  return found == outputs_.end() ? nullptr : found->second;
}

void KnownOutputs::add(std::uint64_t key, std::span<const std::int32_t> generated) {
  auto& output = outputs_[key];
  if (!output) {
    keys_.push_back(key);
  } else {
    num_tokens_ -= output->size();
  }
  output = std::make_shared<const std::vector<std::int32_t>>(generated.begin(), generated.end());
  num_tokens_ += generated.size();
  while (num_tokens_ > kMaxTokens) {
    const auto oldest = outputs_.find(keys_.front());
    num_tokens_ -= oldest->second->size();
    outputs_.erase(oldest);
    keys_.pop_front();
  }
}

SyntheticDrafter::SyntheticDrafter(const SyntheticOptions& options, std::shared_ptr<KnownOutputs> outputs,
                                   const Request& request)
    : options_(options),
      outputs_(std::move(outputs)),
      key_(KnownOutputs::key_of(request.tokens, request.spec.cache_salt)),
      num_prompt_(request.tokens.size()),
      known_(outputs_->find(key_)) {}

// The place of the first wrong draft is random for each position, but the same in every run.
void SyntheticDrafter::draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) {
  const auto generated = tokens.subspan(num_prompt_);
  if (!known_ || known_->size() < generated.size()) return;
  const auto same = [&](std::size_t i) { return (*known_)[i] == generated[i]; };
  while (num_checked_ < generated.size() && same(num_checked_)) ++num_checked_;
  if (num_checked_ < generated.size()) return;
  std::mt19937_64 random(extend_hash(key_, generated.size()));
  const double drawn = std::uniform_real_distribution<double>()(random);
  const std::size_t num_places = std::min(options_.acceptance_rates.size(), known_->size() - generated.size());
  for (std::size_t i = 0; i < std::min(num_places, static_cast<std::size_t>(most)); ++i) {
    const std::int32_t right = (*known_)[generated.size() + i];
    out.push_back(drawn < options_.acceptance_rates[i] ? right : (right == 0 ? 1 : right - 1));
  }
}

void SyntheticDrafter::end(std::span<const std::int32_t> generated) {
  if (!known_ || known_->size() < generated.size()) outputs_->add(key_, generated);
}

}  // namespace tl
