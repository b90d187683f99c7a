// The interface between guided decoding and a library of grammars: a few functions over a text that grows by tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace tl {

// The grammar cannot guide a text further: a token was forbidden, or the library reached a limit.
struct GrammarError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The number of words of a mask. Token t is allowed if bit t % 32 of word t / 32 is set.
constexpr std::size_t mask_words(std::size_t vocab_size) { return (vocab_size + 31) / 32; }

// A text that grows under a grammar. Threads must take turns. After an error, only destruction is defined.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Fills mask[mask_words(vocab_size)] with the tokens that may come next: those after which the grammar can still be
  // satisfied, and the end tokens if it is satisfied already. Bits beyond the vocabulary are undefined. Throws
  // GrammarError.
  virtual void fill_mask(std::span<std::uint32_t> mask) = 0;

  // Appends tokens, which the masks must allow. Throws GrammarError.
  virtual void accept(std::span<const std::int32_t> tokens) = 0;

  // How many of the leading `tokens` may come next, one after the other; none may be an end token. Throws GrammarError.
  virtual std::size_t num_allowed(std::span<const std::int32_t> tokens) = 0;

  // Removes the last `count` accepted tokens. Throws GrammarError if there are fewer.
  virtual void roll_back(std::size_t count) = 0;
};

// Finds the forced tokens of a text, for use as draft tokens. Threads must take turns. After an error, only destruction
// is defined.
class TokenForcer {
 public:
  virtual ~TokenForcer() = default;

  // See GrammarMatcher::accept.
  virtual void accept(std::span<const std::int32_t> tokens) = 0;

  // Up to `most` tokens that come next if the grammar leaves only one continuation, as the model's tokenizer would
  // spell it. Optional white space is predicted to be as before in the text. Throws GrammarError.
  virtual std::vector<std::int32_t> forced_tokens(int most) = 0;

  // How many of the leading `tokens` the grammar allows next. Throws GrammarError.
  virtual int num_allowed(std::span<const std::int32_t> tokens) = 0;
};

// A compiled grammar, shared by threads.
class Grammar {
 public:
  virtual ~Grammar() = default;

  // A matcher for an empty text. It may outlive the grammar.
  virtual std::unique_ptr<GrammarMatcher> start() const = 0;
  // A forcer for an empty text; null if the grammar was compiled without one.
  virtual std::unique_ptr<TokenForcer> start_forcer() const = 0;
};

}  // namespace tl
