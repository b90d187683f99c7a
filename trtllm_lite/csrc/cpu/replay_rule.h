// Computes operators whose state is replayed (plugins/replay.py). A task is a head of a sequence. Tokens come in chunks
// that begin at multiples of kChunk positions (arXiv 2412.06464, section 3.3): a pass over the matrix multiplies it by
// a token's query and key, the tokens of the chunk before it add what they would have changed, and a pass at the end of
// the chunk adds all its tokens to the matrix. Chunks begin at the same positions however a sequence is divided into
// steps, and sums run in order, so that it gets the same bits. Columns of the matrix do not depend on each other, and
// are computed in groups.
#pragma once

#include <math.h>

#include "cpu/kernel.h"
#include "cpu/replay_state.h"
#include "cpu/simd/simd.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

constexpr int kVectors = kMaxAccumulators / 6;  // of a block: it has two sums and a change of each in registers
constexpr std::int64_t kBlockColumns = kVectors * kLanes;
constexpr std::int64_t kGroupColumns = 64;
constexpr std::int64_t kMaxKeyDim = 512;
constexpr std::int64_t kChunk = 16;
static_assert(kGroupColumns % kBlockColumns == 0);

// The tokens of a chunk: rows of keys and queries.
struct Chunk {
  alignas(64) float keys[kChunk * kMaxKeyDim];
  alignas(64) float queries[kChunk * kMaxKeyDim];
  alignas(64) float decays[kChunk * kMaxKeyDim];  // logarithms
  alignas(64) float totals[kChunk * kMaxKeyDim];  // their sums from the beginning of the chunk up to each token
  alignas(64) float updates[kChunk * kGroupColumns];
  float key_weights[kChunk][kChunk];    // how far the update of a token changes what a later key finds
  float query_weights[kChunk][kChunk];  // and what a query finds, that of the token itself included
  float factors[kChunk];                // of values in updates
};

// A thread's memory for a group of columns: blocks of the state, each [key_dim, kBlockColumns].
struct ReplayScratch {
  Chunk chunk;
  alignas(64) float state[kMaxKeyDim * kGroupColumns];
  alignas(64) float factors[kChunk * kMaxKeyDim];  // of rows of the state
};
static_assert(sizeof(ReplayScratch) <= kScratchBytesPerThread);

// ln(1 + e^x). Beyond 20, where both differ by less than a rounding error, the result is x.
inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// The sums over rows of a block of columns.
struct Sums {
  Vec of[kVectors];
};

TL_INLINE Sums no_sums() {
  Sums sums;
  for (int v = 0; v < kVectors; ++v) sums.of[v] = zero();
  return sums;
}

// Multiplies a block of the state, transposed, by two vectors.
TL_INLINE void multiply(const float* state, const float* one, const float* other, std::int64_t key_dim, Sums* of_one,
                        Sums* of_other) {
  Sums first = no_sums(), second = no_sums();
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const Vec left = broadcast(one[i]), right = broadcast(other[i]);
    for (int v = 0; v < kVectors; ++v) {
      const Vec element = load(state + i * kBlockColumns + v * kLanes);
      first.of[v] = fma(left, element, first.of[v]);
      second.of[v] = fma(right, element, second.of[v]);
    }
  }
  *of_one = first;
  *of_other = second;
}

// `Operator` has the operands of a call:
//   kCorrects: whether a token's update is its factor times what its value differs from what its key finds, or times
//   the
//     value itself
//   shape, num_heads, spans
//   state(block): of the first head of a sequence
//   load_token(row, head, key, decays): a key, and the logarithms of the decays before it
//   load_query(row, head, query), factor(row, head), values(row, head)
//   results(row, head): where value_dim results go; of_value(head): the part of the value in them
template <typename Operator>
class ReplayRule {
 public:
  explicit ReplayRule(const Operator& op)
      : op_(op),
        shape_(op.shape),
        num_heads_(op.num_heads),
        key_dim_(op.shape.key_dim),
        value_dim_(op.shape.value_dim) {}

  std::int64_t num_tasks() const { return op_.spans.num_seqs() * num_heads_; }

