// LatentAttention on a CPU. Tokens are appended in parallel. Then each head of each token is a task, which goes through
// the cache block by block, so that a row's result depends on its sequence alone.
#include <math.h>

#include "../paged_attention/cache_block.h"
#include "cpu/table_row.h"
#include "host/thread_pool.h"
#include "latent_attention_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kMaxLatentDim = 512, kMaxRotaryDim = 128;

// A thread's memory for one head of one token.
struct Scratch {
  alignas(64) float query[kMaxLatentDim];
  alignas(64) float sums[kMaxLatentDim];
  alignas(64) float rotated[kMaxRotaryDim];
  alignas(64) float scores[kMaxTokensPerBlock];
  alignas(64) float latents[kMaxTokensPerBlock * kMaxLatentDim];
  alignas(64) float keys[kMaxTokensPerBlock * kMaxRotaryDim];
};
static_assert(sizeof(Scratch) <= kScratchBytesPerThread);

template <typename T>
float dot(const T* row, const float* x, std::int64_t size) {
  Vec sum = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sum = fma(load(row + i), load(x + i), sum);
  float total = reduce_add(sum);
  for (; i < size; ++i) total += to_float(row[i]) * x[i];
  return total;
}

// sums += factor * row
template <typename T>
void add_scaled(const T* row, float factor, float* sums, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(sums + i, fma(broadcast(factor), load(row + i), load(sums + i)));
  for (; i < size; ++i) sums[i] += factor * to_float(row[i]);
}

void scale(float* values, float factor, std::int64_t size) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_first(values + i, load_first(values + i, size - i) * broadcast(factor), size - i);
  }
}

class LatentProblem {
 public:
  explicit LatentProblem(const KernelArgs& args)
      : in_(args.inputs),
        attributes_(latent_attention::attributes_of(args)),
        keys_(cache_tensor(args.outputs[latent_attention::kRotaryCacheOut], 1.0)),
        latents_(cache_tensor(args.outputs[latent_attention::kLatentCacheOut], 1.0)),
        y_(args.outputs[latent_attention::kY].as<float>()),
        num_tokens_(in(latent_attention::kQuery).shape[0]),
        num_heads_(in(latent_attention::kKeyUp).shape[0]),
        plain_dim_(in(latent_attention::kKeyUp).shape[1]),
        latent_dim_(in(latent_attention::kKeyUp).shape[2]),
        value_dim_(in(latent_attention::kValueUp).shape[1]),
        rotary_dim_(in(latent_attention::kRotaryCache).shape[3]),
        tokens_per_block_(in(latent_attention::kRotaryCache).shape[2]) {}

  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_heads() const { return num_heads_; }

  void append(std::int64_t token) const {
    alignas(64) float latent[kMaxLatentDim], key[kMaxRotaryDim];
    const float* row = in(latent_attention::kLatent).as<const float>() + token * (latent_dim_ + rotary_dim_);
    normalize(row, latent);
    rotate(row + latent_dim_, token, key);
    const std::int64_t seq = sequence_of(token), position = position_of(seq, token);
    const std::int64_t block = block_of(seq, position / tokens_per_block_), slot = position % tokens_per_block_;
    write_cache(keys_, block * keys_.block_stride + slot * rotary_dim_, 1, key, rotary_dim_);
    write_cache(latents_, block * latents_.block_stride + slot * latent_dim_, 1, latent, latent_dim_);
  }

  void attend(std::int64_t token, std::int64_t head, Scratch* scratch) const {
    const std::int64_t seq = sequence_of(token), length = position_of(seq, token) + 1;
    load_query(token, head, scratch);
    for (std::int64_t i = 0; i < latent_dim_; ++i) scratch->sums[i] = 0.0f;
    float largest = -INFINITY, total = 0.0f;
    for (std::int64_t first = 0; first < length; first += tokens_per_block_) {
      add_block(block_of(seq, first / tokens_per_block_), min(tokens_per_block_, length - first), scratch, &largest,
                &total);
    }
    scale(scratch->sums, 1.0f / total, latent_dim_);
    write_values(head, scratch->sums, y_ + (token * num_heads_ + head) * value_dim_);
  }

 private:
  const Tensor& in(int index) const { return in_[index]; }

  std::int64_t sequence_of(std::int64_t token) const {
    const auto* firsts = in(latent_attention::kCuSeqlens).as<const std::int32_t>();
    std::int64_t seq = 0;
    while (firsts[seq + 1] <= token) ++seq;
    return seq;
  }

  std::int64_t position_of(std::int64_t seq, std::int64_t token) const {
    const std::int64_t past = in(latent_attention::kPastLens).as<const std::int32_t>()[seq];
    return past + token - in(latent_attention::kCuSeqlens).as<const std::int32_t>()[seq];
  }

  std::int64_t block_of(std::int64_t seq, std::int64_t number) const {
    const Tensor& tables = in(latent_attention::kBlockTables);
    const std::int64_t num_groups = tables.shape[0] / in(latent_attention::kPastLens).shape[0];
    const std::int64_t table = seq * num_groups + attributes_.cache_group;
    return tables.as<const std::int32_t>()[table * tables.shape[1] + number];
  }

