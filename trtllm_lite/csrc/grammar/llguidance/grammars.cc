#include "grammar/llguidance/grammars.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/bounded_stack.h"
#include "grammar/heap.h"
#include "grammar/llguidance/byte_text.h"
#include "grammar/llguidance/handle.h"
#include "grammar/llguidance/limits.h"
#include "grammar/llguidance/refusals.h"
#include "grammar/llguidance/vocabulary.h"
#include "grammar/thought_tokens.h"
#include "grammar/token_forcer.h"
#include "grammar/trial.h"

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
    // The tokenizer may have more tokens than the model; it never has fewer, because it was given the model's number.
    std::copy_n(all_tokens_.begin(), mask.size(), mask.begin());
  }

  // If only an end token may come, the library has stopped already and accepts none. An end token adds no text, so it
  // is only counted.
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
  std::vector<std::uint32_t> all_tokens_;  // a mask for all tokens of the tokenizer
  std::size_t num_ends_ = 0;               // end tokens among the last accepted ones
};

Handle compiled(const std::shared_ptr<const TokenizerHandle>& tokenizer, const std::string& kind,
                const std::string& text) {
  MatcherInit init{};
  tokenizer->api.set_defaults(&init, tokenizer->get());
  init.log_buffer_level = init.log_stderr_level = 0;
  init.limits = kLimits;
  Handle handle(tokenizer, tokenizer->api.new_matcher(&init, kind.c_str(), text.c_str()));
  if (handle.error() == nullptr) {
    // The first mask takes longest and computes what later ones reuse, so it is computed before matchers are cloned.
    std::vector<std::uint32_t> mask(handle.api().mask_bytes(handle.get()) / sizeof(std::uint32_t));
    (void)handle.api().compute_mask(handle.get(), mask.data(), mask.size() * sizeof(std::uint32_t));
  }
  if (const char* error = handle.error()) throw_refused(error);
  return handle;
}

class LlguidanceGrammar final : public Grammar {
 public:
  // `for_forcer`: the grammar compiled over bytes; null if no forced tokens are wanted.
  LlguidanceGrammar(std::shared_ptr<const Vocabulary> vocabulary, Handle start, std::optional<Handle> for_forcer,
                    std::shared_ptr<const ByteForcerTools> tools)
      : vocabulary_(std::move(vocabulary)),
        start_(std::move(start)),
        for_forcer_(std::move(for_forcer)),
        tools_(std::move(tools)) {}

  std::unique_ptr<GrammarMatcher> start() const override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<LlguidanceMatcher>(vocabulary_, start_.clone());
  }
  std::unique_ptr<TokenForcer> start_forcer() const override {
    const std::lock_guard lock(mutex_);
    return for_forcer_ ? std::make_unique<ByteForcer>(tools_, for_forcer_->clone()) : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const Handle start_;
  const std::optional<Handle> for_forcer_;
  const std::shared_ptr<const ByteForcerTools> tools_;
};

}  // namespace

Compiler::Compiler(const std::string& library, const std::string& tokenizer_json, std::uint32_t vocab_size,
                   std::span<const std::uint32_t> end_ids, Tokenize tokenize)
    : vocabulary_(std::make_shared<Vocabulary>(load(library), tokenizer_json, vocab_size, end_ids)) {
  if (!tokenize) return;
  tools_ = std::make_shared<const ByteForcerTools>(vocabulary_->texts(), vocabulary_->end_ids, std::move(tokenize));
  bytes_ = ByteText::tokenizer(vocabulary_->tokenizer->api);
}

std::shared_ptr<const Grammar> Compiler::compile(const std::string& kind, const std::string& text,
                                                 bool names_tokens) const {
  std::shared_ptr<const Grammar> grammar;
  run_on_stack(kStackBytes, [&] { grammar = compile_here(kind, text, names_tokens); });
  return grammar;
}

std::size_t Compiler::try_out(const std::string& kind, const std::string& text, int num_tokens,
                              bool names_tokens) const {
  std::size_t num_bytes = 0;
  run_on_stack(kTrialStackBytes, [&] {
    const AllocatedBytes before = AllocatedBytes::now();
    const std::shared_ptr<const Grammar> grammar = compile_here(kind, text, names_tokens);
    num_bytes = AllocatedBytes::now().since(before);
    write_at_random(*grammar, vocabulary_->vocab_size, num_tokens);
  });
  return num_bytes;
}

// Compiles in the calling thread.
std::shared_ptr<const Grammar> Compiler::compile_here(const std::string& kind, const std::string& text,
                                                      bool names_tokens) const {
  Handle start = compiled(vocabulary_->tokenizer, kind, text);
  std::optional<Handle> for_forcer;
  if (bytes_ && !names_tokens) for_forcer.emplace(compiled(bytes_, kind, text));
  return std::make_shared<LlguidanceGrammar>(vocabulary_, std::move(start), std::move(for_forcer), tools_);
}

std::shared_ptr<const ThoughtTokens> Compiler::tokens_of(std::shared_ptr<const Thoughts> thoughts) const {
  return std::make_shared<const ThoughtTokens>(std::move(thoughts), vocabulary_->texts(), vocabulary_->end_ids);
}

}  // namespace tl::llguidance
