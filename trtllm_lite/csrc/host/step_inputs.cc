#include "host/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "caches/kv_cache_size.h"
#include "engine/module.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::int32_t kNobody = -1;

[[noreturn]] void fail(const std::string& what, const std::string& expected, std::int64_t found,
                       const std::string& remedy) {
  throw LimitError("step: " + what + ": expected " + expected + ", found " + std::to_string(found) + "; " + remedy);
}

std::string item(std::string_view name, std::int64_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

// `what` is a function called only on failure, because this runs for every token of every step.
template <typename What>
void expect_range(std::int64_t min, std::int64_t max, std::int64_t found, What what, const char* remedy) {
  if (found >= min && found <= max) [[likely]]
    return;
  fail(what(), std::to_string(min) + " to " + std::to_string(max), found, remedy);
}

void expect_size(const std::string& what, std::int64_t expected, std::size_t found) {
  if (std::cmp_equal(found, expected)) return;
  fail("size of " + what, std::to_string(expected), static_cast<std::int64_t>(found),
       "pass one for each sequence, and an adapter for each token");
}

void check_sizes(const StepRequest& request, const StepLimits& limits) {
  const auto count = [](std::span<const std::int32_t> values) { return static_cast<std::int64_t>(values.size()); };
  const auto check = [](const char* what, std::int64_t min, std::int64_t max, std::int64_t found, const char* remedy) {
    expect_range(min, max, found, [what] { return what; }, remedy);
  };
  check("number of tokens", 1, limits.bound(Symbol::kNumTokens), count(request.token_ids),
        "split the step, or build the engine with a larger --max_num_tokens");
  check("number of sequences", 1, limits.bound(Symbol::kNumSeqs), count(request.seq_lens),
        "split the step, or build the engine with a larger --max_batch_size");
  check("number of logits_indices", 0, limits.bound(Symbol::kNumLogits), count(request.logits_indices),
        "ask for fewer rows, or build the engine with a larger --max_batch_size or with --gather_context_logits");
  check("columns of block_tables", 1, limits.bound(Symbol::kMaxBlocksPerSeq), request.blocks_per_row,
        "pass as many as the longest sequence needs, or build the engine with a larger --max_seq_len");
  check("number of token_rows", 0, limits.bound(Symbol::kNumTokenRows), std::ssize(request.token_rows),
        "build the engine with --enable_prompt_embeds");
  if (!request.adapters.empty()) expect_size("adapters", count(request.token_ids), request.adapters.size());
  expect_size("past_lens", count(request.seq_lens), request.past_lens.size());
  expect_size("block_tables", count(request.seq_lens) * limits.geometry.num_groups() * request.blocks_per_row,
              request.block_tables.size());
}

}  // namespace

StepLimits step_limits(const Engine& engine, std::int64_t num_blocks) {
  const Manifest& manifest = engine.manifest();
  StepLimits limits{engine.plan().symbols,
                    engine.value_bounds(),
                    manifest.limits.max_seq_len,
                    cache_geometry(manifest),
                    token_row_bytes(only_module(manifest)),
                    only_module(manifest).tokens_per_row};
  limits.bounds[Symbol::kNumBlocks] = num_blocks;
  return limits;
}

StepInputs::StepInputs(StepLimits limits)
    : limits_(std::move(limits)),
      token_rows_(static_cast<std::size_t>(limits_.bound(Symbol::kNumTokenRows) * limits_.token_row_bytes),
                  AnonymousMemory::Pages::kDefault, "rows in place of tokens",
                  "build the engine with a smaller --max_num_tokens") {
  for (const StepInputIndex input : kRequestInputs) {
    std::int64_t size = 1;
    for (int axis = 0; axis < kStepInputs[input].rank; ++axis) {
      size *= limits_.bound(kStepInputs[input].shape[axis]);
    }
    buffers_[input].resize(static_cast<std::size_t>(size));
  }
  seq_lens_.reserve(static_cast<std::size_t>(limits_.bound(Symbol::kNumSeqs)));
  is_written_.assign(static_cast<std::size_t>(limits_.bound(Symbol::kNumBlocks)), false);
}

std::size_t StepInputs::num_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<std::int32_t>& buffer : buffers_) bytes += buffer.size() * sizeof(std::int32_t);
  return bytes + token_rows_.size();
}

