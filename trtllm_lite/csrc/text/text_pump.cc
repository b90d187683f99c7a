#include "text/text_pump.h"

#include <exception>

namespace tl {
namespace {

// Appends the run's pieces to `out`.
void push_run(const TokenRunOf& run, std::span<const std::int32_t> tokens, TextPieces& out) {
  for (std::size_t i = 0; i < tokens.size() && !run.stream->has_stopped(); ++i) {
    run.stream->push(tokens[i], run.ends && i + 1 == tokens.size(), out.text);
    out.ends.push_back(out.text.size());
  }
}

}  // namespace

TextPieces TextPump::push(std::span<const TokenRunOf> runs, std::span<const std::int32_t> tokens,
                          TokenGaps::Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    for (const TokenRunOf& run : runs) {
      if (run.num_tokens > 0 && !run.stream->has_stopped()) gaps_.count(run.stream->gap_mark(), now);
    }
  }
  TextPieces out;
  out.ends.reserve(tokens.size());
  out.num_pieces.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const TokenRunOf& run = runs[i];
    const std::size_t num_before = out.ends.size(), text_before = out.text.size();
    const bool had_stopped = run.stream->has_stopped();
    try {
      push_run(run, tokens.first(run.num_tokens), out);
    } catch (const std::exception& error) {
      out.ends.resize(num_before);
      out.text.resize(text_before);
      out.failed.emplace_back(i, error.what());
    }
    out.num_pieces.push_back(out.ends.size() - num_before);
    if (run.stream->has_stopped() && !had_stopped) out.stopped.push_back(i);
    tokens = tokens.subspan(run.num_tokens);
  }
  return out;
}

}  // namespace tl
