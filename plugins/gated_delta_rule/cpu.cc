// GatedDeltaRule on a CPU. A task is a group of columns of one head's state in one sequence; columns do not depend on
// each other. Tokens come one after the other: one pass over the state updates it, multiplies it by the token's query,
// and by the key of the next token. Sums run over the rows of the state in order, so that a sequence gets the same bits
// however it is divided into steps. For each element of the state and token that is four operations; the chunked form
// (arXiv 2412.06464, section 3.3) has three, and those within chunks, which are no fewer in all at these sizes.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/state_spans.h"
#include "gated_delta_rule_schema.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {
namespace {

constexpr int kVectors = kMaxAccumulators / 6;  // of a block: it has two sums and a change of each in registers
constexpr std::int64_t kBlockColumns = kVectors * kLanes;
constexpr std::int64_t kTaskColumns = 64;
constexpr std::int64_t kMaxKeyDim = 512;
constexpr std::int64_t kChunkTokens = 16;  // tokens whose queries and keys are normalized at once
static_assert(kTaskColumns % kBlockColumns == 0);

// A thread's memory for a group of columns: blocks of the state, each [key_dim, kBlockColumns].
struct RuleScratch {
  alignas(64) float state[kMaxKeyDim * kTaskColumns];
  alignas(64) float queries[kChunkTokens * kMaxKeyDim];
  alignas(64) float keys[kChunkTokens * kMaxKeyDim];
  float decays[kChunkTokens];
  float betas[kChunkTokens];
};
static_assert(sizeof(RuleScratch) <= kScratchBytesPerThread);

// to = x / sqrt(sum of x^2 + epsilon) * scale
void normalize(const float* x, std::int64_t size, float epsilon, float scale, float* to) {
  Vec squares = zero();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Vec part = load_first(x + i, size - i);
    squares = fma(part, part, squares);
  }
  const Vec factor = broadcast(scale / sqrtf(reduce_add(squares) + epsilon));
  for (std::int64_t i = 0; i < size; i += kLanes) store_first(to + i, load_first(x + i, size - i) * factor, size - i);
}

// ln(1 + e^x). Beyond 20, where both differ by less than a rounding error, the result is x.
float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// The sums over rows of a block of columns.
struct Sums {
  Vec of[kVectors];
};

TL_INLINE Sums no_sums() {
  Sums sums;
  for (int v = 0; v < kVectors; ++v) sums.of[v] = zero();
  return sums;
}

// The product of a block of the state, transposed, and `key`.
Sums multiply(const float* state, const float* key, std::int64_t key_dim) {
  Sums sums = no_sums();
  for (std::int64_t i = 0; i < key_dim; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums.of[v] = fma(broadcast(key[i]), load(state + i * kBlockColumns + v * kLanes), sums.of[v]);
    }
  }
  return sums;
}

// state = decay * state + key * delta. Returns the products of the new state with `query` and, in `seen`, `next_key`.
Sums update(float* state, const float* query, const float* key, const float* next_key, std::int64_t key_dim,
            float decay, const Sums& delta, Sums* seen) {
  Sums results = no_sums(), of_next = no_sums();
  const Vec factor = broadcast(decay);
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const Vec of_query = broadcast(query[i]), of_key = broadcast(key[i]), of_next_key = broadcast(next_key[i]);
    float* row = state + i * kBlockColumns;
    for (int v = 0; v < kVectors; ++v) {
      const Vec updated = fma(of_key, delta.of[v], factor * load(row + v * kLanes));
      store(row + v * kLanes, updated);
      results.of[v] = fma(of_query, updated, results.of[v]);
      of_next.of[v] = fma(of_next_key, updated, of_next.of[v]);
    }
  }
  *seen = of_next;
  return results;
}

class DeltaRule {
 public:
  explicit DeltaRule(const KernelArgs& args)
      : in_(args.inputs),
        attributes_(gated_delta_rule::attributes_of(args)),
        spans_(in(gated_delta_rule::kCuSeqlens), in(gated_delta_rule::kPastLens), in(gated_delta_rule::kBlockTables),
               attributes_.cache_group, attributes_.tokens_per_state),
        y_(args.outputs[gated_delta_rule::kY].as<float>()),
        states_(args.outputs[gated_delta_rule::kRecurrentStateOut]),
        num_key_heads_(attributes_.num_key_heads),
        num_heads_(in(gated_delta_rule::kRecurrentState).shape[1]),
        key_dim_(in(gated_delta_rule::kRecurrentState).shape[2]),
        value_dim_(in(gated_delta_rule::kRecurrentState).shape[3]),
        row_size_(in(gated_delta_rule::kQkv).shape[1]) {}

  std::int64_t num_tasks() const { return spans_.num_seqs() * num_heads_ * groups_of_head(); }

  void run(std::int64_t task, RuleScratch* scratch) const {
    const StateSpan span = spans_.of(task / (num_heads_ * groups_of_head()));
    if (span.count == 0) return;
    const std::int64_t head = task / groups_of_head() % num_heads_, column = task % groups_of_head() * kTaskColumns;
    load_state(span, head, column, scratch);
    for (std::int64_t done = 0; done < span.count; done += kChunkTokens) {
      const std::int64_t first = span.first + done, count = min(kChunkTokens, span.count - done);
      load_tokens(first, count, head, scratch);
      for_each_block(column, [&](std::int64_t at, std::int64_t state) {
        add_tokens(first, count, head, at, scratch->state + state, *scratch);
      });
    }
    store_state(span, head, column, *scratch);
  }

