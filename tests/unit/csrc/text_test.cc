// Random tokens, prompts and stop words through csrc/text, under the sanitizers. Exits with 1 and a line on stderr at
// the first broken promise.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "check.h"
#include "text/text_pump.h"
#include "text/utf8.h"

namespace {

using Random = std::mt19937;
using tl::TokenGaps;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "expected: %s\n", what);
  std::exit(1);
}

int number(Random& random, int end) { return std::uniform_int_distribution(0, end - 1)(random); }

std::string any_bytes(Random& random, std::string_view alphabet) {
  std::string bytes;
  for (int i = number(random, 5); i > 0; --i) {
    bytes.push_back(alphabet[static_cast<std::size_t>(number(random, static_cast<int>(alphabet.size())))]);
  }
  return bytes;
}

bool is_whole(std::string_view text) {
  while (!text.empty()) {
    const auto [part, num_bytes] = tl::start_of(text);
    if (part != tl::Utf8Part::kCharacter) return false;
    text.remove_prefix(num_bytes);
  }
  return true;
}

// A vocabulary with broken and whole characters, and with names of bytes.
std::shared_ptr<const tl::TokenBytes> any_tokens(Random& random) {
  const auto spelling = static_cast<tl::ByteSpelling>(number(random, 3));
  const bool is_text = spelling != tl::ByteSpelling::kAlphabet;
  std::vector<std::string> names = {"<0xE4>", "<0xBD>", "<0xA0>", "<0x41>", "", "\u4f60", " ", "\u2581the", "<s>"};
  if (!is_text) names.insert(names.end(), {"\u00e4", "\u00bd", "\u0142", "\u0120", "\u00c3", "\u00a9"});
  tl::TokenBytes::Vocabulary vocabulary;
  for (std::size_t id = 0; id < names.size(); ++id) vocabulary.emplace_back(id, names[id]);
  tl::DecoderRules rules{.replacements = {{"\u2581", " ", number(random, 2) == 0 ? "" : " "}},
                         .bytes = spelling,
                         .separator = number(random, 4) == 0 ? " " : "",
                         .stripped = " ",
                         .max_stripped = number(random, 3)};
  const std::uint32_t special[] = {8, 1000};
  return std::make_shared<tl::TokenBytes>(vocabulary, special, rules);
}

std::shared_ptr<const tl::StopWords> any_words(Random& random) {
  std::vector<std::string> texts;
  std::vector<tl::StopWords::Tokens> sequences;
  for (int i = number(random, 3); i > 0; --i) texts.push_back(any_bytes(random, "A t") + "A");
  for (int i = number(random, 3); i > 0; --i) sequences.push_back({number(random, 9), number(random, 9)});
  return std::make_shared<tl::StopWords>(texts, sequences);
}

// Makes a text whose tokens often spell markers; null now and then.
std::shared_ptr<const tl::Thoughts> any_thoughts(Random& random) {
  if (number(random, 3) == 0) return nullptr;
  std::vector<std::string> starts;
  for (int i = number(random, 3); i > 0; --i) starts.push_back(any_bytes(random, "A t") + "A");
  std::vector<std::vector<std::string>> ends;
  for (int i = 1 + number(random, 2); i > 0; --i) ends.push_back({any_bytes(random, "A t") + "t", "A"});
  return std::make_shared<tl::Thoughts>(starts, ends);
}

void pieces_are_whole_and_do_not_depend_on_runs(std::uint32_t seed) {
  Random random(seed);
  const auto tokens = any_tokens(random);
  const auto words = any_words(random);
  const auto thoughts = any_thoughts(random);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(number(random, 6))), output(30);
  for (auto* ids : {&prompt, &output}) {
    for (std::int32_t& id : *ids) id = number(random, 17) - 1;  // some ids belong to no token
  }
  const tl::TextOptions options{.skips_special = number(random, 2) == 0,
                                .returns_text = true,
                                .min_tokens = number(random, 10),
                                .includes_stop = number(random, 2) == 0};
  tl::TextStream single(tokens, prompt, words, thoughts, options), together(tokens, prompt, words, thoughts, options);
  std::string text;
  for (const std::int32_t token : output) {
    if (single.has_stopped()) break;
    const std::size_t before = text.size();
    single.push(token, false, text);
    expect(is_whole(std::string_view(text).substr(before)), "whole characters in each piece");
  }
  tl::TextPump pump({0.5, 1});
  const tl::TokenRunOf runs[] = {{&together, 10, false}, {&together, 20, false}};
  const TokenGaps::Clock::time_point begin{};
  const tl::TextPieces pieces = pump.push(runs, output, begin);
  expect(pieces.text == text, "the same text of runs as of single tokens");
  expect(pieces.failed.empty() && pieces.num_pieces.size() == 2, "pieces of all runs");
  expect(pieces.num_pieces[0] + pieces.num_pieces[1] == pieces.ends.size(), "a piece for each token");
  expect(pieces.stopped.size() == (single.has_stopped() ? 1 : 0), "a stop to be told once");
  std::string rest, same_rest;
  single.finish(rest);
  together.finish(same_rest);
  expect(rest == same_rest && is_whole(rest), "the same rest");
}

void gaps_are_counted_by_delivery() {
  const auto words =
      std::make_shared<tl::StopWords>(std::vector<std::string>{}, std::vector<tl::StopWords::Tokens>{{7}});
  tl::TextStream first(nullptr, {}, words, nullptr, {}), second(nullptr, {}, words, nullptr, {});
  tl::TextPump pump({0.5, 1});
  const TokenGaps::Clock::time_point begin{};
  const auto at = [&](double seconds) {
    return begin + std::chrono::duration_cast<TokenGaps::Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto push = [&](std::vector<tl::TokenRunOf> runs, std::vector<std::int32_t> tokens, double seconds) {
    pump.push(runs, tokens, at(seconds));
  };
  push({{&first, 1, false}, {&second, 0, false}}, {1}, 0);
  push({{&first, 2, false}, {&second, 1, false}, {&first, 1, false}}, {1, 2, 3, 4}, 0.5);
  push({{&first, 1, false}}, {7}, 2.5);
  push({{&first, 1, false}, {&second, 1, false}}, {1, 1}, 2.75);
  const TokenGaps gaps = pump.gaps();
  expect(gaps.counts() == std::vector<std::uint64_t>{1, 0, 2},
         "a gap for each delivery but the first, none after a stop");
  expect(gaps.seconds() == 0.5 + 2 + 2.25, "the sum of the gaps");
}

// Streams share tokens and words, each has a thread of its own, and another one reads the gaps.
void threads_share_what_they_may() {
  Random random(3);
  const auto tokens = any_tokens(random);
  const auto words = any_words(random);
  tl::TextPump pump({0.5, 1});
  const auto work = [&] {
    for (int round = 0; round < 100; ++round) {
      tl::TextStream stream(tokens, {}, words, nullptr, {});
      const std::int32_t output[] = {0, 1, 2, 3, 7, 5};
      const tl::TokenRunOf run{&stream, 6, true};
      pump.push({&run, 1}, output, TokenGaps::Clock::now());
      pump.gaps();
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
}

}  // namespace

int main() {
  for (std::uint32_t seed = 0; seed < rounds(3000); ++seed) pieces_are_whole_and_do_not_depend_on_runs(seed);
  gaps_are_counted_by_delivery();
  threads_share_what_they_may();
  return 0;
}
