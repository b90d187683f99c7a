// Owners of llguidance's objects.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "errors.h"
#include "grammar/grammar.h"
#include "grammar/llguidance/library.h"
#include "grammar/llguidance/refusals.h"

namespace tl::llguidance {

// A tokenizer, to which matchers refer.
class TokenizerHandle {
 public:
  TokenizerHandle(const Functions& functions, const TokenizerInit& init) : api(functions) {
    std::array<char, 512> error{};
    tokenizer_ = api.new_tokenizer(&init, error.data(), error.size());
    if (tokenizer_ == nullptr) {
      throw ArgumentError("guided_decoding: expected a tokenizer that llguidance reads, found one that it does not (" +
                          std::string(error.data()) + "); leave guided_decoding out");
    }
  }
  ~TokenizerHandle() { api.free_tokenizer(tokenizer_); }
  TokenizerHandle(const TokenizerHandle&) = delete;
  TokenizerHandle& operator=(const TokenizerHandle&) = delete;

  const Tokenizer* get() const { return tokenizer_; }

  const Functions api;

 private:
  Tokenizer* tokenizer_;
};

// A matcher of the library.
class Handle {
 public:
  Handle(std::shared_ptr<const TokenizerHandle> tokenizer, Matcher* matcher)
      : tokenizer_(std::move(tokenizer)), matcher_(matcher) {}
  Handle(Handle&& other) noexcept
      : tokenizer_(std::move(other.tokenizer_)), matcher_(std::exchange(other.matcher_, nullptr)) {}
  ~Handle() {
    if (matcher_ != nullptr) api().free_matcher(matcher_);
  }

  Handle clone() const { return {tokenizer_, api().clone_matcher(matcher_)}; }
  const Functions& api() const { return tokenizer_->api; }
  Matcher* get() const { return matcher_; }
  const char* error() const { return api().matcher_error(matcher_); }

  // Returns the library's status; throws GrammarError if it is an error.
  std::int32_t checked(std::int32_t status) const {
    if (status >= 0) return status;
    throw GrammarError("guided_decoding: the grammar cannot be followed any further (" + refusal_of(error()).reason +
                       "); simplify it");
  }

 private:
  std::shared_ptr<const TokenizerHandle> tokenizer_;
  Matcher* matcher_;
};

}  // namespace tl::llguidance
