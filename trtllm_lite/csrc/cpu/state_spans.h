// Where the states of a step's sequences lie.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"

namespace tl::TL_ISA {

// The new tokens of a sequence, `count` of them from row `first` on, after `past` tokens, and the block of its state.
// Without new tokens nothing is read or written.
struct StateSpan {
  std::int64_t first, count, past, block;

  std::int64_t end() const { return past + count; }
};

// The state of a layer in the run of blocks that begins with `block`.
inline float* state_in(const Tensor& cache, std::int64_t block) {
  return cache.as<float>() + block * (cache.block_bytes / std::int64_t{sizeof(float)});
}

// What locates states: the step inputs of the operator.
class StateSpans {
 public:
  StateSpans(const Tensor& cu_seqlens, const Tensor& past_lens, const Tensor& block_tables, std::int64_t cache_group)
      : starts_(cu_seqlens.as<const std::int32_t>()),
        past_lens_(past_lens.as<const std::int32_t>()),
        num_seqs_(past_lens.shape[0]),
        stride_(block_tables.shape[0] / past_lens.shape[0] * block_tables.shape[1]),
        blocks_(block_tables.as<const std::int32_t>() + cache_group * block_tables.shape[1]) {}

  std::int64_t num_seqs() const { return num_seqs_; }

  StateSpan of(std::int64_t seq) const {
    const std::int64_t first = starts_[seq], count = starts_[seq + 1] - first;
    if (count == 0) return {first, 0, 0, -1};
    return {first, count, past_lens_[seq], blocks_[seq * stride_]};
  }

 private:
  const std::int32_t* starts_;
  const std::int32_t* past_lens_;
  std::int64_t num_seqs_, stride_;
  const std::int32_t* blocks_;
};

}  // namespace tl::TL_ISA
