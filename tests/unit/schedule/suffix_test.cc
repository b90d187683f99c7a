// SuffixAutomaton and SuffixDrafter against searches through whole texts.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "check.h"
#include "drafts/suffix_drafter.h"

namespace {

using Tokens = std::vector<std::int32_t>;
using Texts = std::vector<Tokens>;

Tokens random_text(std::mt19937_64& random, int num_tokens, int alphabet) {
  Tokens text;
  while (std::ssize(text) < num_tokens) {
    const auto at = static_cast<std::ptrdiff_t>(random() % (text.size() + 1));
    if (random() % 8 == 0) {  // appends a quote
      const Tokens quote(text.begin() + at, text.begin() + std::min<std::ptrdiff_t>(at + 12, std::ssize(text)));
      text.insert(text.end(), quote.begin(), quote.end());
    }
    text.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(alphabet)) * 1000);
  }
  return text;
}

// Returns whether `wanted` occurs in the text, ending at `end`.
bool ends_at(const Tokens& wanted, const Tokens& text, std::ptrdiff_t end) {
  return end >= std::ssize(wanted) && std::equal(wanted.begin(), wanted.end(), text.begin() + end - std::ssize(wanted));
}

// Returns the longest suffix of `tokens` that ends somewhere in `texts`; if it is searched in its own text, it must end
// earlier.
Tokens longest(const Tokens& tokens, const Texts& texts) {
  for (std::ptrdiff_t first = 0; first < std::ssize(tokens); ++first) {
    const Tokens wanted(tokens.begin() + first, tokens.end());
    for (const Tokens& text : texts) {
      const bool is_own = &text == &tokens;
      for (std::ptrdiff_t end = std::ssize(text) - (is_own ? 1 : 0); end > 0; --end) {
        if (ends_at(wanted, text, end)) return wanted;
      }
    }
  }
  return {};
}

// Returns the most frequent continuation of `match`, and its share; `match` is shortened until it has one.
std::optional<std::pair<std::int32_t, double>> continuation(Tokens& match, const Texts& texts) {
  for (; !match.empty(); match.erase(match.begin())) {
    std::map<std::int32_t, int> counts;
    int num = 0;
    std::int32_t best = -1;
    for (const Tokens& text : texts) {
      for (std::ptrdiff_t end = 1; end < std::ssize(text); ++end) {
        if (!ends_at(match, text, end)) continue;
        const std::int32_t next = text[static_cast<std::size_t>(end)];
        ++num;
        if (++counts[next] >= counts[best]) best = next;
      }
    }
    if (num > 0) return std::pair(best, static_cast<double>(counts[best]) / num);
  }
  return std::nullopt;
}

Tokens expected(Tokens match, const Texts& texts, const tl::SuffixOptions& options, int most) {
  Tokens drafts;
  most = std::min(most, static_cast<int>(options.max_spec_factor * static_cast<double>(match.size())));
  double probability = 1;
  while (std::ssize(drafts) < most) {
    const auto next = continuation(match, texts);
    if (!next || (probability *= next->second) < options.min_token_prob) break;
    match.push_back(next->first);
    drafts.push_back(next->first);
  }
  return drafts;
}

Tokens drafted(tl::SuffixDrafter& drafter, const Tokens& tokens, int most = tl::kMaxDrafts) {
  tl::TokenRun drafts;
  drafter.draft(tokens, most, drafts);
  return {drafts.begin(), drafts.end()};
}

TEST(drafts_what_followed_the_longest_repeated_string_most_often) {
  int num_drafts = 0, num_empty = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    std::mt19937_64 random(seed);
    const tl::SuffixOptions options{0, 0.5 + static_cast<double>(seed % 3), 0.1 * static_cast<double>(seed % 6)};
    tl::SuffixDrafter drafter(options, nullptr, "");
    const Tokens text = random_text(random, 150, 2 + static_cast<int>(seed % 9));
    for (std::size_t size = 1; size <= text.size(); size += 1 + random() % 5) {
      const Texts own{Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size))};
      const int most = 1 + static_cast<int>(random() % tl::kMaxDrafts);
      const Tokens drafts = drafted(drafter, own[0], most);
      CHECK(drafts == expected(longest(own[0], own), own, options, most));
      num_drafts += std::ssize(drafts);
      num_empty += drafts.empty();
    }
  }
  CHECK(num_drafts > 1000 && num_empty > 100);
}

