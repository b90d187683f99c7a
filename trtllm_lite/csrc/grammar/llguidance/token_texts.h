// The text of each token of a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/llguidance/handle.h"

namespace tl::llguidance {

// The texts of a model's tokens; threads may share the object.
class TokenTexts {
 public:
  TokenTexts(const TokenizerHandle& tokenizer, std::uint32_t vocab_size);

  // The token's bytes, not always whole characters; empty for a special token.
  std::string_view text(std::int32_t token) const { return is_special(token) ? std::string_view() : with_name(token); }
  // Like text(), but for a special token its name.
  std::string_view with_name(std::int32_t token) const {
    const auto place = static_cast<std::size_t>(token);
    return std::string_view(bytes_).substr(starts_[place], starts_[place + 1] - starts_[place]);
  }
  std::string text(std::span<const std::int32_t> tokens) const;
  bool is_special(std::int32_t token) const { return is_special_[static_cast<std::size_t>(token)]; }
  std::int32_t num_tokens() const { return static_cast<std::int32_t>(is_special_.size()); }

 private:
  std::string bytes_;
  std::vector<std::uint32_t> starts_{0};
  std::vector<bool> is_special_;
};

}  // namespace tl::llguidance