  void run(std::int64_t task, ReplayScratch* scratch) const {
    const StateSpan span = op_.spans.of(task / num_heads_);
    if (span.count == 0) return;
    const std::int64_t head = task % num_heads_;
    const ReplayState state(shape_, op_.state(span.block) + head * shape_.words(), span);
    for (std::int64_t column = 0; column < value_dim_; column += kGroupColumns) {
      run_group(state, span, head, column, scratch);
    }
    for (std::int64_t position = span.past; position < state.end(); ++position) {
      if (state.keeps(position))
        op_.load_token(row_of(span, position), head, state.key(position), state.decay(position));
    }
    state.store_length();
  }

 private:
  static std::int64_t row_of(const StateSpan& span, std::int64_t position) { return span.first + position - span.past; }

  // Calls work(column, state) for each block of a group: its first column, and where it lies in ReplayScratch::state.
  template <typename Work>
  void for_each_block(std::int64_t first, const Work& work) const {
    const std::int64_t end = min(first + kGroupColumns, value_dim_);
    for (std::int64_t at = first; at < end; at += kBlockColumns) work(at, (at - first) * key_dim_);
  }

  // Computes the columns of the group that begins with `column`, and stores the group's part of the state.
  void run_group(const ReplayState& state, const StateSpan& span, std::int64_t head, std::int64_t column,
                 ReplayScratch* scratch) const {
    load_state(state, column, scratch);
    for (std::int64_t base = state.length(); base < state.end(); base += kChunk) {
      const std::int64_t count = min(kChunk, state.end() - base);
      load_chunk(state, span, head, base, count, scratch);
      load_updates(state, base, count, column, &scratch->chunk);
      if (base + count > span.past) add_tokens(state, span, head, base, count, column, scratch);
      store_updates(state, base, count, column, scratch->chunk);
      if (base + kChunk >= state.end()) break;
      advance(count, column, scratch);
      round_state(column, scratch);
      if (base + kChunk == state.next_length()) store_state(state, column, *scratch);
    }
  }

  // Calls work(element, left, lanes) for each vector of the group: where it lies in the stored matrix and in
  // ReplayScratch::state, and how many columns are left there.
  template <typename Work>
  void for_each_vector(std::int64_t column, const Work& work) const {
    for_each_block(column, [&](std::int64_t at, std::int64_t block) {
      for (std::int64_t i = 0; i < key_dim_ * kVectors; ++i) {
        const std::int64_t first = at + i % kVectors * kLanes;
        work(i / kVectors * value_dim_ + first, value_dim_ - first, block + i * kLanes);
      }
    });
  }

  void load_state(const ReplayState& state, std::int64_t column, ReplayScratch* scratch) const {
    with_elements(shape_.dtype, state.matrix(), [&](const auto* elements) {
      for_each_vector(column, [&](std::int64_t element, std::int64_t left, std::int64_t lanes) {
        store(scratch->state + lanes, state.length() > 0 ? load_first(elements + element, left) : zero());
      });
    });
  }

  // Makes the state what its elements can hold, whether or not it is stored: so it is the same in every step.
  void round_state(std::int64_t column, ReplayScratch* scratch) const {
    if (shape_.dtype == DType::kFloat32) return;
    with_elements(shape_.dtype, nullptr, [&](auto* type) {
      for_each_vector(column, [&](std::int64_t, std::int64_t, std::int64_t lanes) {
        store(scratch->state + lanes, rounded(load(scratch->state + lanes), type));
      });
    });
  }

  void store_state(const ReplayState& state, std::int64_t column, const ReplayScratch& scratch) const {
    with_elements(shape_.dtype, state.matrix(), [&](auto* elements) {
      for_each_vector(column, [&](std::int64_t element, std::int64_t left, std::int64_t lanes) {
        store_first(elements + element, load(scratch.state + lanes), left);
      });
    });
  }