// The longer match counts, whether in a request's own text or in earlier outputs with its salt.
TEST(drafts_from_earlier_outputs) {
  int num_from_outputs = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    std::mt19937_64 random(seed);
    const tl::SuffixOptions options{.min_token_prob = 0.2};
    const auto outputs = std::make_shared<tl::OutputsBySalt>(options.max_cached_requests);
    Texts earlier;
    for (int i = 0; i < 5; ++i) {
      earlier.push_back(random_text(random, 30, 3 + static_cast<int>(seed % 5)));
      tl::SuffixDrafter(options, outputs, "a").end(earlier.back());
    }
    outputs->of("a")->take_in(1000);
    tl::SuffixDrafter drafter(options, outputs, "a");
    const Tokens text = random_text(random, 80, 3 + static_cast<int>(seed % 5));
    for (std::size_t size = 1; size <= text.size(); size += 1 + random() % 3) {
      const Texts own{Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size))};
      const Tokens in_own = longest(own[0], own), in_earlier = longest(own[0], earlier);
      const bool from_earlier = in_earlier.size() > in_own.size();
      const Tokens drafts = drafted(drafter, own[0]);
      CHECK(drafts == (from_earlier ? expected(in_earlier, earlier, options, tl::kMaxDrafts)
                                    : expected(in_own, own, options, tl::kMaxDrafts)));
      num_from_outputs += from_earlier && !drafts.empty();
    }
  }
  CHECK(num_from_outputs > 100);
}

// Tokens that one tenant's requests generated appear in no other tenant's drafts.
TEST(requests_of_another_salt_never_influence_each_other) {
  const auto outputs = std::make_shared<tl::OutputsBySalt>(100);
  const Tokens secret{5, 6, 7, 8, 9, 10};
  tl::SuffixDrafter({}, outputs, "a").end(secret);
  outputs->of("a")->take_in(100);
  for (const char* salt : {"", "b", "aa"}) {
    tl::SuffixDrafter other({}, outputs, salt);
    CHECK(drafted(other, {5, 6, 7}).empty());
  }
  tl::SuffixDrafter same({}, outputs, "a");
  CHECK(drafted(same, {5, 6, 7}) == Tokens({8, 9, 10}));
}

// A request that continues while automata are replaced still finds their texts.
TEST(outputs_are_forgotten_by_halves) {
  const auto outputs = std::make_shared<tl::OutputsBySalt>(8);
  tl::SuffixDrafter running({}, outputs, "");
  Tokens text;
  const auto output = [](int i) { return Tokens{100 * i, 100 * i + 1, 100 * i + 2, 100 * i + 3}; };
  for (int i = 1; i <= 40; ++i) {
    tl::SuffixDrafter({}, outputs, "").end(output(i));
    text.insert(text.end(), {-i, 100 * i, 100 * i + 1});
    CHECK(drafted(running, text) == Tokens({100 * i + 2, 100 * i + 3}));
    CHECK(outputs->num_tokens() <= 8 * 4);
    for (int back = 0; back < i; ++back) {
      tl::SuffixDrafter fresh({}, outputs, "");
      const bool kept = !drafted(fresh, {100 * (i - back), 100 * (i - back) + 1}).empty();
      CHECK(back < 4 ? kept : back < 8 || !kept);
    }
  }
}

TEST(memory_is_bounded) {
  tl::OutputsBySalt outputs(1000, 4000);
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::string salt = std::to_string(random() % 30);
    outputs.add(salt, random_text(random, 1 + static_cast<int>(random() % 700), 50));
    outputs.of(salt)->take_in(static_cast<int>(random() % 500));
    CHECK(outputs.of(salt)->num_tokens() <= 1000 && outputs.num_tokens() <= 4000);
  }
  const auto kept = outputs.of("mine");
  for (std::size_t i = 0; i < tl::OutputsBySalt::kMaxSalts; ++i) outputs.of("other " + std::to_string(i));
  CHECK(outputs.of("mine") != kept);
}

// A text that repeats one token, or a few, takes as long as any other, and its repetition is continued.
TEST(texts_that_repeat_themselves_are_continued) {
  for (const int period : {1, 2, 7}) {
    tl::SuffixDrafter drafter({}, nullptr, "");
    Tokens text;
    for (int i = 0; i < 20000; ++i) text.push_back(i % period);
    for (std::size_t size = 1000; size < text.size(); size += 1000) {
      const Tokens now(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
      const auto next = text.begin() + static_cast<std::ptrdiff_t>(size);
      CHECK(drafted(drafter, now) == Tokens(next, next + tl::kMaxDrafts));
    }
  }
}

}  // namespace
