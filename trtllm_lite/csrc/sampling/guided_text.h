// The text of a sequence that a grammar guides, whose tokens are drawn elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace tl {

struct MaskThread;

// Masks of a text that MaskThreads is to make, and those that it has made.
struct MaskOrder {
  std::mutex mutex;  // guards the members up to `thread`
  std::vector<std::int32_t> drafts;
  std::span<std::uint32_t> masks;
  bool is_open = false;          // whether a step waits for the masks
  bool is_fresh = false;         // the masks are made quickly, as far as is known
  bool is_slow = false;          // the last masks took long, or those that are made now do
  bool is_taken = false;         // whether a thread makes the masks, or will
  MaskThread* thread = nullptr;  // the thread that makes the masks; null while none does
  // The members below are written without the mutex, by the thread that makes the masks alone.
  std::vector<std::int32_t> made_for;
  std::vector<std::uint32_t> made;
  bool has_made = false;
  std::string error;
};

// Only one thread at a time may use the text. After an error, only destruction is defined.
class GuidedText {
 public:
  explicit GuidedText(std::unique_ptr<GrammarMatcher> matcher) : matcher_(std::move(matcher)) {}

  GrammarMatcher& matcher() { return *matcher_; }

  // Notes tokens that were drawn, under the masks. The matcher takes them when it is next asked for masks, because
  // several threads make masks in parallel.
  void add_drawn(std::span<const std::int32_t> tokens) { drawn_.insert(drawn_.end(), tokens.begin(), tokens.end()); }
  // Fills a mask of `num_words` for the next token, and one for the token after each of `drafts`. Masks after a
  // draft that the grammar forbids stay as they are: the draft is never drawn. Throws GrammarError.
  void fill_masks(std::span<const std::int32_t> drafts, std::size_t num_words, std::span<std::uint32_t> masks);

  MaskOrder order;

 private:
  std::unique_ptr<GrammarMatcher> matcher_;
  std::vector<std::int32_t> drawn_;  // tokens that the matcher has still to take
};

}  // namespace tl
