#include "cuda/step/token_masks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "caches/kv_cache_size.h"
#include "schedule/step_time.h"

namespace tl::cuda {
namespace {

constexpr std::chrono::microseconds kPollTime{50};

}  // namespace

TokenMasks::TokenMasks(const CudaExecutor& executor, const RowSampler& rows)
    : executor_(executor),
      rows_(rows),
      num_words_(mask_words(rows.vocab_size())),
      may_be_late_(executor.engine().manifest().mapping.pp_size == 1 &&
                   !cache_geometry(executor.engine().manifest()).has_states()) {}

void TokenMasks::reserve(Staging& staging) {
  if (staging.words.size() > 0) return;
  executor_.device().make_current();
  const std::size_t num_words = static_cast<std::size_t>(executor_.max_masks()) * num_words_;
  if (stream_.get() == nullptr) stream_ = make_stream();
  if (!threads_) threads_ = std::make_unique<MaskThreads>(num_words_);
  staging.copied = make_event();
  staging.words = PinnedBuffer(num_words * sizeof(std::uint32_t), "masks of tokens", "free host memory");
}

void TokenMasks::put(const StepBatch& batch, std::span<GuidedRow> guided, const Staging& staging,
                     const OwnedEvent& logits, const OwnedEvent& before) {
  make(batch, guided, staging);
  wait(batch.rows.size(), logits);
  for (std::size_t i = 0; i < guided.size(); ++i) {
    guided[i].is_late = !threads_->close(i, guided[i].error);
    if (!guided[i].is_late) continue;
    std::ranges::fill(masks_of(batch, guided[i], staging), 0);
    if (may_be_late_) continue;
    guided[i].is_late = false;
    guided[i].error = takes_too_long();
  }
  // One copy from the first mask of a guided row to the last, including whatever lies between.
  const std::span<std::uint32_t> first = masks_of(batch, guided.front(), staging);
  const std::span<std::uint32_t> last = masks_of(batch, guided.back(), staging);
  const std::size_t begin = static_cast<std::size_t>(guided.front().first_mask) * num_words_ * sizeof(std::uint32_t);
  const auto num_bytes = static_cast<std::size_t>(last.data() + last.size() - first.data()) * sizeof(std::uint32_t);
  driver().check(driver().stream_wait(stream_.get(), before.get(), 0), "copying masks of tokens");
  driver().check(driver().copy_to_device(executor_.token_masks() + begin, first.data(), num_bytes, stream_.get()),
                 "copying masks of tokens");
  driver().check(driver().event_record(staging.copied.get(), stream_.get()), "copying masks of tokens");
  driver().check(driver().stream_wait(executor_.stream(), staging.copied.get(), 0), "copying masks of tokens");
}

std::span<std::uint32_t> TokenMasks::masks_of(const StepBatch& batch, const GuidedRow& guided,
                                              const Staging& staging) const {
  auto* const words = reinterpret_cast<std::uint32_t*>(staging.words.data());
  const auto num_masks = static_cast<std::size_t>(1 + batch.rows[guided.row].num_drafts);
  return {words + static_cast<std::size_t>(guided.first_mask) * num_words_, num_masks * num_words_};
}

void TokenMasks::make(const StepBatch& batch, std::span<const GuidedRow> guided, const Staging& staging) {
  orders_.clear();
  for (const GuidedRow& one : guided) {
    const StepRow& row = batch.rows[one.row];
    orders_.push_back({.text = rows_.text(row.request_slot),
                       .drafts = batch.drafts_of(row),
                       .masks = masks_of(batch, one, staging),
                       .slot = row.request_slot});
  }
  threads_->start(orders_);
}

// Waits for the masks while the device makes logits, and after that as has_waited_enough() says, but never longer than
// the step takes, because the results of the step before are held up meanwhile. In a pipeline, where later steps of the
// same requests may be in flight already, and beside states, which have the step's tokens then, no row may be late: all
// masks are waited for, up to kMostLate.
void TokenMasks::wait(std::size_t num_rows, const OwnedEvent& logits) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> ready;  // when the logits were ready
  for (MasksLeft left = threads_->wait(kPollTime); left.all > 0; left = threads_->wait(kPollTime)) {
    if (!ready && driver().reached(logits.get())) ready = Clock::now();
    if (!ready) continue;
    if (!may_be_late_) {
      if (Clock::now() - *ready >= kMostLate) return;
      continue;
    }
    const auto computing = *ready - begin;
    if (has_waited_enough(left, num_rows, Clock::now() - *ready, computing, computing)) return;
  }
}

}  // namespace tl::cuda
