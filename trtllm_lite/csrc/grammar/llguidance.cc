#include "grammar/llguidance.h"

#include <algorithm>
#include <array>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"
#include "grammar/llguidance_library.h"

namespace tl::llguidance {

// The tokens of a model as llguidance holds them.
class Vocabulary {
 public:
  Vocabulary(Functions functions, const std::string& tokenizer_json, std::uint32_t vocab_size,
             std::span<const std::uint32_t> end_ids)
      : api(functions), end_ids(end_ids.begin(), end_ids.end()) {
    std::array<char, 512> error{};
    // Without a tokenize function no piece of text has one spelling that counts: a mask allows every token that
    // continues the text, and the model chooses among the spellings as it would without a grammar.
    const TokenizerInit init{.struct_size = sizeof(TokenizerInit),
                             .vocab_size = vocab_size,
                             .end_id = end_ids.front(),
                             .tokenizer_json = tokenizer_json.c_str(),
                             .tokenize_greedily = true,
                             .more_end_ids = end_ids.data() + 1,
                             .num_more_end_ids = static_cast<std::uint32_t>(end_ids.size() - 1)};
    tokenizer = api.new_tokenizer(&init, error.data(), error.size());
    if (tokenizer == nullptr) {
      throw ArgumentError("guided_decoding: expected a tokenizer that llguidance reads, found one that it does not (" +
                          std::string(error.data()) + "); leave guided_decoding out");
    }
  }
  ~Vocabulary() { api.free_tokenizer(tokenizer); }
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  bool ends(std::int32_t token) const { return std::ranges::count(end_ids, static_cast<std::uint32_t>(token)) > 0; }

  const Functions api;
  const std::vector<std::uint32_t> end_ids;
  Tokenizer* tokenizer = nullptr;
};

namespace {

std::string message_of(const char* error) {
  const std::string_view text = error != nullptr ? error : "no reason is known";
  return std::string(text.substr(0, text.find("\n<non-verbose/>")));
}

// A matcher of the library, and the tokens that it refers to.
class Handle {
 public:
  Handle(std::shared_ptr<const Vocabulary> vocabulary, Matcher* matcher)
      : vocabulary_(std::move(vocabulary)), matcher_(matcher) {}
  Handle(Handle&& other) noexcept
      : vocabulary_(std::move(other.vocabulary_)), matcher_(std::exchange(other.matcher_, nullptr)) {}
  ~Handle() {
    if (matcher_ != nullptr) vocabulary_->api.free_matcher(matcher_);
  }

  Handle clone() const { return {vocabulary_, api().clone_matcher(matcher_)}; }
  const Functions& api() const { return vocabulary_->api; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  Matcher* get() const { return matcher_; }
  const char* error() const { return api().matcher_error(matcher_); }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  Matcher* matcher_;
};

class LlguidanceMatcher final : public GrammarMatcher {
 public:
  explicit LlguidanceMatcher(Handle handle)
      : handle_(std::move(handle)), all_tokens_(handle_.api().mask_bytes(handle_.get()) / sizeof(std::uint32_t)) {}

  void fill_mask(std::span<std::uint32_t> mask) override {
    check(handle_.api().compute_mask(handle_.get(), all_tokens_.data(), all_tokens_.size() * sizeof(std::uint32_t)));
    // The tokenizer may have more tokens than the model; it never has fewer, as it was told the model's number.
    std::copy_n(all_tokens_.begin(), mask.size(), mask.begin());
  }

  // Where nothing but an end token may come, the library has stopped already and takes none. An end token adds nothing
  // to the text, so it is only counted.
  void accept(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) {
      if (handle_.vocabulary().ends(token)) {
        ++num_ends_;
      } else {
        const auto id = static_cast<std::uint32_t>(token);
        check(handle_.api().consume(handle_.get(), &id, 1));
      }
    }
  }

  void roll_back(std::size_t count) override {
    const std::size_t ends = std::min(count, num_ends_);
    num_ends_ -= ends;
    check(handle_.api().roll_back(handle_.get(), count - ends));
  }

 private:
  void check(std::int32_t status) const {
    if (status >= 0) return;
    throw GrammarError("guided_decoding: the grammar cannot be followed any further (" + message_of(handle_.error()) +
                       "); simplify it");
  }

  Handle handle_;
  std::vector<std::uint32_t> all_tokens_;  // a mask over the tokenizer's tokens
  std::size_t num_ends_ = 0;               // end tokens, the last that were accepted
};

class LlguidanceGrammar final : public Grammar {
 public:
  explicit LlguidanceGrammar(Handle handle) : start_(std::move(handle)) {}

  std::unique_ptr<GrammarMatcher> start() const override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<LlguidanceMatcher>(start_.clone());
  }

 private:
  mutable std::mutex mutex_;
  const Handle start_;
};

std::shared_ptr<const Grammar> compiled(const std::shared_ptr<const Vocabulary>& vocabulary, const std::string& kind,
                                        const std::string& text) {
  MatcherInit init{};
  vocabulary->api.set_defaults(&init, vocabulary->tokenizer);
  init.log_buffer_level = init.log_stderr_level = 0;
  init.limits.verbose_errors = false;  // they would quote the state of the parser
  Handle handle(vocabulary, vocabulary->api.new_matcher(&init, kind.c_str(), text.c_str()));
  if (handle.error() == nullptr) {
    // The first mask takes longest and needs what later matchers start with, so it is computed before they are cloned.
    std::vector<std::uint32_t> mask(handle.api().mask_bytes(handle.get()) / sizeof(std::uint32_t));
    (void)handle.api().compute_mask(handle.get(), mask.data(), mask.size() * sizeof(std::uint32_t));
  }
  if (const char* error = handle.error()) {
    throw ArgumentError("expected a grammar that llguidance compiles, found one that it refuses (" + message_of(error) +
                        "); correct or simplify it");
  }
  return std::make_shared<LlguidanceGrammar>(std::move(handle));
}

}  // namespace

Compiler::Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
                   std::span<const std::uint32_t> end_ids)
    : vocabulary_(std::make_shared<Vocabulary>(load(library), tokenizer_json, vocab_size, end_ids)) {}

std::shared_ptr<const Grammar> Compiler::compile(std::string kind, std::string text,
                                                 std::chrono::milliseconds timeout) {
  if (!places_->try_acquire_for(timeout)) {
    throw OverloadedError("expected at most " + std::to_string(kMaxCompiling) +
                          " grammars that compile at once, found more; send the request again later");
  }
  std::promise<std::shared_ptr<const Grammar>> promise;
  std::future<std::shared_ptr<const Grammar>> result = promise.get_future();
  std::thread([vocabulary = vocabulary_, places = places_, kind = std::move(kind), text = std::move(text),
               promise = std::move(promise)]() mutable {
    try {
      promise.set_value(compiled(vocabulary, kind, text));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
    places->release();
  }).detach();
  if (result.wait_for(timeout) == std::future_status::ready) return result.get();
  throw LimitError("expected a grammar that compiles within " + std::to_string(timeout.count()) +
                   " ms, found one that takes longer; simplify it");
}

}  // namespace tl::llguidance
