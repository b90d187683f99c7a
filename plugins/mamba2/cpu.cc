// Mamba2 on a CPU: see cpu/replay_rule.h. B is a key, C a query, and x, times the step, an update.
#include "cpu/replay_rule.h"
#include "mamba2_schema.h"

namespace tl::TL_ISA {
namespace {

struct StateSpace {
  static constexpr bool kCorrects = false;

  explicit StateSpace(const KernelArgs& args)
      : in(args.inputs),
        attributes(mamba2::attributes_of(args)),
        spans(in[mamba2::kCuSeqlens], in[mamba2::kPastLens], in[mamba2::kBlockTables], attributes.cache_group),
        shape{attributes.key_dim,
              attributes.value_dim,
              attributes.decay_dim,
              attributes.replay_tokens,
              attributes.taken_back,
              in[mamba2::kRecurrentState].shape[2],
              in[mamba2::kRecurrentState].dtype},
        num_heads(in[mamba2::kRecurrentState].shape[1]),
        y(args.outputs[mamba2::kY].as<float>()),
        states(args.outputs[mamba2::kRecurrentStateOut]) {}

  float* state(std::int64_t block) const { return state_in(states, block); }

  void load_token(std::int64_t row, std::int64_t head, float* key, float* decays) const {
    const float* b = vectors(row, head);
    for (std::int64_t i = 0; i < shape.key_dim; ++i) key[i] = b[i];
    *decays = -expf(floats(mamba2::kALog)[head]) * factor(row, head);
  }
  void load_query(std::int64_t row, std::int64_t head, float* query) const {
    const float* c = vectors(row, head) + attributes.num_groups * shape.key_dim;
    for (std::int64_t i = 0; i < shape.key_dim; ++i) query[i] = c[i];
  }
  // The step.
  float factor(std::int64_t row, std::int64_t head) const {
    const float dt = floats_of_row(mamba2::kDt, row)[attributes.dt_first + head];
    const float step = softplus(dt + floats(mamba2::kDtBias)[head]);
    const auto least = static_cast<float>(attributes.min_step), greatest = static_cast<float>(attributes.max_step);
    return step < least ? least : step > greatest ? greatest : step;  // NaN stays NaN
  }
  const float* values(std::int64_t row, std::int64_t head) const {
    return floats_of_row(mamba2::kXbc, row) + head * shape.value_dim;
  }
  float* results(std::int64_t row, std::int64_t head) const { return y + (row * num_heads + head) * shape.value_dim; }
  float of_value(std::int64_t head) const { return floats(mamba2::kD)[head]; }

  const float* floats(int index) const { return in[index].as<const float>(); }
  const float* floats_of_row(int index, std::int64_t row) const { return floats(index) + row * in[index].shape[1]; }
  // B of a head's group; C lies num_groups * key_dim elements behind it.
  const float* vectors(std::int64_t row, std::int64_t head) const {
    return values(row, num_heads) + head / (num_heads / attributes.num_groups) * shape.key_dim;
  }

  const Tensor* in;
  const mamba2::Attributes attributes;
  const StateSpans spans;
  const ReplayShape shape;
  const std::int64_t num_heads;
  float* y;
  const Tensor& states;
};

}  // namespace

void mamba2(const KernelArgs& args) { replay(StateSpace(args), args.pool); }

}  // namespace tl::TL_ISA
