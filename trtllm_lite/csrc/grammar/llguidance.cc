#include "grammar/llguidance.h"

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"
#include "grammar/byte_text.h"
#include "grammar/guesser.h"
#include "grammar/llguidance_handle.h"
#include "grammar/thought_tokens.h"
#include "grammar/vocabulary.h"

namespace tl::llguidance {
namespace {

class LlguidanceMatcher final : public GrammarMatcher {
 public:
  LlguidanceMatcher(std::shared_ptr<const Vocabulary> vocabulary, Handle handle)
      : vocabulary_(std::move(vocabulary)),
        handle_(std::move(handle)),
        all_tokens_(handle_.api().mask_bytes(handle_.get()) / sizeof(std::uint32_t)) {}

  void fill_mask(std::span<std::uint32_t> mask) override {
    const std::size_t num_bytes = all_tokens_.size() * sizeof(std::uint32_t);
    handle_.checked(handle_.api().compute_mask(handle_.get(), all_tokens_.data(), num_bytes));
    // The tokenizer may have more tokens than the model; it never has fewer, as it was told the model's number.
    std::copy_n(all_tokens_.begin(), mask.size(), mask.begin());
  }

  // Where nothing but an end token may come, the library has stopped already and takes none. An end token adds nothing
  // to the text, so it is only counted.
  void accept(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) {
      if (vocabulary_->ends(token)) {
        ++num_ends_;
      } else {
        const auto id = static_cast<std::uint32_t>(token);
        handle_.checked(handle_.api().consume(handle_.get(), &id, 1));
      }
    }
  }

  std::size_t num_allowed(std::span<const std::int32_t> tokens) override {
    const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
    return static_cast<std::size_t>(handle_.checked(handle_.api().num_valid(handle_.get(), ids.data(), ids.size())));
  }

  void roll_back(std::size_t count) override {
    const std::size_t ends = std::min(count, num_ends_);
    num_ends_ -= ends;
    handle_.checked(handle_.api().roll_back(handle_.get(), count - ends));
  }

 private:
  const std::shared_ptr<const Vocabulary> vocabulary_;
  Handle handle_;
  std::vector<std::uint32_t> all_tokens_;  // a mask over the tokenizer's tokens
  std::size_t num_ends_ = 0;               // end tokens, the last that were accepted
};

Handle compiled(const std::shared_ptr<const TokenizerHandle>& tokenizer, const std::string& kind,
                const std::string& text) {
  MatcherInit init{};
  tokenizer->api.set_defaults(&init, tokenizer->get());
  init.log_buffer_level = init.log_stderr_level = 0;
  init.limits.verbose_errors = false;  // they would quote the state of the parser
  Handle handle(tokenizer, tokenizer->api.new_matcher(&init, kind.c_str(), text.c_str()));
  if (handle.error() == nullptr) {
    // The first mask takes longest and needs what later matchers start with, so it is computed before they are cloned.
    std::vector<std::uint32_t> mask(handle.api().mask_bytes(handle.get()) / sizeof(std::uint32_t));
    (void)handle.api().compute_mask(handle.get(), mask.data(), mask.size() * sizeof(std::uint32_t));
  }
  if (const char* error = handle.error()) {
    throw ArgumentError("expected a grammar that llguidance compiles, found one that it refuses (" + message_of(error) +
                        "); correct or simplify it");
  }
  return handle;
}

class LlguidanceGrammar final : public Grammar {
 public:
  LlguidanceGrammar(std::shared_ptr<const Vocabulary> vocabulary, Handle start, std::shared_ptr<GuessingStart> guessing,
                    std::shared_ptr<const GuessingTools> tools)
      : vocabulary_(std::move(vocabulary)),
        start_(std::move(start)),
        guessing_(std::move(guessing)),
        tools_(std::move(tools)) {}

  // Nobody waits for this: texts begin without guesses, and have them once it is done. If it is refused, as beyond a
  // limit, they go without.
  void compile_for_guesses(const std::shared_ptr<const TokenizerHandle>& bytes, const std::string& kind,
                           const std::string& text) {
    try {
      guessing_->set(compiled(bytes, kind, text));
    } catch (const std::exception&) {  // also where memory is short: this runs in a thread of its own
    }
  }

  std::unique_ptr<GrammarMatcher> start() const override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<LlguidanceMatcher>(vocabulary_, start_.clone());
  }
  std::unique_ptr<GrammarGuesser> start_guesser() const override {
    return guessing_ ? std::make_unique<Guesser>(tools_, guessing_) : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const Handle start_;
  const std::shared_ptr<GuessingStart> guessing_;  // null: nobody guesses
  const std::shared_ptr<const GuessingTools> tools_;
};

}  // namespace

Compiler::Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
                   std::span<const std::uint32_t> end_ids, Tokenize tokenize)
    : vocabulary_(std::make_shared<Vocabulary>(load(library), tokenizer_json, vocab_size, end_ids)) {
  if (!tokenize) return;
  tools_ = std::make_shared<const GuessingTools>(vocabulary_->texts(), vocabulary_->end_ids, std::move(tokenize));
  bytes_ = ByteText::tokenizer(vocabulary_->tokenizer->api);
}

std::shared_ptr<const Grammar> Compiler::compile(std::string kind, std::string text, std::chrono::milliseconds timeout,
                                                 bool names_tokens) {
  if (!places_->try_acquire_for(timeout)) {
    throw OverloadedError("expected at most " + std::to_string(kMaxCompiling) +
                          " grammars that compile at once, found more; send the request again later");
  }
  std::promise<std::shared_ptr<const Grammar>> promise;
  std::future<std::shared_ptr<const Grammar>> result = promise.get_future();
  std::thread([vocabulary = vocabulary_, tools = tools_, bytes = names_tokens ? nullptr : bytes_, places = places_,
               kind = std::move(kind), text = std::move(text), promise = std::move(promise)]() mutable {
    std::shared_ptr<LlguidanceGrammar> grammar;
    try {
      grammar = std::make_shared<LlguidanceGrammar>(vocabulary, compiled(vocabulary->tokenizer, kind, text),
                                                    bytes ? std::make_shared<GuessingStart>() : nullptr, tools);
      promise.set_value(grammar);
    } catch (...) {
      promise.set_exception(std::current_exception());
      grammar = nullptr;
    }
    if (grammar && bytes) grammar->compile_for_guesses(bytes, kind, text);
    places->release();
  }).detach();
  if (result.wait_for(timeout) == std::future_status::ready) return result.get();
  throw LimitError("expected a grammar that compiles within " + std::to_string(timeout.count()) +
                   " ms, found one that takes longer; simplify it");
}

std::shared_ptr<const ThoughtTokens> Compiler::tokens_of(std::shared_ptr<const Thoughts> thoughts) const {
  return std::make_shared<const ThoughtTokens>(std::move(thoughts), vocabulary_->texts(), vocabulary_->end_ids);
}

}  // namespace tl::llguidance
