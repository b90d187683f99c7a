// Grammars by llguidance.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <span>
#include <string>

#include "grammar/grammar.h"

namespace tl::llguidance {

class Vocabulary;

// Compiles grammars over the tokens of one model. Threads share it.
class Compiler {
 public:
  // `library`: path of llguidance's shared library. `tokenizer_json`: the model's tokenizer, of whose tokens those
  // below `vocab_size` count; texts end by `end_ids`, of which there is one at least. Special tokens are no part of any
  // text. Throws ArgumentError for a tokenizer that llguidance cannot read, and what load() throws.
  Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
           std::span<const std::uint32_t> end_ids);

  // `kind`: "json_schema", "regex", "lark" or "llguidance" (a JSON object of several grammars). Throws ArgumentError,
  // with llguidance's message, for a text that is no such grammar or too large a one, LimitError for one that takes
  // longer than `timeout`, OverloadedError if kMaxCompiling others compile for that long: one that takes too long
  // cannot be ended, it goes on and counts.
  std::shared_ptr<const Grammar> compile(std::string kind, std::string text, std::chrono::milliseconds timeout);

 private:
  static constexpr int kMaxCompiling = 4;

  std::shared_ptr<const Vocabulary> vocabulary_;
  using Places = std::counting_semaphore<kMaxCompiling>;
  std::shared_ptr<Places> places_ = std::make_shared<Places>(kMaxCompiling);
};

}  // namespace tl::llguidance
