// Ends a stream where a stop word begins.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "text/word_matcher.h"

namespace tl {

// Passes on a stream of bytes (std::string) or token ids (std::vector) up to the first stop word. Holds back what may
// still become a stop word: nothing passed on is ever taken back. `includes_word`: the stop word itself is passed on
// too. `words` must outlive the filter and must not contain an empty word.
template <typename Stream>
class StopFilter {
 public:
  using Item = typename Stream::value_type;

  StopFilter(const WordMatcher& words, bool includes_word) : words_(&words), includes_word_(includes_word) {}

  // The number of the stop word that has ended the stream; of several that end at the same place, the longest.
  std::optional<int> match() const { return match_; }

  // Adds a piece; appends to `out` what is certainly not part of a stop word. Adds nothing after a match. If the piece
  // is not `armed`, stop words that end in it are ignored.
  void push(const Stream& piece, bool armed, Stream& out) {
    if (!words_->has_words()) {
      append(out, piece, 0, piece.size());
      return;
    }
    const std::size_t start = held_.size();
    append(held_, piece, 0, piece.size());
    for (std::size_t end = start; end < held_.size();) {
      state_ = words_->after(state_, symbol(held_[end++]));
      const int word = words_->found(state_);
      if (word == WordMatcher::kNone || !armed) continue;
      match_ = word;
      append(out, held_, 0, includes_word_ ? end : end - words_->length(word));
      held_.clear();
      return;
    }
    state_ = words_->unfinished(state_);
    const std::size_t keep = held_.size() - words_->depth(state_);
    append(out, held_, 0, keep);
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(keep));
  }

  // Called at the end of the stream: appends what is still held back.
  void finish(Stream& out) {
    append(out, held_, 0, held_.size());
    held_.clear();
  }

 private:
  static WordMatcher::Symbol symbol(Item item) {
    if constexpr (std::is_same_v<Item, char>) {
      return static_cast<std::uint8_t>(item);
    } else {
      return item;
    }
  }
  static void append(Stream& to, const Stream& from, std::size_t begin, std::size_t end) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
              from.begin() + static_cast<std::ptrdiff_t>(end));
  }

  const WordMatcher* words_;
  bool includes_word_;
  WordMatcher::State state_ = WordMatcher::kStart;
  Stream held_;
  std::optional<int> match_;
};

}  // namespace tl