Extents StepInputs::assign(const StepRequest& request) {
  check_sizes(request, limits_);
  const auto num_tokens = static_cast<std::int64_t>(request.token_ids.size());
  const auto num_seqs = static_cast<std::int64_t>(request.seq_lens.size());
  const auto num_logits = static_cast<std::int64_t>(request.logits_indices.size());
  extents_ = limits_.bounds;
  extents_[Symbol::kNumTokens] = num_tokens;
  extents_[Symbol::kNumSeqs] = num_seqs;
  extents_[Symbol::kNumSeqsPlus1] = num_seqs + 1;
  extents_[Symbol::kNumLogits] = num_logits;
  extents_[Symbol::kNumTables] = num_seqs * limits_.geometry.num_groups();
  extents_[Symbol::kMaxBlocksPerSeq] = request.blocks_per_row;
  extents_[Symbol::kNumTokenRows] = static_cast<std::int64_t>(request.token_rows.size());
  if (limits_.tokens_per_row > 0) extents_[Symbol::kNumImageRows] = num_tokens / limits_.tokens_per_row;
  copy(request);
  derive_positions();
  check_values();
  place_rows(request.token_rows);
  check_block_numbers();
  check_written_blocks();
  return extents_;
}

void StepInputs::copy(const StepRequest& request) {
  std::ranges::copy(request.token_ids, buffers_[kTokenIds].begin());
  std::ranges::copy(request.past_lens, buffers_[kPastLens].begin());
  std::ranges::copy(request.block_tables, buffers_[kBlockTables].begin());
  std::ranges::copy(request.logits_indices, buffers_[kLogitsIndices].begin());
  seq_lens_.assign(request.seq_lens.begin(), request.seq_lens.end());
}

// Copies rows that take the place of tokens, and lets these tokens name them.
void StepInputs::place_rows(std::span<const TokenRow> rows) {
  const auto bytes = static_cast<std::size_t>(limits_.token_row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : rows[i - 1].token + 1;
    expect_range(
        least, extent(Symbol::kNumTokens) - 1, rows[i].token, [i] { return item("token_rows", std::int64_t(i)); },
        "pass ascending numbers of this step's tokens");
    std::memcpy(token_rows_.data() + i * bytes, rows[i].row, bytes);
    buffers_[kTokenIds][static_cast<std::size_t>(rows[i].token)] = ~static_cast<std::int32_t>(i);
  }
}

void StepInputs::derive_positions() {
  const std::int64_t max_seq_len = limits_.max_seq_len;
  const std::int64_t num_tokens = extent(Symbol::kNumTokens);
  std::int64_t row = 0;
  for (std::size_t seq = 0; seq < seq_lens_.size(); ++seq) {
    const std::int64_t past = buffers_[kPastLens][seq];
    expect_range(
        1, num_tokens - row, seq_lens_[seq], [seq] { return item("seq_lens", std::int64_t(seq)); },
        "pass at least one token for each sequence, and as many token_ids as the sum of seq_lens");
    expect_range(
        0, max_seq_len, past, [seq] { return item("past_lens", std::int64_t(seq)); },
        "pass the number of tokens that the cache holds");
    expect_range(
        1, max_seq_len, past + seq_lens_[seq], [seq] { return "length of sequence " + std::to_string(seq); },
        "shorten it, or build the engine with a larger --max_seq_len");
    buffers_[kCuSeqlens][seq] = static_cast<std::int32_t>(row);
    for (std::int64_t i = 0; i < seq_lens_[seq]; ++i, ++row) {
      buffers_[kPositionIds][static_cast<std::size_t>(row)] = static_cast<std::int32_t>(past + i);
    }
  }
  buffers_[kCuSeqlens][seq_lens_.size()] = static_cast<std::int32_t>(row);
  if (row == num_tokens) return;
  fail("sum of seq_lens", std::to_string(num_tokens) + ", the number of token_ids", row,
       "pass as many tokens as the sequences have");
}

void StepInputs::check_values() const {
  for (const ValueBound& bound : limits_.values) {
    if (bound.input == kBlockTables) continue;  // check_block_numbers checks the entries within each sequence
    const StepInput& input = kStepInputs[bound.input];
    const std::int64_t limit = bound.bound.symbol ? extent(*bound.bound.symbol) : bound.bound.value;
    const std::int32_t* values = buffers_[static_cast<std::size_t>(bound.input)].data();
    for (std::int64_t i = 0; i < extent(input.shape[0]); ++i) {
      expect_range(0, limit - 1, values[i], [&] { return item(input.name, i); }, "pass numbers in this range");
    }
  }
}

