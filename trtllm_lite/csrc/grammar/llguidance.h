// Grammars by llguidance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

  // `kind`: "json_schema", "regex", "lark" or "llguidance" (a JSON object of several grammars). Throws ArgumentError
  // for a text that is no such grammar, LimitError for one beyond kLimits. Compiling recurses as deeply as the text
  // says and takes as much memory and time as it says: the process may end over a text that try_out() has not passed.
  // Nothing is guessed where the grammar `names_tokens`, special ones: guesses are bytes.
  std::shared_ptr<const Grammar> compile(const std::string& kind, const std::string& text, bool names_tokens) const;

  // Compiles as compile() does and writes a text of `num_tokens` random tokens, on a smaller stack, in a process that
  // may die of it. Returns the bytes of memory that the compiled grammar takes. Throws what compile() throws.
  std::size_t try_out(const std::string& kind, const std::string& text, int num_tokens, bool names_tokens) const;

  // How the model's tokens write thoughts; it takes a moment.
  std::shared_ptr<const ThoughtTokens> tokens_of(std::shared_ptr<const Thoughts> thoughts) const;

 private:
  std::shared_ptr<const Grammar> compile_here(const std::string& kind, const std::string& text,
                                              bool names_tokens) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<const GuessingTools> tools_;    // null: nobody guesses
  std::shared_ptr<const TokenizerHandle> bytes_;  // as a vocabulary; null likewise
};

}  // namespace tl::llguidance
