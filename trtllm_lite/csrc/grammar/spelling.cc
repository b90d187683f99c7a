#include "grammar/spelling.h"

namespace tl::llguidance {
namespace {

// Put before a text to be spelled, because some tokenizers add a space at the beginning of a text.
constexpr std::string_view kBefore = "\n";

}  // namespace

std::vector<std::int32_t> Spelling::of(std::string_view last, const std::string& piece) const {
  std::string key(last);
  key.push_back('\0');
  key += piece;
  {
    const std::lock_guard lock(mutex_);
    if (const auto kept = kept_.find(key); kept != kept_.end()) return kept->second;
  }
  std::vector<std::int32_t> tokens = found(last, piece);
  const std::lock_guard lock(mutex_);
  if (kept_.size() == kMostKept) kept_.clear();
  return kept_.emplace(std::move(key), std::move(tokens)).first->second;
}

std::vector<std::int32_t> Spelling::found(std::string_view last, const std::string& piece) const {
  std::vector<std::int32_t> tokens = tokens_of(std::string(last) + piece);
  if (last.empty() || tokens.empty()) return tokens;
  if (texts_->text(tokens.front()) != last) return {};
  tokens.erase(tokens.begin());
  return tokens;
}

// `text` must not be empty. Returns nothing if no tokens spell it.
std::vector<std::int32_t> Spelling::tokens_of(const std::string& text) const {
  std::vector<std::int32_t> tokens = tokenize_(text);
  if (texts_->text(tokens) == text) return tokens;
  tokens = tokenize_(std::string(kBefore) + text);
  std::string before;
  for (auto first = tokens.begin(); first != tokens.end(); ++first) {
    before += texts_->text(*first);
    if (!before.ends_with(kBefore)) continue;
    tokens.erase(tokens.begin(), first + 1);
    return texts_->text(tokens) == text ? tokens : std::vector<std::int32_t>();
  }
  return {};
}

}  // namespace tl::llguidance
