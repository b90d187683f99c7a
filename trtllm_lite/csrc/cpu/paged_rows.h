// The rows of tokens in a paged cache.
#pragma once

#include <cstdint>

#include "cpu/kernel.h"

namespace tl::TL_ISA {

// A cache [num_blocks, tokens_per_block, features]. Of the block tables of a sequence, one for each cache group, the
// first counts.
class PagedRows {
 public:
  PagedRows(const Tensor& cache, const Tensor& cu_seqlens, const Tensor& block_tables)
      : rows_(cache.as<float>()),
        tokens_per_block_(cache.shape[1]),
        features_(cache.shape[2]),
        starts_(cu_seqlens.as<const std::int32_t>()),
        tables_(block_tables.as<const std::int32_t>()),
        table_stride_(tables_of_sequence(cu_seqlens, block_tables) * block_tables.shape[1]) {}

  // The row of `position` in the sequence of packed token `token`.
  float* at(std::int64_t token, std::int64_t position) const {
    std::int64_t seq = 0;
    while (starts_[seq + 1] <= token) ++seq;
    const std::int64_t block = tables_[seq * table_stride_ + position / tokens_per_block_];
    return rows_ + (block * tokens_per_block_ + position % tokens_per_block_) * features_;
  }

 private:
  static std::int64_t tables_of_sequence(const Tensor& cu_seqlens, const Tensor& block_tables) {
    return block_tables.shape[0] / (cu_seqlens.shape[0] - 1);
  }

  float* rows_;
  std::int64_t tokens_per_block_, features_;
  const std::int32_t* starts_;
  const std::int32_t* tables_;
  std::int64_t table_stride_;
};

}  // namespace tl::TL_ISA
