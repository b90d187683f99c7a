// How a model's tokens write texts that think.
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

#include "grammar/token_texts.h"
#include "text/thoughts.h"

namespace tl::llguidance {

// Thoughts over tokens. Names of special tokens count as text here. Threads share it.
class ThoughtTokens {
 public:
  using State = Thoughts::State;

  ThoughtTokens(std::shared_ptr<const Thoughts> thoughts, std::shared_ptr<const TokenTexts> texts,
                std::vector<std::uint32_t> end_ids);

  const Thoughts& thoughts() const { return *thoughts_; }
  const std::vector<std::uint32_t>& end_ids() const { return end_ids_; }
  bool ends(std::int32_t token) const;
  std::int32_t num_tokens() const { return texts_->num_tokens(); }

  // The state behind one more token. End tokens begin and end no thoughts.
  State after(State state, std::int32_t token) const;
  // Tokens that begin thoughts, or may: behind them the text has some of a marker, and only white space before it. The
  // first of them has all of a marker which a token has, as a model that thinks so writes it. None where thoughts have
  // begun.
  std::span<const std::int32_t> beginning(State state) const { return following(state).beginning; }
  // Tokens in which the answer begins behind the thoughts' end.
  std::span<const std::int32_t> crossing(State state) const { return following(state).crossing; }
  // What a token that leads from thoughts to the answer writes of the answer, spelled in tokens of one byte. None if
  // the vocabulary lacks one, or for special tokens, which are part of no answer.
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
  std::vector<std::string> spelled_;     // starts that no token has all of
  std::vector<std::int32_t> may_cross_;  // tokens that are crossing in some state
  mutable std::mutex mutex_;
  mutable std::map<State, Following> following_;  // of the states that texts came to
};

}  // namespace tl::llguidance
