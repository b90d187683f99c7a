// Grammars by llguidance.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <span>
#include <string>

#include "grammar/grammar.h"
#include "grammar/spelling.h"
#include "text/thoughts.h"

namespace tl::llguidance {

class ThoughtTokens;
class TokenizerHandle;
class Vocabulary;
struct GuessingTools;

// Compiles grammars over the tokens of one model. Threads share it.
class Compiler {
 public:
  // `library`: path of llguidance's shared library. `tokenizer_json`: the model's tokenizer, of whose tokens those
  // below `vocab_size` count; texts end by `end_ids`, of which there is one at least. Special tokens are no part of any
  // text. `tokenize`: spells what is guessed of texts under these grammars; none if nobody guesses. Throws
  // ArgumentError for a tokenizer that llguidance cannot read, and what load() throws.
  Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
           std::span<const std::uint32_t> end_ids, Tokenize tokenize);

  // `kind`: "json_schema", "regex", "lark" or "llguidance" (a JSON object of several grammars). Throws ArgumentError,
  // with llguidance's message, for a text that is no such grammar or too large a one, LimitError for one that takes
  // longer than `timeout`, OverloadedError if kMaxCompiling others compile for that long: one that takes too long
  // cannot be ended, it goes on and counts. Of texts in which the grammar `names_tokens`, special ones, nothing is
  // guessed: guesses are of bytes.
  std::shared_ptr<const Grammar> compile(std::string kind, std::string text, std::chrono::milliseconds timeout,
                                         bool names_tokens);

  // How the model's tokens write thoughts; it takes a moment.
  std::shared_ptr<const ThoughtTokens> tokens_of(std::shared_ptr<const Thoughts> thoughts) const;

 private:
  static constexpr int kMaxCompiling = 4;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<const GuessingTools> tools_;    // null: nobody guesses
  std::shared_ptr<const TokenizerHandle> bytes_;  // as a vocabulary; null likewise
  using Places = std::counting_semaphore<kMaxCompiling>;
  std::shared_ptr<Places> places_ = std::make_shared<Places>(kMaxCompiling);
};

}  // namespace tl::llguidance