  // Loads what the `count` tokens from position `base` on have for all columns.
  void load_chunk(const ReplayState& state, const StateSpan& span, std::int64_t head, std::int64_t base,
                  std::int64_t count, ReplayScratch* scratch) const {
    Chunk* const chunk = &scratch->chunk;
    for (std::int64_t token = 0; token < count; ++token) {
      const std::int64_t position = base + token, row = row_of(span, position);
      float* key = chunk->keys + token * key_dim_;
      float* decays = chunk->decays + token * shape_.decay_dim;
      float* totals = chunk->totals + token * shape_.decay_dim;
      if (state.is_new(position)) {
        op_.load_token(row, head, key, decays);
        op_.load_query(row, head, chunk->queries + token * key_dim_);
        chunk->factors[token] = op_.factor(row, head);
      } else {
        for (std::int64_t i = 0; i < key_dim_; ++i) key[i] = state.key(position)[i];
        for (std::int64_t i = 0; i < shape_.decay_dim; ++i) decays[i] = state.decay(position)[i];
      }
      for (std::int64_t i = 0; i < shape_.decay_dim; ++i) {
        totals[i] = decays[i] + (token > 0 ? totals[i - shape_.decay_dim] : 0.0f);
      }
      if (state.is_new(position)) weigh(token, scratch);
    }
  }

  // Computes what the updates of the tokens of a chunk up to `token` change for its key and its query. Decays are added
  // up backwards, because differences of totals lose the digits of small decays behind large ones.
  void weigh(std::int64_t token, ReplayScratch* scratch) const {
    Chunk* const chunk = &scratch->chunk;
    float* const sums = scratch->factors;
    for (std::int64_t i = 0; i < shape_.decay_dim; ++i) sums[i] = 0.0f;
    for (std::int64_t other = token; other >= 0; --other) {
      chunk->key_weights[token][other] = weight(*chunk, chunk->keys + token * key_dim_, other, sums);
      chunk->query_weights[token][other] = weight(*chunk, chunk->queries + token * key_dim_, other, sums);
      const float* decays = chunk->decays + other * shape_.decay_dim;
      for (std::int64_t i = 0; i < shape_.decay_dim; ++i) sums[i] += decays[i];
    }
  }

  // The product of `vector` and the key of token `other`, after decays whose logarithms are `sums`.
  float weight(const Chunk& chunk, const float* vector, std::int64_t other, const float* sums) const {
    const float* key = chunk.keys + other * key_dim_;
    Vec sum = zero();
    for (std::int64_t i = 0; i < key_dim_; i += kLanes) {
      Vec part = load_first(key + i, key_dim_ - i);
      if (shape_.decay_dim > 1) part = part * exp(load_first(sums + i, key_dim_ - i));
      sum = fma(part, load_first(vector + i, key_dim_ - i), sum);
    }
    return shape_.decay_dim > 1 ? reduce_add(sum) : reduce_add(sum) * expf(sums[0]);
  }

  void load_updates(const ReplayState& state, std::int64_t base, std::int64_t count, std::int64_t column,
                    Chunk* chunk) const {
    for (std::int64_t token = 0; token < count && !state.is_new(base + token); ++token) {
      const float* from = state.update(base + token) + column;
      for (std::int64_t i = 0; i < kGroupColumns; i += kLanes) {
        store(chunk->updates + token * kGroupColumns + i, load_first(from + i, value_dim_ - column - i));
      }
    }
  }

  void store_updates(const ReplayState& state, std::int64_t base, std::int64_t count, std::int64_t column,
                     const Chunk& chunk) const {
    for (std::int64_t token = 0; token < count; ++token) {
      if (!state.keeps(base + token)) continue;
      float* to = state.update(base + token) + column;
      for (std::int64_t i = 0; i < kGroupColumns; i += kLanes) {
        store_first(to + i, load(chunk.updates + token * kGroupColumns + i), value_dim_ - column - i);
      }
    }
  }

  // `vector` for a state that has not decayed since the beginning of the chunk.
  void decayed(const Chunk& chunk, const float* vector, std::int64_t token, float* to) const {
    const float* decays = chunk.totals + token * shape_.decay_dim;
    for (std::int64_t i = 0; i < key_dim_; i += kLanes) {
      const Vec factor = shape_.decay_dim > 1 ? exp(load_first(decays + i, key_dim_ - i)) : broadcast(expf(decays[0]));
      store_first(to + i, load_first(vector + i, key_dim_ - i) * factor, key_dim_ - i);
    }
  }