 private:
  const Tensor& in(int index) const { return in_[index]; }

  std::int64_t groups_of_head() const { return ceil_div(value_dim_, kTaskColumns); }

  // Calls work(column, state) for each block of a group: its first column, and where it lies in RuleScratch::state.
  template <typename Work>
  void for_each_block(std::int64_t first, const Work& work) const {
    const std::int64_t end = min(first + kTaskColumns, value_dim_);
    for (std::int64_t at = first; at < end; at += kBlockColumns) work(at, (at - first) * key_dim_);
  }

  void load_state(const StateSpan& span, std::int64_t head, std::int64_t column, RuleScratch* scratch) const {
    const float* matrix = state_in(states_, span.source) + head * key_dim_ * value_dim_;
    for_each_block(column, [&](std::int64_t at, std::int64_t state) {
      for (std::int64_t i = 0; i < key_dim_ * kVectors; ++i) {
        const std::int64_t row = i / kVectors, first = at + i % kVectors * kLanes;
        const Vec part = span.source < 0 ? zero() : load_first(matrix + row * value_dim_ + first, value_dim_ - first);
        store(scratch->state + state + i * kLanes, part);
      }
    });
  }

  void store_state(const StateSpan& span, std::int64_t head, std::int64_t column, const RuleScratch& scratch) const {
    float* matrix = state_in(states_, span.target) + head * key_dim_ * value_dim_;
    for_each_block(column, [&](std::int64_t at, std::int64_t state) {
      for (std::int64_t i = 0; i < key_dim_ * kVectors; ++i) {
        const std::int64_t row = i / kVectors, first = at + i % kVectors * kLanes;
        store_first(matrix + row * value_dim_ + first, load(scratch.state + state + i * kLanes), value_dim_ - first);
      }
    });
  }

  void load_tokens(std::int64_t first, std::int64_t count, std::int64_t head, RuleScratch* scratch) const {
    const auto* a = in(gated_delta_rule::kA).as<const float>() + head;
    const auto* b = in(gated_delta_rule::kB).as<const float>() + head;
    const float rate = expf(in(gated_delta_rule::kALog).as<const float>()[head]);
    const float bias = in(gated_delta_rule::kDtBias).as<const float>()[head];
    const auto epsilon = static_cast<float>(attributes_.norm_epsilon), scale = static_cast<float>(attributes_.scale);
    const std::int64_t key_head = head / (num_heads_ / num_key_heads_);
    for (std::int64_t token = 0; token < count; ++token) {
      const float* row = in(gated_delta_rule::kQkv).as<const float>() + (first + token) * row_size_;
      normalize(row + key_head * key_dim_, key_dim_, epsilon, scale, scratch->queries + token * key_dim_);
      normalize(row + (num_key_heads_ + key_head) * key_dim_, key_dim_, epsilon, 1.0f,
                scratch->keys + token * key_dim_);
      scratch->decays[token] = expf(-rate * softplus(a[(first + token) * num_heads_] + bias));
      scratch->betas[token] = 1.0f / (1.0f + expf(-b[(first + token) * num_heads_]));
    }
  }

  // Adds `count` tokens to the block of the state that begins at column `column`.
  void add_tokens(std::int64_t first, std::int64_t count, std::int64_t head, std::int64_t column, float* state,
                  const RuleScratch& scratch) const {
    const auto* qkv = in(gated_delta_rule::kQkv).as<const float>();
    const std::int64_t values = 2 * num_key_heads_ * key_dim_ + head * value_dim_ + column, left = value_dim_ - column;
    Sums seen = multiply(state, scratch.keys, key_dim_);
    for (std::int64_t token = 0; token < count; ++token) {
      const float* value = qkv + (first + token) * row_size_ + values;
      const float decay = scratch.decays[token];
      Sums delta;
      for (int v = 0; v < kVectors; ++v) {
        const Vec missing = load_first(value + v * kLanes, left - v * kLanes) - broadcast(decay) * seen.of[v];
        delta.of[v] = broadcast(scratch.betas[token]) * missing;
      }
      const float* key = scratch.keys + token * key_dim_;
      const float* next_key = token + 1 < count ? key + key_dim_ : key;  // the last token's sums are not used
      const Sums results =
          update(state, scratch.queries + token * key_dim_, key, next_key, key_dim_, decay, delta, &seen);
      float* y = y_ + ((first + token) * num_heads_ + head) * value_dim_ + column;
      for (int v = 0; v < kVectors; ++v) store_first(y + v * kLanes, results.of[v], left - v * kLanes);
    }
  }

  const Tensor* in_;
  const gated_delta_rule::Attributes attributes_;
  const StateSpans spans_;
  float* y_;
  const Tensor& states_;
  const std::int64_t num_key_heads_, num_heads_, key_dim_, value_dim_, row_size_;
};

}  // namespace

void gated_delta_rule(const KernelArgs& args) {
  const DeltaRule rule(args);
  args.pool->parallel_for(rule.num_tasks(), [&](std::int64_t task, int thread) {
    rule.run(task, static_cast<RuleScratch*>(args.pool->scratch(thread)));
  });
}

}  // namespace tl::TL_ISA
