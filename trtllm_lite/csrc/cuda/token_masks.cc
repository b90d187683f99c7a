#include "cuda/token_masks.h"

#include <cstdint>

namespace tl::cuda {

TokenMasks::TokenMasks(const CudaExecutor& executor, HostSampling& host)
    : executor_(executor), host_(host), num_words_(mask_words(host.rows().vocab_size())) {}

void TokenMasks::reserve(Staging& staging) {
  if (staging.words.size() > 0) return;
  executor_.device().make_current();
  const std::size_t num_words = static_cast<std::size_t>(executor_.max_masks()) * num_words_;
  if (stream_.get() == nullptr) stream_ = make_stream();
  staging.copied = make_event();
  staging.words = PinnedBuffer(num_words * sizeof(std::uint32_t), "masks of tokens", "free host memory");
}

void TokenMasks::put(const StepBatch& batch, std::span<const GuidedRow> guided, const Staging& staging,
                     std::span<std::string> errors) {
  auto* const words = reinterpret_cast<std::uint32_t*>(staging.words.data());
  host_.fill_masks(batch, guided, {words, staging.words.size() / sizeof(std::uint32_t)}, errors);
  // One copy from the first mask of a guided row to the last, whatever lies between.
  const GuidedRow& last = guided.back();
  const std::size_t mask_bytes = num_words_ * sizeof(std::uint32_t);
  const std::size_t begin = static_cast<std::size_t>(guided.front().first_mask) * mask_bytes;
  const std::size_t end = static_cast<std::size_t>(last.first_mask + 1 + batch.rows[last.row].num_drafts) * mask_bytes;
  driver().check(driver().copy_to_device(executor_.token_masks() + begin, staging.words.data() + begin, end - begin,
                                         stream_.get()),
                 "copying masks of tokens");
  driver().check(driver().event_record(staging.copied.get(), stream_.get()), "copying masks of tokens");
  driver().check(driver().stream_wait(executor_.stream(), staging.copied.get(), 0), "copying masks of tokens");
}

}  // namespace tl::cuda
