// NgramDrafter against a search through the whole sequence.
#include <algorithm>
#include <random>

#include "check.h"
#include "drafts/ngram_drafter.h"
#include "errors.h"

namespace {

using Tokens = std::vector<std::int32_t>;

// Returns the end of the latest earlier occurrence of the longest possible suffix; 0 if there is none.
std::size_t match(const Tokens& tokens, const tl::NgramSizes& sizes) {
  for (int size = sizes.max; size >= sizes.min; --size) {
    for (auto end = std::ssize(tokens) - 1; end >= size; --end) {
      if (std::equal(tokens.end() - size, tokens.end(), tokens.begin() + end - size))
        return static_cast<std::size_t>(end);
    }
  }
  return 0;
}

Tokens expected(const Tokens& tokens, const tl::NgramSizes& sizes, int most) {
  const std::size_t end = match(tokens, sizes);
  Tokens all = tokens;
  if (end > 0) {
    for (int i = 0; i < most; ++i) all.push_back(all[end + static_cast<std::size_t>(i)]);
  }
  return {all.begin() + std::ssize(tokens), all.end()};
}

TEST(drafts_what_followed_the_last_tokens_before) {
  int num_drafts = 0, num_empty = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
    const int min = 1 + draw(3);
    const tl::NgramSizes sizes{min, min + draw(4)};
    tl::NgramDrafter drafter(sizes);
    Tokens tokens;
    while (tokens.size() < 400) {
      for (int i = draw(9); i >= 0; --i) tokens.push_back(draw(2 + static_cast<int>(seed % 7)) * 1000);
      tl::TokenRun drafts;
      const int most = 1 + draw(tl::kMaxDrafts);
      drafter.draft(tokens, most, drafts);
      CHECK(Tokens(drafts.begin(), drafts.end()) == expected(tokens, sizes, most));
      ++(drafts.empty() ? num_empty : num_drafts);
    }
  }
  CHECK(num_drafts > 1000 && num_empty > 200);
}

// A long prompt is added in several calls, of which only the last returns a draft.
TEST(long_prompts_are_taken_in_piece_by_piece) {
  Tokens tokens(3000);
  std::mt19937_64 random(1);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 100000);
  std::copy_n(tokens.begin() + 50, 10, tokens.end() - 10);
  tl::NgramDrafter drafter({2, 4});
  for (int call = 0; call < 3; ++call) {
    tl::TokenRun drafts;
    drafter.draft(tokens, 3, drafts);
    CHECK(Tokens(drafts.begin(), drafts.end()) ==
          (call < 2 ? Tokens() : Tokens(tokens.begin() + 60, tokens.begin() + 63)));
  }
}

TEST(sizes_out_of_range_are_refused) {
  for (const tl::NgramSizes& sizes : {tl::NgramSizes{0, 2}, {3, 2}, {1, tl::kMaxNgramSize + 1}}) {
    CHECK_THROWS(tl::ArgumentError, tl::NgramDrafter(sizes), "prompt_lookup_min");
  }
}

}  // namespace
