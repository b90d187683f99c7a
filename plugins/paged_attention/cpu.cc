// PagedAttention on a CPU: tokens are appended in parallel, then query tiles are computed in parallel.
#include "append.h"
#include "attend.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {
namespace {

// The most tokens of an append task, so that neighbours in a block of keys are written by one thread.
constexpr std::int64_t kMaxAppendTokens = 16;
// With this many tiles per thread, tiles alone keep all threads busy.
constexpr std::int64_t kTilesPerThread = 4;

void append_tokens(const AttentionProblem& p, ThreadPool* pool) {
  const std::int64_t chunk = min(kMaxAppendTokens, ceil_div(p.num_tokens, pool->num_threads()));
  pool->parallel_for(ceil_div(p.num_tokens, chunk), [&](std::int64_t task, int) {
    const std::int64_t last = min((task + 1) * chunk, p.num_tokens);
    std::int64_t seq = 0;
    for (std::int64_t token = task * chunk; token < last; ++token) {
      while (p.cu_seqlens[seq + 1] <= token) ++seq;
      append_token(p, seq, token);
    }
  });
}

// The splits of a sequence's positions that its new tokens may attend to: first .. first + count - 1.
struct SplitRange {
  std::int64_t first;
  std::int64_t count;
};

SplitRange splits_of(const AttentionProblem& p, std::int64_t seq) {
  const std::int64_t split_tokens = blocks_per_split(p) * p.tokens_per_block;
  const std::int64_t first = p.first_visible(p.past_lens[seq]) / split_tokens;
  const std::int64_t last = (p.past_lens[seq] + p.new_tokens(seq) - 1) / split_tokens;
  return {first, last - first + 1};
}

std::int64_t tiles_per_head(const AttentionProblem& p, std::int64_t seq) {
  return ceil_div(p.new_tokens(seq) * p.group, tile_queries(p));
}

QueryTile make_tile(const AttentionProblem& p, std::int64_t seq, std::int64_t index) {
  const std::int64_t row = index / p.num_kv_heads * tile_queries(p);
  return {seq, index % p.num_kv_heads, row, min(tile_queries(p), p.new_tokens(seq) * p.group - row)};
}

// Finds tile `index`; tiles are numbered by sequence.
QueryTile find_tile(const AttentionProblem& p, std::int64_t index) {
  std::int64_t seq = 0;
  for (; index >= tiles_per_head(p, seq) * p.num_kv_heads; ++seq) index -= tiles_per_head(p, seq) * p.num_kv_heads;
  return make_tile(p, seq, index);
}

// Each task attends from one tile of queries to all keys of its sequence that they see.
void attend_tiles(const AttentionProblem& p, std::int64_t num_tiles, ThreadPool* pool) {
  pool->parallel_for(num_tiles, [&](std::int64_t task, int thread) {
    // The last tiles of a prompt have the longest context. They go first, so that threads end at about the same time.
    const QueryTile tile = find_tile(p, num_tiles - 1 - task);
    auto* scratch = static_cast<AttentionScratch*>(pool->scratch(thread));
    load_queries(p, tile, scratch->queries);
    begin(p, tile, scratch->merged());
    const SplitRange splits = splits_of(p, tile.seq);
    for (std::int64_t i = 0; i < splits.count; ++i) {
      attend_split(p, tile, splits.first + i, scratch, scratch->split());
      merge(p, tile.rows, scratch->split(), scratch->merged());
    }
    write_y(p, tile, scratch->merged());
  });
}

// Attention of few tiles with a long context: each task is one split of a tile. The partial states are kept, until they
// are merged, in the part of the threads' scratch memory that AttentionScratch does not use.
class SplitAttention {
 public:
  SplitAttention(const AttentionProblem& p, ThreadPool* pool) : p_(p), pool_(pool) {
    std::int64_t max_rows = 0;
    for (std::int64_t seq = 0; seq < p.num_seqs; ++seq) {
      const std::int64_t tiles = tiles_per_head(p, seq) * p.num_kv_heads;
      num_tiles_ += tiles;
      num_states_ += tiles * splits_of(p, seq).count;
      max_rows = max(max_rows, min(tile_queries(p), p.new_tokens(seq) * p.group));
    }
    max_rows_ = ceil_div(max_rows, 16) * 16;
    state_floats_ = max_rows_ * (2 + sums_stride(p));
    const std::int64_t free_bytes = static_cast<std::int64_t>(kScratchBytesPerThread) - scratch_bytes(p);
    states_per_thread_ = free_bytes / (state_floats_ * static_cast<std::int64_t>(sizeof(float)));
  }

