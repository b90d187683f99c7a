#include "ranks/failed_rank.h"

namespace tl {
namespace {

std::string seconds_text(std::chrono::nanoseconds duration) {
  std::string text = std::to_string(std::chrono::duration<double>(duration).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string did_not_come(const std::string& ranks, int num_ranks, const std::string& where, std::uint64_t step,
                         std::chrono::nanoseconds timeout) {
  return ranks + " of " + std::to_string(num_ranks) + " did not come to " + where + " of step " + std::to_string(step) +
         " within " + seconds_text(timeout) +
         " s of the first: the requests of the step are ended, load the engine again";
}

}  // namespace tl
