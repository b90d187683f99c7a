#include "host/host_masks.h"

#include <algorithm>

#include "schedule/step_time.h"

namespace tl {
namespace {

constexpr std::chrono::microseconds kPollTime{500};

}  // namespace

void HostMasks::start(const StepBatch& batch) {
  if (threads_) threads_->start({});  // no thread writes `words_` after this
  guided_.clear();
  orders_.clear();
  masks_.clear();
  std::size_t num_masks = 0;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    if (!row.sample || !rows_.text(row.request_slot)) continue;
    guided_.push_back(i);
    num_masks += static_cast<std::size_t>(1 + row.num_drafts);
  }
  if (guided_.empty()) return;
  const std::size_t num_words = mask_words(rows_.vocab_size());
  if (!threads_) threads_ = std::make_unique<MaskThreads>(num_words);
  words_.resize(num_masks * num_words);
  std::span<std::uint32_t> left = words_;
  for (const std::size_t i : guided_) {
    const StepRow& row = batch.rows[i];
    const std::size_t size = static_cast<std::size_t>(1 + row.num_drafts) * num_words;
    orders_.push_back({rows_.text(row.request_slot), batch.drafts_of(row), left.first(size), row.request_slot});
    masks_.push_back({.words = left.first(size)});
    left = left.subspan(size);
  }
  begin_ = Clock::now();
  threads_->start(orders_);
}

std::chrono::nanoseconds HostMasks::wait(std::size_t num_rows) {
  if (guided_.empty()) return {};
  const Clock::time_point ready = Clock::now();
  for (MasksLeft left = threads_->wait({}); left.all > 0; left = threads_->wait(kPollTime)) {
    const std::chrono::nanoseconds waited = Clock::now() - ready;
    if (!can_be_late_) {
      if (waited >= kMostLate) break;
      continue;
    }
    if (waited >= kStepTime || has_waited_enough(left, num_rows, waited, ready - begin_, kStepTime)) break;
  }
  for (std::size_t i = 0; i < masks_.size(); ++i) {
    masks_[i].is_late = !threads_->close(i, masks_[i].error);
    if (!masks_[i].is_late || can_be_late_) continue;
    masks_[i].is_late = false;
    masks_[i].error = takes_too_long();
  }
  return Clock::now() - ready;
}

}  // namespace tl
