// The functions of llguidance's C interface that are used here; the library is found in its Python wheel at run time.
// The declarations follow its documentation: https://github.com/guidance-ai/llguidance, parser/llguidance.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tl::llguidance {

struct Tokenizer;
struct Matcher;

// Limits of the work on one grammar; "fuel" and "items" are steps of llguidance's lexer and parser.
struct Limits {
  std::size_t max_items_in_row;
  std::uint64_t initial_lexer_fuel;
  std::uint64_t step_lexer_fuel;
  std::size_t step_max_items;
  std::size_t max_lexer_states;
  std::size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};

// The tokenizer, limits and log settings of a matcher.
struct MatcherInit {
  const Tokenizer* tokenizer;
  std::uint32_t log_buffer_level;
  std::uint32_t log_stderr_level;
  bool fast_forward;  // not read for matchers, like the next field
  bool backtrack;
  Limits limits;
};

using TokenizeFunction = std::size_t (*)(const void* user_data, const std::uint8_t* bytes, std::size_t num_bytes,
                                         std::uint32_t* tokens, std::size_t num_tokens);

struct TokenizerInit {
  std::size_t struct_size;
  std::uint32_t vocab_size;
  std::uint32_t end_id;
  const std::uint32_t* token_lengths;
  const std::uint8_t* token_bytes;
  const char* tokenizer_json;  // alternative to the two fields before: tokenizer.json of Hugging Face
  bool tokenize_takes_strings;
  TokenizeFunction tokenize;
  bool tokenize_greedily;
  const void* tokenize_user_data;
  const char* const* slices;
  const std::uint32_t* more_end_ids;
  std::uint32_t num_more_end_ids;
};

// A flag for `decode`: include the names of special tokens.
constexpr std::uint32_t kWithSpecial = 1;

// Functions return null or -1 for errors unless they say otherwise.
struct Functions {
  void (*set_defaults)(MatcherInit*, const Tokenizer*);
  Tokenizer* (*new_tokenizer)(const TokenizerInit*, char* error, std::size_t error_size);
  void (*free_tokenizer)(Tokenizer*);
  Matcher* (*new_matcher)(const MatcherInit*, const char* kind, const char* text);  // never null: see matcher_error
  Matcher* (*clone_matcher)(const Matcher*);
  void (*free_matcher)(Matcher*);
  const char* (*matcher_error)(Matcher*);  // null if there is no error; lives as long as the matcher
  std::size_t (*mask_bytes)(const Matcher*);
  std::int32_t (*compute_mask)(Matcher*, std::uint32_t* mask, std::size_t mask_bytes);
  std::int32_t (*consume)(Matcher*, const std::uint32_t* tokens, std::size_t num_tokens);
  std::int32_t (*roll_back)(Matcher*, std::size_t num_tokens);
  std::int32_t (*num_valid)(Matcher*, const std::uint32_t* tokens, std::size_t num_tokens);
  std::int32_t (*forced)(Matcher*, std::uint32_t* tokens, std::size_t num_tokens);  // returns how many it wrote
  bool (*is_accepting)(Matcher*);
  // Writes the text and a NUL; returns the bytes needed for both.
  std::size_t (*decode)(const Tokenizer*, const std::uint32_t* tokens, std::size_t num_tokens, char* text,
                        std::size_t size, std::uint32_t flags);
};

// Loads the library at `path`, which stays loaded. Throws ArgumentError if its version is not known to fit, DeviceError
// if it cannot be loaded.
Functions load(const std::string& path);

}  // namespace tl::llguidance
