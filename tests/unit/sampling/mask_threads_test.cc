// MaskThreads gives the masks that a text's own matcher would make, whichever texts are late, and however often.
#include "sampling/mask_threads.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "check.h"
#include "fake_model.h"

namespace {

constexpr int kVocabulary = 96;
constexpr std::size_t kNumWords = tl::mask_words(kVocabulary);
constexpr std::int32_t kBroken = 94;  // after it the grammar cannot be followed
constexpr int kTexts = 12, kRounds = 300;

using Mask = std::vector<std::uint32_t>;

bool allows(std::span<const std::uint32_t> mask, std::int32_t token) { return mask[token / 32] >> (token % 32) & 1; }

// Allows three of four tokens next, depending on the text. After some tokens, `mask` waits until `holds` is false.
class FakeMatcher : public tl::GrammarMatcher {
 public:
  explicit FakeMatcher(const std::atomic<bool>& holds) : holds_(holds) {}
  void fill_mask(std::span<std::uint32_t> mask) override {
    const std::int32_t last = tokens_.empty() ? 0 : tokens_.back();
    while (last % 8 == 1 && holds_) std::this_thread::yield();
    if (last == kBroken) throw tl::GrammarError("a limit of the library");
    std::ranges::fill(mask, 0);
    for (int token = 0; token < kVocabulary; ++token) {
      tokens_.push_back(token);
      if (next_token(0, tokens_) % 4 > 0) mask[token / 32] |= 1u << (token % 32);
      tokens_.pop_back();
    }
  }
  void accept(std::span<const std::int32_t> tokens) override {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  std::size_t num_allowed(std::span<const std::int32_t> tokens) override { return tokens.size(); }
  void roll_back(std::size_t count) override { tokens_.resize(tokens_.size() - count); }

 private:
  const std::atomic<bool>& holds_;
  Tokens tokens_;
};

// Returns the masks that a text and its drafts must get; empty after a forbidden draft. Throws GrammarError.
std::vector<Mask> reference_masks(const Tokens& tokens, const Tokens& drafts) {
  const std::atomic<bool> holds = false;
  FakeMatcher matcher(holds);
  matcher.accept(tokens);
  std::vector<Mask> masks(1 + drafts.size());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    masks[i].resize(kNumWords);
    matcher.fill_mask(masks[i]);
    if (i == drafts.size() || !allows(masks[i], drafts[i])) break;
    matcher.accept(std::span(drafts).subspan(i, 1));
  }
  return masks;
}

struct Text {
  std::shared_ptr<tl::GuidedText> text;
  Tokens tokens, drafts;
  std::vector<std::uint32_t> masks;
  bool may_be_broken = false;  // an earlier order had drafts, which may have broken the text
};

class Writer {
 public:
  Writer() : threads_(3, kNumWords), texts_(kTexts) {}

  // Orders masks, lets some be late, and goes on with those that are not.
  void write() {
    std::vector<tl::MaskThreads::Order> orders;
    for (Text& text : texts_) orders.push_back(order(text));
    for (std::size_t i = 0; i < orders.size(); ++i) orders[i].slot = static_cast<int>(i);
    holds_ = true;
    threads_.start(orders);
    if (random_() % 2) threads_.wait(std::chrono::microseconds(random_() % 300));
    const bool waits = random_() % 3 == 0;
    if (waits) holds_ = false;
    while (waits && threads_.wait(std::chrono::seconds(1)).all > 0) {
    }
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      std::string error;
      const bool made = threads_.close(i, error);
      CHECK(made || !waits);
      if (!made) ++late_slots_[static_cast<int>(i)];
      made ? go_on(texts_[i], error) : stay(texts_[i]);
    }
    take_woken();
    holds_ = false;
  }
  // Each late mask is reported once when it has been made.
  void take_woken() {
    for (const int slot : threads_.take_woken()) CHECK(late_slots_[slot]-- > 0);
  }
  void wait_for_late() {
    for (const auto& [slot, count] : late_slots_) {
      while (late_slots_[slot] > 0) take_woken();
    }
  }

