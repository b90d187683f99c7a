// The inputs of a step: checked against the engine's limits and copied to memory that kernels read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "caches/kv_geometry.h"
#include "engine/engine.h"
#include "host/anonymous_memory.h"
#include "host/low_rank_part.h"

namespace tl {

// The step inputs that are set from a request; the others stay unset.
constexpr StepInputIndex kRequestInputs[] = {kTokenIds, kPositionIds,   kCuSeqlens,
                                             kPastLens, kLogitsIndices, kBlockTables};

// A row of token_row_bytes that takes the place of token number `token` of a step.
struct TokenRow {
  std::int32_t token;
  const std::byte* row;
};

// A step of several sequences. Tokens are packed: sequence s adds seq_lens[s] tokens to the past_lens[s] that are
// cached.
struct StepRequest {
  std::span<const std::int32_t> token_ids;
  std::span<const std::int32_t> seq_lens;
  std::span<const std::int32_t> past_lens;
  std::span<const std::int32_t> block_tables;  // [num_seqs, cache groups, blocks_per_row]
  std::int64_t blocks_per_row = 0;
  std::span<const std::int32_t> logits_indices;  // rows of token_ids whose logits are wanted
  // The adapter of each token, or null; empty if no token has one. Devices without LowRank ignore it.
  std::span<const LowRankPart* const> adapters;
  // Rows that take the place of tokens, by index into token_ids, in ascending order.
  std::span<const TokenRow> token_rows;
  // What the previous stage, if there is one, has computed for the tokens: the rows of each value, one value after the
  // other.
  std::span<const std::byte> received;
};

// The limits of a step.
struct StepLimits {
  Extents bounds;                  // the largest extent of each symbol; block ids are below that of kNumBlocks
  std::vector<ValueBound> values;  // bounds of values that kernels use as indices
  std::int64_t max_seq_len = 0;
  KvGeometry geometry;
  std::int64_t token_row_bytes = 0;  // bytes of rows that take the place of tokens; 0 if none may
  std::int64_t tokens_per_row = 0;   // tokens of each row that a vision tower makes; 0 in other engines

  std::int64_t bound(Symbol symbol) const { return bounds[symbol]; }
};

// The limits of the steps of a CPU engine or network engine whose caches have `num_blocks` blocks.
StepLimits step_limits(const Engine& engine, std::int64_t num_blocks);

class StepInputs {
 public:
  explicit StepInputs(StepLimits limits);

  // Copies the request and checks the copy, so that the caller may change its arrays meanwhile without bypassing the
  // checks. Returns the extents of this step. Throws LimitError; the inputs are then undefined.
  Extents assign(const StepRequest& request);

  // The address of one of kRequestInputs, which never changes.
  std::int32_t* data(StepInputIndex input) { return buffers_[input].data(); }
  // The address of the input token_rows, at the beginning of a page, which never changes.
  std::byte* token_rows() { return token_rows_.data(); }
  std::size_t num_bytes() const;

 private:
  void copy(const StepRequest& request);
  void place_rows(std::span<const TokenRow> rows);
  void derive_positions();
  void check_values() const;
  void check_block_numbers() const;
  void check_written_blocks();
  std::int64_t extent(Symbol symbol) const { return extents_[symbol]; }
  int past_len(std::int64_t seq) const { return buffers_[kPastLens][static_cast<std::size_t>(seq)]; }
  // The number of blocks of sequence `seq` that hold its tokens after this step; the first entry of a row of
  // block_tables that the step writes; and the number of consecutive blocks that its entries stand for.
  std::int64_t blocks_used(std::int64_t seq) const;
  std::int64_t first_written(std::int64_t table) const;
  std::int64_t num_blocks_of(std::int64_t table) const;
  std::int32_t block(std::int64_t table, std::int64_t index) const;
  // Calls `use(table, first, end)` for every row of block_tables, with the range of blocks that the step uses.
  template <typename Use>
  void for_each_table(Use&& use) const;

  const StepLimits limits_;
  std::array<std::vector<std::int32_t>, kNumStepInputs> buffers_;
  AnonymousMemory token_rows_;
  std::vector<std::int32_t> seq_lens_;
  Extents extents_;
  std::vector<bool> is_written_;  // by block; all false between steps
};

}  // namespace tl
