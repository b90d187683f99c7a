// Makes the texts of many streams in one call.
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

// The tokens that one step brought to one stream. `ends`: the last of them ends the text.
struct TokenRunOf {
  TextStream* stream;
  std::size_t num_tokens;
  bool ends;
};

// The results for all runs, in order.
struct TextPieces {
  std::string text;                                         // text of all runs
  std::vector<std::size_t> ends;                            // by token: end of its piece in `text`
  std::vector<std::size_t> num_pieces;                      // by run: fewer than its tokens if its text has stopped
  std::vector<std::size_t> stopped;                         // runs whose text was ended by a stop word
  std::vector<std::pair<std::size_t, std::string>> failed;  // failed runs, which have no pieces, and the errors
};

class TextPump {
 public:
  explicit TextPump(std::vector<double> gap_bounds) : gaps_(std::move(gap_bounds)) {}

  // Adds `tokens`, which are those of the runs in order, and records the time since each stream's last delivery. After
  // a stop word, a stream takes no more tokens. A run that fails does not affect others. Only one thread may push to a
  // stream at a time.
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
