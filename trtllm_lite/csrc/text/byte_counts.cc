#include "text/byte_counts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

namespace tl {
namespace {

constexpr std::size_t kLanes = 64;
constexpr std::size_t kMostRounds = 255;  // before a lane of eight bits overflows

}  // namespace

std::size_t count_byte(std::string_view text, char byte) {
  std::size_t count = 0;
  while (text.size() >= kLanes) {
    const std::size_t rounds = std::min(text.size() / kLanes, kMostRounds);
    std::array<std::uint8_t, kLanes> lanes{};
    for (std::size_t round = 0; round < rounds; ++round) {
      const char* from = text.data() + round * kLanes;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = static_cast<std::uint8_t>(lanes[lane] + (from[lane] == byte ? 1 : 0));
      }
    }
    count = std::accumulate(lanes.begin(), lanes.end(), count);
    text.remove_prefix(rounds * kLanes);
  }
  return count + static_cast<std::size_t>(std::count(text.begin(), text.end(), byte));
}

}  // namespace tl
