#include "cuda/step/host_sampling.h"

#include <algorithm>
#include <utility>

#include "adapters/adapter.h"
#include "errors.h"
#include "host/cpu_count.h"

namespace tl::cuda {
namespace {

constexpr int kMaxThreads = 8;

// Rows of logits that are copied to the host at once, unless a beam search has more beams. For a vocabulary of 128k
// they are 8 MiB: large enough for fast copies, and enough rows for all threads.
constexpr int kWindowRows = 16;
static_assert(kWindowRows > kMaxDrafts, "a row's drafts are sampled together");

bool wants_logits(const RequestParams& params) {
  return params.beams || params.sampling.prompt_logprobs || params.context_logits || params.generation_logits;
}

}  // namespace

HostSampling::HostSampling(const CudaExecutor& executor)
    : executor_(executor),
      rows_(executor.num_slots(), static_cast<int>(executor.engine().manifest().model.vocab_size)),
      records_(executor),
      who_(static_cast<std::size_t>(executor.num_slots())),
      adapters_(static_cast<std::size_t>(executor.num_slots()), kNoAdapter) {}

void HostSampling::set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                            int num_prompt) {
  rows_.set_slot(slot, std::move(params), tokens, num_prompt);
  const RequestParams& own = rows_.params(slot);
  if (own.adapter && own.adapter->slot() == kNoAdapter) {
    throw LimitError(
        "adapter: expected an adapter in a slot of the device's memory, found one in no slot: call place_adapter "
        "first");
  }
  const bool is_host = wants_logits(own) || !records_.set(slot, own, *rows_.sequence(slot));
  who_[static_cast<std::size_t>(slot)] = {.is_host = is_host,
                                          .reports_logprobs = !is_host && own.sampling.logprobs.has_value(),
                                          .is_guided = !is_host && own.grammar != nullptr};
  adapters_[static_cast<std::size_t>(slot)] = own.adapter ? own.adapter->slot() : kNoAdapter;
  if (is_host) reserve_window(own);
  if (is_host) start_threads();
}

// Reserves host memory when a request takes its slot, so that a request that is too large fails alone, not a whole
// step.
void HostSampling::reserve_window(const RequestParams& params) {
  const int num_rows = std::max(kWindowRows, params.beams ? params.beams->num_beams : 1);
  const std::size_t num_bytes = static_cast<std::size_t>(num_rows) * rows_.vocab_size() * sizeof(float);
  if (window_.size() < num_bytes) {
    executor_.device().make_current();
    window_ = PinnedBuffer(num_bytes, "copies of logits", "free host memory, or search with fewer beams");
  }
}

void HostSampling::start_threads() {
  if (pool_) return;
  pool_ = std::make_unique<ThreadPool>(std::min(resolve_num_threads(0), kMaxThreads));
  workspaces_.resize(static_cast<std::size_t>(pool_->num_threads()));
}

void HostSampling::finish(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
                          std::span<RowResult> results) {
  describe_prompts(batch, taken, at, results);
  const std::size_t most = window_.size() / (rows_.vocab_size() * sizeof(float));
  std::vector<std::size_t> rows;  // rows of one window
  std::size_t num_logits = 0;     // logits of these rows
  for (auto first = taken.begin(); first != taken.end();) {
    const std::int32_t slot = batch.rows[*first].request_slot;
    // Adds all rows of a beam search to one window, because its beams are advanced together.
    const auto last =
        std::find_if(first, taken.end(), [&](std::size_t row) { return batch.rows[row].request_slot != slot; });
    const auto added = static_cast<std::size_t>(last - first + batch.rows[*first].num_drafts);
    if (num_logits + added > most) {
      draw(batch, std::exchange(rows, {}), at, results);
      num_logits = 0;
    }
    if (batch.rows[*first].sample && results[*first].error.empty()) {
      rows.insert(rows.end(), first, last);
      num_logits += added;
    }
    first = last;
  }
  draw(batch, rows, at, results);
}

void HostSampling::describe_prompts(const StepBatch& batch, std::span<const std::size_t> taken,
                                    std::span<const RowLogits> at, std::span<RowResult> results) {
  std::vector<Wanted> wanted;  // rows of one window
  for (const std::size_t row : taken) {
    if (at[row].num_positions == 0) continue;
    rows_.open_prompt(batch.rows[row], at[row], results[row]);
    for (int position = 0; position < at[row].num_positions && results[row].error.empty(); ++position) {
      wanted.push_back({row, position});
      if (wanted.size() == kWindowRows) describe(batch, std::exchange(wanted, {}), at, results);
    }
  }
  describe(batch, wanted, at, results);
}

void HostSampling::describe(const StepBatch& batch, std::span<const Wanted> wanted, std::span<const RowLogits> at,
                            std::span<RowResult> results) {
  if (wanted.empty()) return;
  fetch(wanted, at);
  std::vector<std::string> errors(wanted.size());
  pool_->parallel_for(std::ssize(wanted), [&](std::int64_t task, int thread) {
    const auto i = static_cast<std::size_t>(task);
    const auto [row, position] = wanted[i];
    const std::span<const float> logits = window(wanted.size()).subspan(i * rows_.vocab_size(), rows_.vocab_size());
    errors[i] = rows_.describe_position(batch.rows[row], at[row], position, logits,
                                        workspaces_[static_cast<std::size_t>(thread)], results[row]);
  });
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::string& error = results[wanted[i].row].error;
    if (error.empty()) error = std::move(errors[i]);
  }
}

void HostSampling::draw(const StepBatch& batch, std::span<const std::size_t> rows, std::span<const RowLogits> at,
                        std::span<RowResult> results) {
  if (rows.empty()) return;
  std::vector<RowLogits> places(batch.rows.size());  // the places of rows in the window of logits
  std::vector<Wanted> wanted;
  for (const std::size_t row : rows) {
    const int num_rows = 1 + batch.rows[row].num_drafts;
    places[row] = {.first = std::ssize(wanted), .num_rows = num_rows};
    for (int i = 0; i < num_rows; ++i) wanted.push_back({row, at[row].num_rows - num_rows + i});
  }
  fetch(wanted, at);
  pool_->parallel_for(std::ssize(rows), [&](std::int64_t task, int thread) {
    const std::size_t row = rows[static_cast<std::size_t>(task)];
    rows_.finish_row(batch, places, row, window(wanted.size()), nullptr, workspaces_[static_cast<std::size_t>(thread)],
                     results[row]);
  });
}

void HostSampling::fetch(std::span<const Wanted> wanted, std::span<const RowLogits> at) {
  const std::size_t row_bytes = rows_.vocab_size() * sizeof(float);
  std::byte* to = window_.data();
  for (const auto& [row, position] : wanted) {
    const auto from = static_cast<DevicePtr>(at[row].first + position) * row_bytes;
    driver().check(driver().copy_to_host(to, executor_.logits() + from, row_bytes, executor_.stream()),
                   "copying logits");
    to += row_bytes;
  }
  driver().check(driver().stream_synchronize(executor_.stream()), "copying logits");
}

std::span<const float> HostSampling::window(std::size_t num_rows) const {
  return {reinterpret_cast<const float*>(window_.data()), num_rows * rows_.vocab_size()};
}

}  // namespace tl::cuda