  std::int64_t num_tiles() const { return num_tiles_; }

  // Whether splitting saves time and the states fit in scratch memory.
  bool pays() const {
    const std::int64_t threads = pool_->num_threads();
    return threads > 1 && num_tiles_ < kTilesPerThread * threads && num_states_ > num_tiles_ &&
           num_states_ <= states_per_thread_ * threads;
  }

  void run() {
    pool_->parallel_for(num_states_, [&](std::int64_t task, int thread) { attend(task, thread); });
    pool_->parallel_for(num_tiles_, [&](std::int64_t task, int thread) { merge_splits(task, thread); });
  }

 private:
  SoftmaxState state(std::int64_t index) const {
    auto* scratch = static_cast<char*>(pool_->scratch(static_cast<int>(index / states_per_thread_)));
    auto* floats = reinterpret_cast<float*>(scratch + scratch_bytes(p_));
    floats += index % states_per_thread_ * state_floats_;
    return {floats, floats + max_rows_, floats + 2 * max_rows_};
  }

  // Computes the state `index`; states are numbered by sequence, tile and split.
  void attend(std::int64_t index, int thread) const {
    std::int64_t seq = 0, first = 0;
    const auto states = [&] { return tiles_per_head(p_, seq) * p_.num_kv_heads * splits_of(p_, seq).count; };
    while (index - first >= states()) first += states(), ++seq;
    const SplitRange splits = splits_of(p_, seq);
    const QueryTile tile = make_tile(p_, seq, (index - first) / splits.count);
    auto* scratch = static_cast<AttentionScratch*>(pool_->scratch(thread));
    load_queries(p_, tile, scratch->queries);
    attend_split(p_, tile, splits.first + (index - first) % splits.count, scratch, state(index));
  }

  void merge_splits(std::int64_t index, int thread) const {
    std::int64_t seq = 0, first_state = 0, in_seq = index;
    for (; in_seq >= tiles_per_head(p_, seq) * p_.num_kv_heads; ++seq) {
      in_seq -= tiles_per_head(p_, seq) * p_.num_kv_heads;
      first_state += tiles_per_head(p_, seq) * p_.num_kv_heads * splits_of(p_, seq).count;
    }
    const QueryTile tile = make_tile(p_, seq, in_seq);
    const SplitRange splits = splits_of(p_, seq);
    const SoftmaxState merged = static_cast<AttentionScratch*>(pool_->scratch(thread))->merged();
    begin(p_, tile, merged);
    for (std::int64_t i = 0; i < splits.count; ++i) {
      merge(p_, tile.rows, state(first_state + in_seq * splits.count + i), merged);
    }
    write_y(p_, tile, merged);
  }

  const AttentionProblem& p_;
  ThreadPool* pool_;
  std::int64_t num_tiles_ = 0, num_states_ = 0;
  std::int64_t max_rows_ = 0, state_floats_ = 0, states_per_thread_ = 0;
};

}  // namespace

void paged_attention(const KernelArgs& args) {
  const AttentionProblem problem = make_problem(args);
  if (problem.num_tokens == 0) return;
  append_tokens(problem, args.pool);
  SplitAttention split(problem, args.pool);
  if (split.pays()) {
    split.run();
  } else {
    attend_tiles(problem, split.num_tiles(), args.pool);
  }
}

}  // namespace tl::TL_ISA
