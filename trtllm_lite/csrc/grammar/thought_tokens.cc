#include "grammar/thought_tokens.h"

#include <algorithm>
#include <utility>

namespace tl::llguidance {
namespace {

constexpr std::int32_t kNoToken = -1;

std::string_view behind_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(Thoughts::kSpace), text.size()));
}

}  // namespace

ThoughtTokens::ThoughtTokens(std::shared_ptr<const Thoughts> thoughts, std::shared_ptr<const TokenTexts> texts,
                             std::vector<std::uint32_t> end_ids)
    : thoughts_(std::move(thoughts)),
      texts_(std::move(texts)),
      end_ids_(std::move(end_ids)),
      spelled_(thoughts_->starts()) {
  of_byte_.fill(kNoToken);
  for (std::int32_t token = 0; token < texts_->num_tokens(); ++token) {
    if (ends(token)) continue;
    const std::string_view text = texts_->with_name(token);
    if (may_cross(text)) may_cross_.push_back(token);
    std::erase_if(spelled_, [&](std::string_view start) { return behind_space(text).starts_with(start); });
    if (text.size() != 1 || texts_->is_special(token)) continue;
    std::int32_t& of_byte = of_byte_[static_cast<std::uint8_t>(text.front())];
    if (of_byte == kNoToken) of_byte = token;
  }
  (void)following(thoughts_->start());  // every text needs it; computed now, so that none waits for it
}

ThoughtTokens::State ThoughtTokens::after(State state, std::int32_t token) const {
  if (!ends(token)) return thoughts_->after(state, texts_->with_name(token)).state;
  return thoughts_->is_undecided(state) ? Thoughts::kNone : state;
}

std::optional<std::vector<std::int32_t>> ThoughtTokens::answer_in(State state, std::int32_t token) const {
  const std::string_view text = texts_->with_name(token);
  const std::string_view answer = text.substr(thoughts_->after(state, text).num_read);
  if (!answer.empty() && texts_->is_special(token)) return std::nullopt;
  std::vector<std::int32_t> spelled;
  for (const char byte : answer) spelled.push_back(of_byte_[static_cast<std::uint8_t>(byte)]);
  if (std::ranges::count(spelled, kNoToken) > 0) return std::nullopt;
  return spelled;
}

bool ThoughtTokens::ends(std::int32_t token) const {
  return std::ranges::count(end_ids_, static_cast<std::uint32_t>(token)) > 0;
}

bool ThoughtTokens::begins_spelled(std::string_view text) const {
  return std::ranges::any_of(spelled_, [&](std::string_view start) { return start.starts_with(behind_space(text)); });
}

// Whether one of the texts that end thoughts, or the last part of one, ends within the token.
bool ThoughtTokens::may_cross(std::string_view text) const {
  return std::ranges::any_of(thoughts_->last_texts(), [&](std::string_view last) {
    for (std::size_t end = text.find(last.back()); end + 1 < text.size(); end = text.find(last.back(), end + 1)) {
      const std::string_view begin = text.substr(0, end + 1);
      if (begin.ends_with(last) || last.ends_with(begin)) return true;
    }
    return false;
  });
}

const ThoughtTokens::Following& ThoughtTokens::following(State state) const {
  const std::lock_guard lock(mutex_);
  const auto place = following_.find(state);
  return place != following_.end() ? place->second : following_.emplace(state, found(state)).first->second;
}

ThoughtTokens::Following ThoughtTokens::found(State state) const {
  Following found;
  const bool is_undecided = thoughts_->is_undecided(state);
  const auto look_at = [&](std::int32_t token) {
    const std::string_view text = texts_->with_name(token);
    const Thoughts::Step step = thoughts_->after(state, text);
    if (step.state == Thoughts::kBehind && step.num_read < text.size()) {
      found.crossing.push_back(token);
      return;
    }
    if (!is_undecided || step.state == Thoughts::kNone || step.state == state) return;
    const bool is_partial = state == thoughts_->start() && thoughts_->is_undecided(step.state);
    if (!is_partial || begins_spelled(text)) found.beginning.push_back(token);
  };
  if (is_undecided) {
    for (std::int32_t token = 0; token < texts_->num_tokens(); ++token) {
      if (!ends(token)) look_at(token);
    }
  } else {
    std::ranges::for_each(may_cross_, look_at);
  }
  return found;
}

}  // namespace tl::llguidance