  void normalize(const float* x, float* to) const {
    const auto* weight = in(latent_attention::kLatentNorm).as<const float>();
    const float mean = dot(x, x, latent_dim_) / static_cast<float>(latent_dim_);
    const Vec factor = broadcast(1.0f / sqrtf(mean + static_cast<float>(attributes_.norm_epsilon)));
    for (std::int64_t i = 0; i < latent_dim_; i += kLanes) {
      const std::int64_t count = latent_dim_ - i;
      store_first(to + i, load_first(x + i, count) * factor * load_first(weight + i, count), count);
    }
  }

  void rotate(const float* x, std::int64_t token, float* to) const {
    const std::int64_t half = rotary_dim_ / 2;
    const float* cos = in(latent_attention::kCos).as<const float>() + token * half;
    const float* sin = in(latent_attention::kSin).as<const float>() + token * half;
    for (std::int64_t i = 0; i < half; ++i) {
      const float low = x[i], high = x[half + i];
      to[i] = low * cos[i] - high * sin[i];
      to[half + i] = high * cos[i] + low * sin[i];
    }
  }

  // Loads the query of a head, in the form in which it is multiplied by latents and rotated keys.
  void load_query(std::int64_t token, std::int64_t head, Scratch* scratch) const {
    const float* row = in(latent_attention::kQuery).as<const float>() + token * num_heads_ * (plain_dim_ + rotary_dim_);
    const float* plain = row + head * plain_dim_;
    for (std::int64_t i = 0; i < latent_dim_; ++i) scratch->query[i] = 0.0f;
    with_rows(in(latent_attention::kKeyUp), head * plain_dim_, [&](const auto* rows) {
      for (std::int64_t p = 0; p < plain_dim_; ++p) {
        add_scaled(rows + p * latent_dim_, plain[p], scratch->query, latent_dim_);
      }
    });
    rotate(row + num_heads_ * plain_dim_ + head * rotary_dim_, token, scratch->rotated);
    scale(scratch->query, static_cast<float>(attributes_.scale), latent_dim_);
    scale(scratch->rotated, static_cast<float>(attributes_.scale), rotary_dim_);
  }

  // Adds `count` tokens of a block to the sums. `largest` and `total` are the running maximum and sum of the weights.
  void add_block(std::int64_t block, std::int64_t count, Scratch* scratch, float* largest, float* total) const {
    const float* latents =
        read_cache(latents_, block * latents_.block_stride, tokens_per_block_ * latent_dim_, scratch->latents);
    const float* keys = read_cache(keys_, block * keys_.block_stride, tokens_per_block_ * rotary_dim_, scratch->keys);
    float most = *largest;
    for (std::int64_t i = 0; i < count; ++i) {
      scratch->scores[i] = dot(latents + i * latent_dim_, scratch->query, latent_dim_) +
                           dot(keys + i * rotary_dim_, scratch->rotated, rotary_dim_);
      most = scratch->scores[i] > most ? scratch->scores[i] : most;
    }
    const float before = expf(*largest - most);
    scale(scratch->sums, before, latent_dim_);
    *total *= before;
    for (std::int64_t i = 0; i < count; ++i) {
      const float power = expf(scratch->scores[i] - most);
      *total += power;
      add_scaled(latents + i * latent_dim_, power, scratch->sums, latent_dim_);
    }
    *largest = most;
  }

  void write_values(std::int64_t head, const float* mean, float* y) const {
    with_rows(in(latent_attention::kValueUp), head * value_dim_, [&](const auto* rows) {
      for (std::int64_t v = 0; v < value_dim_; ++v) y[v] = dot(rows + v * latent_dim_, mean, latent_dim_);
    });
  }

  // Calls `use` with the rows of a weight from row `first` on, in the weight's type.
  template <typename Use>
  void with_rows(const Tensor& weight, std::int64_t first, const Use& use) const {
    switch (weight.dtype) {
      case DType::kBFloat16:
        return use(weight.as<const BFloat16>() + first * latent_dim_);
      case DType::kFloat16:
        return use(weight.as<const Float16>() + first * latent_dim_);
      default:
        return use(weight.as<const float>() + first * latent_dim_);
    }
  }

  const Tensor* in_;
  latent_attention::Attributes attributes_;
  CacheTensor keys_, latents_;
  float* y_;
  std::int64_t num_tokens_, num_heads_, plain_dim_, latent_dim_, value_dim_, rotary_dim_, tokens_per_block_;
};

}  // namespace

void latent_attention(const KernelArgs& args) {
  const LatentProblem problem(args);
  args.pool->parallel_for(problem.num_tokens(), [&](std::int64_t token, int) { problem.append(token); });
  args.pool->parallel_for(problem.num_tokens() * problem.num_heads(), [&](std::int64_t task, int thread) {
    problem.attend(task / problem.num_heads(), task % problem.num_heads(),
                   static_cast<Scratch*>(args.pool->scratch(thread)));
  });
}

}  // namespace tl::TL_ISA