  // Computes the updates and results of the step's tokens among the `count` of a chunk.
  void add_tokens(const ReplayState& state, const StateSpan& span, std::int64_t head, std::int64_t base,
                  std::int64_t count, std::int64_t column, ReplayScratch* scratch) const {
    Chunk& chunk = scratch->chunk;
    float* const key = scratch->factors;
    float* const query = key + kMaxKeyDim;
    const std::int64_t first = span.past > base ? span.past - base : 0;
    for (std::int64_t token = first; token < count; ++token) {
      decayed(chunk, chunk.keys + token * key_dim_, token, key);
      decayed(chunk, chunk.queries + token * key_dim_, token, query);
      const std::int64_t row = row_of(span, base + token);
      const float* values = op_.values(row, head);
      float* y = op_.results(row, head);
      for_each_block(column, [&](std::int64_t at, std::int64_t block) {
        add_token(scratch->state + block, key, query, token, at - column, values + at, y + at, value_dim_ - at,
                  op_.of_value(head), &chunk);
      });
    }
  }

  // Computes a token's update of a block of columns, the first of which is `column` of the group, and its results.
  void add_token(const float* state, const float* key, const float* query, std::int64_t token, std::int64_t column,
                 const float* values, float* y, std::int64_t left, float of_value, Chunk* chunk) const {
    Sums known, found;
    multiply(state, key, query, key_dim_, &known, &found);
    for (int v = 0; v < kVectors; ++v) {
      float* updates = chunk->updates + column + v * kLanes;
      Vec seen = known.of[v], result = found.of[v];
      for (std::int64_t other = 0; other < token; ++other) {
        const Vec update = load(updates + other * kGroupColumns);
        seen = fma(broadcast(chunk->key_weights[token][other]), update, seen);
        result = fma(broadcast(chunk->query_weights[token][other]), update, result);
      }
      const Vec value = load_first(values + v * kLanes, left - v * kLanes);
      const Vec update = broadcast(chunk->factors[token]) * (Operator::kCorrects ? value - seen : value);
      store(updates + token * kGroupColumns, update);
      result = fma(broadcast(chunk->query_weights[token][token]), update, result);
      store_first(y + v * kLanes, fma(broadcast(of_value), value, result), left - v * kLanes);
    }
  }

  // Adds the `count` tokens of a chunk to the state.
  void advance(std::int64_t count, std::int64_t column, ReplayScratch* scratch) const {
    const Chunk& chunk = scratch->chunk;
    float* const factors = scratch->factors;  // of each token's update in each row of the state
    const float* last = chunk.totals + (count - 1) * shape_.decay_dim;
    for (std::int64_t i = 0; i < key_dim_; ++i) {
      const std::int64_t at = shape_.decay_dim > 1 ? i : 0;
      float sum = 0.0f;
      for (std::int64_t token = count - 1; token >= 0; --token) {
        factors[i * kChunk + token] = chunk.keys[token * key_dim_ + i] * expf(sum);
        sum += chunk.decays[token * shape_.decay_dim + at];
      }
    }
    for_each_block(column, [&](std::int64_t at, std::int64_t block) {
      const float* updates = chunk.updates + at - column;
      for (std::int64_t i = 0; i < key_dim_; ++i) {
        float* row = scratch->state + block + i * kBlockColumns;
        const Vec decay = broadcast(expf(last[shape_.decay_dim > 1 ? i : 0]));
        for (int v = 0; v < kVectors; ++v) {
          Vec sum = decay * load(row + v * kLanes);
          for (std::int64_t token = 0; token < count; ++token) {
            const Vec update = load(updates + token * kGroupColumns + v * kLanes);
            sum = fma(broadcast(factors[i * kChunk + token]), update, sum);
          }
          store(row + v * kLanes, sum);
        }
      }
    });
  }

  const Operator& op_;
  const ReplayShape& shape_;
  const std::int64_t num_heads_, key_dim_, value_dim_;
};

template <typename Operator>
void replay(const Operator& op, ThreadPool* pool) {
  const ReplayRule<Operator> rule(op);
  pool->parallel_for(rule.num_tasks(), [&](std::int64_t task, int thread) {
    rule.run(task, static_cast<ReplayScratch*>(pool->scratch(thread)));
  });
}

}  // namespace tl::TL_ISA
