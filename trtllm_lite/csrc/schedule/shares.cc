// The part of the Scheduler that distributes requests over the steps in flight of a pipeline.
#include <algorithm>

#include "schedule/scheduler.h"

namespace tl {
namespace {

int divided(int count, int parts) { return (count + parts - 1) / parts; }

}  // namespace

// With one stage, the tokens of a step are known before the next one computes. In a pipeline, the step in preparation
// is launched before the tokens of the last num_stages - 1 steps are known.
bool Scheduler::is_under_way(const Request& request, std::uint64_t step) const {
  return num_stages_ > 1 && request.num_pending > 0 && step < request.sampling_step + num_stages_;
}

// A stage is idle while a step without rows passes through the others. So the rows are divided evenly over as many
// steps as there are stages: those launched last, and those to come.
Scheduler::Shares Scheduler::shares(std::uint64_t step) const {
  if (num_stages_ == 1) return {};
  int num_decoding = 0, num_under_way = 0, num_prefilling = 0;
  for (const Index index : running_) {
    const auto& running = std::get<Running>(table_.state(index));
    const Request& request = running.request();
    if (running.beams() == nullptr && remaining(running) > 1) {
      ++num_prefilling;
      continue;
    }
    const bool is_search = running.beams() != nullptr && !running.beams()->beams().empty();
    const bool waits = is_search ? !running.beams()->ready() : is_under_way(request, step);
    if (request.all_scheduled()) continue;
    num_decoding += request.max_rows();
    if (waits) num_under_way += request.max_rows();
  }
  const int num_before = std::min(static_cast<int>(launched_ - ended_), num_stages_ - 1);
  const int num_admissible = std::min(waiting_.size(), config_.max_batch_size - num_rows_);
  return {.num_decoding = std::max(std::min(divided(num_decoding, num_stages_),
                                            divided(num_decoding - num_under_way, num_stages_ - num_before)),
                                   1),
          .num_prefilling = std::max(divided(num_prefilling + num_admissible, num_stages_), 1)};
}

}  // namespace tl
