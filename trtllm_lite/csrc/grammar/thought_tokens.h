// How a model's tokens spell the markers of thoughts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/llguidance/token_texts.h"
#include "text/thoughts.h"

namespace tl::llguidance {

// The states of thoughts over tokens. The names of special tokens count as text here. Threads share it.
class ThoughtTokens {
 public:
  using State = Thoughts::State;

  ThoughtTokens(std::shared_ptr<const Thoughts> thoughts, std::shared_ptr<const TokenTexts> texts,
                std::vector<std::uint32_t> end_ids);

  const Thoughts& thoughts() const { return *thoughts_; }
  const std::vector<std::uint32_t>& end_ids() const { return end_ids_; }
  bool ends(std::int32_t token) const;
  std::int32_t num_tokens() const { return texts_->num_tokens(); }

  // The state after one more token. End tokens neither begin nor end thoughts.
  State after(State state, std::int32_t token) const;
  // Tokens that begin thoughts, or may begin them: after such a token, the text has part of a marker with only white
  // space before it. The first listed are those that complete a marker, as a thinking model writes it. Empty if
  // thoughts have begun.
  std::span<const std::int32_t> beginning(State state) const { return following(state).beginning; }
  // Tokens that contain the end of the thoughts and the beginning of the answer.
  std::span<const std::int32_t> crossing(State state) const { return following(state).crossing; }
  // The part of a crossing token that belongs to the answer, spelled in single-byte tokens. Empty if the vocabulary
  // lacks one of these, or for special tokens, which are never part of an answer.
  std::optional<std::vector<std::int32_t>> answer_in(State state, std::int32_t token) const;

 private:
  struct Following {
    std::vector<std::int32_t> beginning, crossing;
  };

  bool may_cross(std::string_view text) const;
  bool begins_spelled(std::string_view text) const;
  const Following& following(State state) const;
  Following found(State state) const;

  const std::shared_ptr<const Thoughts> thoughts_;
  const std::shared_ptr<const TokenTexts> texts_;
  const std::vector<std::uint32_t> end_ids_;
  std::array<std::int32_t, 256> of_byte_;
  std::vector<std::string> spelled_;     // start markers that no single token completes
  std::vector<std::int32_t> may_cross_;  // tokens that are crossing in some state
  mutable std::mutex mutex_;
  mutable std::map<State, Following> following_;  // by state that a text has reached
};

}  // namespace tl::llguidance
