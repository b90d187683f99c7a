#include "schedule/decoder/step_shares.h"

#include <algorithm>

namespace tl {
namespace {

int divided(int count, int parts) { return (count + parts - 1) / parts; }

}  // namespace

// A stage is idle while a step without rows passes through the others. So the rows are divided evenly over as many
// steps as there are stages: those launched last, and those to come.
StepShares shares_of(const ScheduleState& state, std::uint64_t step) {
  const int num_stages = state.steps.num_stages;
  if (num_stages == 1) return {};
  const Requests& requests = state.requests;
  int num_decoding = 0, num_under_way = 0, num_prefilling = 0;
  for (const auto index : requests.running()) {
    const Running& running = requests.table().running(index);
    const Request& request = running.request();
    if (running.beams() == nullptr && state.blocks.remaining(running) > 1) {
      ++num_prefilling;
      continue;
    }
    const bool is_search = running.beams() != nullptr && !running.beams()->beams().empty();
    const bool waits = is_search ? !running.beams()->ready() : is_under_way(state.steps, request, step);
    if (request.all_scheduled()) continue;
    num_decoding += request.max_rows();
    if (waits) num_under_way += request.max_rows();
  }
  const int num_before = std::min(state.steps.num_in_flight(), num_stages - 1);
  const int num_free_rows = state.config.max_batch_size - requests.running().num_rows();
  const int num_admissible = std::min(requests.waiting().size(), num_free_rows);
  return {.num_decoding = std::max(std::min(divided(num_decoding, num_stages),
                                            divided(num_decoding - num_under_way, num_stages - num_before)),
                                   1),
          .num_prefilling = std::max(divided(num_prefilling + num_admissible, num_stages), 1)};
}

}  // namespace tl