  int num_late = 0, num_broken = 0, num_made = 0;

 private:
  // A late text may be ordered again with other drafts.
  tl::MaskThreads::Order order(Text& text) {
    if (!text.text) text.text = std::make_shared<tl::GuidedText>(std::make_unique<FakeMatcher>(holds_));
    if (random_() % 2) text.drafts.clear();
    while (random_() % 3 == 0 && text.drafts.size() < 4) text.drafts.push_back(token());
    text.masks.assign((1 + text.drafts.size()) * kNumWords, 0xabcd);
    return {text.text, text.drafts, text.masks};
  }
  std::int32_t token() { return static_cast<std::int32_t>(random_() % kVocabulary); }

  void go_on(Text& text, const std::string& error) {
    try {
      if (text.may_be_broken && !error.empty()) throw tl::GrammarError(error);
      const std::vector<Mask> masks = reference_masks(text.tokens, text.drafts);
      CHECK(error.empty());
      for (std::size_t i = 0; i < masks.size(); ++i) {
        CHECK(masks[i].empty() ||
              std::ranges::equal(masks[i], std::span(text.masks).subspan(i * kNumWords, kNumWords)));
      }
    } catch (const tl::GrammarError& expected) {
      CHECK(error == expected.what() && std::ranges::count(text.masks, 0u) == std::ssize(text.masks));
      text = {};
      ++num_broken;
      return;
    }
    ++num_made;
    std::int32_t drawn = token();
    while (!allows(text.masks, drawn)) drawn = token();
    text.text->add_drawn(std::span(&drawn, 1));
    text.tokens.push_back(drawn);
    text.drafts.clear();
    if (random_() % 50 == 0) text = {};
  }
  void stay(Text& text) {
    ++num_late;
    try {
      reference_masks(text.tokens, text.drafts);
    } catch (const tl::GrammarError&) {
      text.may_be_broken = true;
    }
    CHECK(std::ranges::count(text.masks, 0xabcdu) == std::ssize(text.masks));
    if (random_() % 20 == 0) text = {};  // its request is cancelled; a thread may still make its masks
  }

  std::mt19937_64 random_{5};
  std::atomic<bool> holds_ = false;
  tl::MaskThreads threads_;
  std::vector<Text> texts_;
  std::map<int, int> late_slots_;
};

TEST(late_masks_come_when_they_are_ordered_again) {
  Writer writer;
  for (int i = 0; i < kRounds; ++i) writer.write();
  writer.wait_for_late();
  CHECK(writer.num_late > 50 && writer.num_broken > 5 && writer.num_made > 500);
}

// Texts that are held up take no thread from others, however many they are.
TEST(slow_texts_hold_up_no_quick_one) {
  std::atomic<bool> holds = true;
  const std::atomic<bool> never = false;
  tl::MaskThreads threads(1, kNumWords);
  std::string error;
  std::vector<Text> slow(kTexts);
  std::vector<tl::MaskThreads::Order> orders;
  for (Text& text : slow) {
    text.text = std::make_shared<tl::GuidedText>(std::make_unique<FakeMatcher>(holds));
    const std::int32_t held = 1;
    text.text->add_drawn(std::span(&held, 1));
    text.masks.resize(kNumWords);
    orders.push_back({text.text, {}, text.masks});
  }
  threads.start(orders);
  for (std::size_t i = 0; i < slow.size(); ++i) CHECK(!threads.close(i, error));
  for (int round = 0; round < 20; ++round) {
    Text quick;
    quick.text = std::make_shared<tl::GuidedText>(std::make_unique<FakeMatcher>(never));
    quick.masks.resize(kNumWords);
    const tl::MaskThreads::Order order{quick.text, {}, quick.masks};
    threads.start(std::span(&order, 1));
    while (threads.wait(std::chrono::milliseconds(1)).all > 0) threads.take_woken();
    CHECK(threads.close(0, error) && error.empty());
  }
  holds = false;
  std::size_t num_woken = 0;
  while (num_woken < slow.size()) num_woken += threads.take_woken().size();
}

}  // namespace

TEST_MAIN
