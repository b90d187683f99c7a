// Times SuffixDrafter, which runs on the event loop's thread: nanoseconds per token added, and per draft.
//   bench_suffix [tokens=20000] [alphabet=2000]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "drafts/suffix_drafter.h"

int main(int argc, char** argv) {
  const int num_tokens = argc > 1 ? std::atoi(argv[1]) : 20000, alphabet = argc > 2 ? std::atoi(argv[2]) : 2000;
  std::mt19937_64 random(1);
  std::vector<std::int32_t> text;
  while (std::ssize(text) < num_tokens) {  // repeats quotes of 30 tokens with new tokens between them
    const std::size_t at = random() % (text.size() + 1);
    for (std::size_t i = at; i < std::min(at + 30, text.size()); ++i) text.push_back(text[i]);
    for (int i = 0; i < 10; ++i) text.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(alphabet)));
  }
  const auto outputs = std::make_shared<tl::OutputsBySalt>(1000);
  tl::SuffixDrafter({}, outputs, "").end(text);
  outputs->of("")->take_in(num_tokens);
  for (const int most : {0, 8}) {
    tl::SuffixDrafter drafter({}, outputs, "");
    std::size_t num_drafts = 0;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t size = 1; size <= text.size(); ++size) {
      tl::TokenRun drafts;
      drafter.draft(std::span(text).first(size), most, drafts);
      num_drafts += static_cast<std::size_t>(drafts.size());
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    std::printf("up to %d drafts: %.0f ns a call of one token, %.1f drafts each\n", most,
                elapsed.count() / static_cast<double>(text.size()),
                static_cast<double>(num_drafts) / static_cast<double>(text.size()));
  }
}
