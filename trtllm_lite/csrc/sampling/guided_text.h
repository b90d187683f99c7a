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
  std::mutex mutex;  // guards what follows
  std::vector<std::int32_t> drafts;
  std::span<std::uint32_t> masks;
  bool is_open = false;          // whether somebody waits for it
  bool is_fresh = false;         // the masks are made quickly, as far as is known
  bool is_slow = false;          // the last masks took long, or those that are made now do
  bool is_taken = false;         // whether a thread is at it, or will be
  MaskThread* thread = nullptr;  // that is at it
  // Written by the thread that is at it alone, unlocked.
  std::vector<std::int32_t> made_for;
  std::vector<std::uint32_t> made;
  bool has_made = false;
  std::string error;
};

// Threads take turns. After an error only destruction is defined.
class GuidedText {
 public:
  explicit GuidedText(std::unique_ptr<GrammarMatcher> matcher) : matcher_(std::move(matcher)) {}

  GrammarMatcher& matcher() { return *matcher_; }

  // Notes tokens that were drawn, under the masks. The matcher takes them when it is next asked for masks, as that is
  // done by several threads.
  void add_drawn(std::span<const std::int32_t> tokens) { drawn_.insert(drawn_.end(), tokens.begin(), tokens.end()); }
  // Fills a mask of `num_words` for the next token, and one for the token after each of `drafts`. Those after a draft
  // that the grammar forbids stay as they are: it is never drawn. Throws GrammarError.
  void fill_masks(std::span<const std::int32_t> drafts, std::size_t num_words, std::span<std::uint32_t> masks);

  MaskOrder order;

 private:
  std::unique_ptr<GrammarMatcher> matcher_;
  std::vector<std::int32_t> drawn_;  // that the matcher has still to take
};

}  // namespace tl
