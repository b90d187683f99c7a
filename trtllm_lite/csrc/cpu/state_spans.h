// Where the states of a step's sequences lie.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"

namespace tl::TL_ISA {

// The new tokens of a sequence, `count` of them from row `first` on, and the blocks of its state before and after them.
// A sequence that begins has no `source`, which is -1: its state is zero. Without new tokens nothing is read or
// written.
struct StateSpan {
  std::int64_t first, count, source, target;
};

// The state of a layer in the run of blocks that begins with `block`.
inline float* state_in(const Tensor& cache, std::int64_t block) {
  return cache.as<float>() + block * (cache.block_bytes / std::int64_t{sizeof(float)});
}

// What locates states: the step inputs of the operator, and its attributes.
class StateSpans {
 public:
  StateSpans(const Tensor& cu_seqlens, const Tensor& past_lens, const Tensor& block_tables, std::int64_t cache_group,
             std::int64_t tokens_per_state)
      : starts_(cu_seqlens.as<const std::int32_t>()),
        past_lens_(past_lens.as<const std::int32_t>()),
        num_seqs_(past_lens.shape[0]),
        row_size_(block_tables.shape[1]),
        num_groups_(block_tables.shape[0] / past_lens.shape[0]),
        tokens_per_state_(tokens_per_state),
        rows_(block_tables.as<const std::int32_t>() + cache_group * row_size_) {}

  std::int64_t num_seqs() const { return num_seqs_; }

  StateSpan of(std::int64_t seq) const {
    const std::int64_t first = starts_[seq], count = starts_[seq + 1] - first, past = past_lens_[seq];
    if (count == 0) return {first, 0, -1, -1};
    const std::int32_t* row = rows_ + seq * num_groups_ * row_size_;
    const std::int64_t source = past > 0 ? row[(past - 1) / tokens_per_state_] : -1;
    return {first, count, source, row[(past + count - 1) / tokens_per_state_]};
  }

 private:
  const std::int32_t* starts_;
  const std::int32_t* past_lens_;
  std::int64_t num_seqs_, row_size_, num_groups_, tokens_per_state_;
  const std::int32_t* rows_;
};

}  // namespace tl::TL_ISA
