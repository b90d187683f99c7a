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
struct ByteForcerTools;

// Compiles grammars for the tokens of one model. Threads may share it.
class Compiler {
 public:
  // `library`: path of llguidance's shared library. `tokenizer_json`: the model's tokenizer; tokens from `vocab_size`
  // on are ignored. `end_ids`: the tokens that end texts, at least one. Special tokens are not part of texts.
  // `tokenize`: spells forced text as tokens; empty if no forced tokens are wanted. Throws ArgumentError for a
  // tokenizer that llguidance cannot read, and what load() throws.
  Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
           std::span<const std::uint32_t> end_ids, Tokenize tokenize);

  // `kind`: "json_schema", "regex", "lark" or "llguidance" (a JSON object of several grammars). Throws ArgumentError
  // for an invalid grammar, LimitError for one that exceeds kLimits. Recursion depth, memory and time depend on the
  // text: the process may end because of a text that try_out() has not passed. `names_tokens`: whether the grammar
  // names special tokens; it then forces no tokens, as those are found from bytes.
  std::shared_ptr<const Grammar> compile(const std::string& kind, const std::string& text, bool names_tokens) const;

  // Compiles like compile() and writes a text of `num_tokens` random tokens, on a smaller stack, in a process that may
  // crash. Returns the bytes of memory that the compiled grammar takes. Throws what compile() throws.
  std::size_t try_out(const std::string& kind, const std::string& text, int num_tokens, bool names_tokens) const;

  // How the model's tokens spell the markers of thoughts. Takes a moment.
  std::shared_ptr<const ThoughtTokens> tokens_of(std::shared_ptr<const Thoughts> thoughts) const;

 private:
  std::shared_ptr<const Grammar> compile_here(const std::string& kind, const std::string& text,
                                              bool names_tokens) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::shared_ptr<const ByteForcerTools> tools_;  // null: no forced tokens
  std::shared_ptr<const TokenizerHandle> bytes_;  // the vocabulary of bytes; null: no forced tokens
};

}  // namespace tl::llguidance
