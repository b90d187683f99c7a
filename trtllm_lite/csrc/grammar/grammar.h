// What guided decoding asks of a library of grammars, whichever it is: a few functions over a text that grows by
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace tl {

// A text that a grammar cannot guide any further: a token that it forbids, or a limit of the library that was reached.
struct GrammarError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Which tokens are allowed: token t is if bit t % 32 of word t / 32 is set.
constexpr std::size_t mask_words(std::size_t vocab_size) { return (vocab_size + 31) / 32; }

// One text that grows under a grammar. Threads take turns. After an error only destruction is defined.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Fills mask[mask_words(vocab_size)] with the tokens that may come next: those after which the text can still become
  // one of the grammar's, and the end tokens where it is one already. What the bits beyond the vocabulary are is not
  // defined. Throws GrammarError.
  virtual void fill_mask(std::span<std::uint32_t> mask) = 0;

  // Appends tokens to the text, which the masks before them allow. Throws GrammarError.
  virtual void accept(std::span<const std::int32_t> tokens) = 0;

  // How many of `tokens`, of which none is an end token, may come next one behind the other. Throws GrammarError.
  virtual std::size_t num_allowed(std::span<const std::int32_t> tokens) = 0;

  // Takes back the last `count` tokens that were accepted. Throws GrammarError if there are fewer.
  virtual void roll_back(std::size_t count) = 0;
};

// Guesses how one text goes on. Threads take turns. After an error only destruction is defined.
class GrammarGuesser {
 public:
  virtual ~GrammarGuesser() = default;

  // As GrammarMatcher::accept.
  virtual void accept(std::span<const std::int32_t> tokens) = 0;

  // Up to `most` tokens that come next if the grammar leaves one way to go on, as the model's tokenizer would spell it.
  // White space that may stand anywhere is expected as it stood in the text before. Throws GrammarError.
  virtual std::vector<std::int32_t> guess(int most) = 0;

  // How many of `tokens`, from the first on, the grammar allows next. Throws GrammarError.
  virtual int num_allowed(std::span<const std::int32_t> tokens) = 0;
};

// A compiled grammar. Threads share it.
class Grammar {
 public:
  virtual ~Grammar() = default;

  // A matcher of the empty text, which may outlive the grammar.
  virtual std::unique_ptr<GrammarMatcher> start() const = 0;
  // A guesser of the empty text; null if the grammar was compiled without.
  virtual std::unique_ptr<GrammarGuesser> start_guesser() const = 0;
};

}  // namespace tl
