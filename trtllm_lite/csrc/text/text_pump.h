// Makes the texts of many streams at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/text_stream.h"
#include "text/token_gaps.h"

namespace tl {

// The tokens that one step brought to one stream. With `ends` the last of them itself ends the text.
struct TokenRunOf {
  TextStream* stream;
  std::size_t num_tokens;
  bool ends;
};

// What became of the runs, one behind the other.
struct TextPieces {
  std::string text;                                         // of all runs
  std::vector<std::size_t> ends;                            // of each token's piece in `text`
  std::vector<std::size_t> num_pieces;                      // of each run: less than its tokens if its text has stopped
  std::vector<std::size_t> stopped;                         // runs in which a stop word ended the text
  std::vector<std::pair<std::size_t, std::string>> failed;  // runs that failed, and why; they have no pieces
};

class TextPump {
 public:
  explicit TextPump(std::vector<double> gap_bounds) : gaps_(std::move(gap_bounds)) {}

  // Adds `tokens`, which are those of the runs in order, and counts the gaps since the streams' last deliveries. After
  // a stop word a stream takes no more tokens. Runs that fail do so alone. One thread pushes to a stream at a time.
  TextPieces push(std::span<const TokenRunOf> runs, std::span<const std::int32_t> tokens,
                  TokenGaps::Clock::time_point now);

  TokenGaps gaps() const {
    const std::lock_guard lock(mutex_);
    return gaps_;
  }

 private:
  mutable std::mutex mutex_;
  TokenGaps gaps_;
};

}  // namespace tl