void StepInputs::check_block_numbers() const {
  const std::int64_t columns = extent(Symbol::kMaxBlocksPerSeq);
  for (std::int64_t seq = 0; seq < extent(Symbol::kNumSeqs); ++seq) {
    if (blocks_used(seq) <= columns) continue;
    fail("columns of block_tables", std::to_string(blocks_used(seq)) + " or more for sequence " + std::to_string(seq),
         columns, "reserve blocks for the tokens of this step first");
  }
  // Kernels may also access blocks outside every window.
  for_each_table([&](std::int64_t table, std::int64_t, std::int64_t end) {
    for (std::int64_t i = 0; i < end; ++i) {
      expect_range(
          0, extent(Symbol::kNumBlocks) - num_blocks_of(table), block(table, i),
          [&] { return item(item("block_tables", table), i); }, "pass block numbers of this cache");
    }
  });
}

// Two sequences may read the same block (a shared prefix). But a block that one sequence writes must belong to no
// other: the writes would race, and one sequence would continue another's text.
void StepInputs::check_written_blocks() {
  std::int32_t shared = kNobody;
  // Calls use(block) for each block of entries first .. end-1 of a table.
  const auto for_each_block = [&](std::int64_t table, std::int64_t first, std::int64_t end, auto&& use) {
    for (std::int64_t i = first; i < end; ++i) {
      for (std::int64_t n = 0; n < num_blocks_of(table); ++n) use(block(table, i) + static_cast<std::int32_t>(n));
    }
  };
  const auto check = [&](std::int32_t block) {
    if (is_written_[static_cast<std::size_t>(block)]) shared = block;
  };
  for_each_table([&](std::int64_t table, std::int64_t, std::int64_t end) {
    for_each_block(table, first_written(table), end, [&](std::int32_t block) {
      check(block);
      is_written_[static_cast<std::size_t>(block)] = true;
    });
  });
  for_each_table([&](std::int64_t table, std::int64_t first, std::int64_t) {
    for_each_block(table, first, first_written(table), check);
  });
  for_each_table([&](std::int64_t table, std::int64_t, std::int64_t end) {
    for_each_block(table, first_written(table), end,
                   [&](std::int32_t block) { is_written_[static_cast<std::size_t>(block)] = false; });
  });
  if (shared == kNobody) return;
  fail("block_tables", "every block that this step writes to be used once", shared,
       "give each sequence blocks of its own");
}

template <typename Use>
void StepInputs::for_each_table(Use&& use) const {
  const int num_groups = limits_.geometry.num_groups();
  for (std::int64_t seq = 0; seq < extent(Symbol::kNumSeqs); ++seq) {
    for (int group = 0; group < num_groups; ++group) {
      const CacheKind& kind = limits_.geometry.kind(group);
      const int past = static_cast<int>(past_len(seq));
      use(seq * num_groups + group, kind.first_needed(past),
          kind.num_entries(past + seq_lens_[static_cast<std::size_t>(seq)]));
    }
  }
}

std::int64_t StepInputs::blocks_used(std::int64_t seq) const {
  return limits_.geometry.num_blocks_for(past_len(seq) + seq_lens_[static_cast<std::size_t>(seq)]);
}

std::int64_t StepInputs::first_written(std::int64_t table) const {
  const std::int64_t num_groups = limits_.geometry.num_groups();
  const CacheKind& kind = limits_.geometry.kind(static_cast<int>(table % num_groups));
  return kind.entry(static_cast<int>(past_len(table / num_groups)));
}

std::int64_t StepInputs::num_blocks_of(std::int64_t table) const {
  return limits_.geometry.blocks(static_cast<int>(table % limits_.geometry.num_groups()));
}

std::int32_t StepInputs::block(std::int64_t table, std::int64_t index) const {
  const std::int64_t columns = extent(Symbol::kMaxBlocksPerSeq);
  return buffers_[kBlockTables][static_cast<std::size_t>(table * columns + index)];
}

}  // namespace tl
