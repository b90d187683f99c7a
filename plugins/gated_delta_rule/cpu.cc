// GatedDeltaRule on a CPU: see cpu/replay_rule.h.
#include "cpu/replay_rule.h"
#include "gated_delta_rule_schema.h"

namespace tl::TL_ISA {
namespace {

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

struct DeltaRule {
  static constexpr bool kCorrects = true;

  explicit DeltaRule(const KernelArgs& args)
      : in(args.inputs),
        attributes(gated_delta_rule::attributes_of(args)),
        spans(in[gated_delta_rule::kCuSeqlens], in[gated_delta_rule::kPastLens], in[gated_delta_rule::kBlockTables],
              attributes.cache_group),
        shape{attributes.key_dim,
              attributes.value_dim,
              attributes.decay_dim,
              attributes.replay_tokens,
              attributes.taken_back,
              in[gated_delta_rule::kRecurrentState].shape[2],
              in[gated_delta_rule::kRecurrentState].dtype},
        num_heads(in[gated_delta_rule::kRecurrentState].shape[1]),
        y(args.outputs[gated_delta_rule::kY].as<float>()),
        states(args.outputs[gated_delta_rule::kRecurrentStateOut]) {}

  float* state(std::int64_t block) const { return state_in(states, block); }

  void load_token(std::int64_t row, std::int64_t head, float* key, float* decays) const {
    const std::int64_t first = head * shape.decay_dim;
    const float* a = floats_of_row(gated_delta_rule::kA, row) + attributes.a_first + first;
    const float* bias = floats(gated_delta_rule::kDtBias) + first;
    const float rate = expf(floats(gated_delta_rule::kALog)[head]);
    for (std::int64_t i = 0; i < shape.decay_dim; ++i) decays[i] = -rate * softplus(a[i] + bias[i]);
    normalize(heads_of(row, head) + attributes.num_key_heads * shape.key_dim, shape.key_dim, epsilon(), 1.0f, key);
  }
  void load_query(std::int64_t row, std::int64_t head, float* query) const {
    normalize(heads_of(row, head), shape.key_dim, epsilon(), static_cast<float>(attributes.scale), query);
  }
  float factor(std::int64_t row, std::int64_t head) const {
    return 1.0f / (1.0f + expf(-floats_of_row(gated_delta_rule::kB, row)[attributes.b_first + head]));
  }
  const float* values(std::int64_t row, std::int64_t head) const {
    const std::int64_t others = 2 * attributes.num_key_heads * shape.key_dim;
    return floats_of_row(gated_delta_rule::kQkv, row) + others + head * shape.value_dim;
  }
  float* results(std::int64_t row, std::int64_t head) const { return y + (row * num_heads + head) * shape.value_dim; }
  static float of_value(std::int64_t) { return 0.0f; }

  const float* floats(int index) const { return in[index].as<const float>(); }
  const float* floats_of_row(int index, std::int64_t row) const { return floats(index) + row * in[index].shape[1]; }
  float epsilon() const { return static_cast<float>(attributes.norm_epsilon); }
  // The query of a row's head, behind which the keys begin num_key_heads * key_dim elements later.
  const float* heads_of(std::int64_t row, std::int64_t head) const {
    const std::int64_t key_head = head / (num_heads / attributes.num_key_heads);
    return floats_of_row(gated_delta_rule::kQkv, row) + key_head * shape.key_dim;
  }

  const Tensor* in;
  const gated_delta_rule::Attributes attributes;
  const StateSpans spans;
  const ReplayShape shape;
  const std::int64_t num_heads;
  float* y;
  const Tensor& states;
};

}  // namespace

void gated_delta_rule(const KernelArgs& args) { replay(DeltaRule(args), args.pool); }

}  // namespace tl::TL_ISA
