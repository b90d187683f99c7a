// CausalConv on a CPU. A task is a block of channels of all sequences, so that the inputs before a sequence's new
// tokens are read before the state is overwritten. The products of a result are added in the order of the kernel's
// elements, with or without a state, so that results have the same bits however a sequence is divided into steps.
#include "causal_conv_schema.h"
#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/state_spans.h"
#include "cpu/table_row.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kMaxWidth = 64;
constexpr std::int64_t kBlock = 128;  // channels of a task
static_assert(kBlock % kLanes == 0);

// A thread's memory: the kernels of a block of channels, and the inputs before the new tokens of a sequence.
struct ConvolutionScratch {
  alignas(64) float weight[kMaxWidth * kBlock];
  alignas(64) float history[kMaxWidth * kBlock];
  alignas(64) float bias[kBlock];
};
static_assert(sizeof(ConvolutionScratch) <= kScratchBytesPerThread);

// Writes columns of `rows` [count, size], which have the stride kBlock, to memory as rows.
template <typename T>
void transpose(const T* rows, std::int64_t count, std::int64_t size, float* columns) {
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t i = 0; i < size; ++i) columns[i * kBlock + row] = to_float(rows[row * size + i]);
  }
}

class Convolution {
 public:
  explicit Convolution(const KernelArgs& args)
      : inputs_(args.inputs[causal_conv::kX]),
        weight_(args.inputs[causal_conv::kWeight]),
        bias_(args.inputs[causal_conv::kBias].as<const float>()),
        y_(args.outputs[causal_conv::kY].as<float>()),
        states_(args.outputs[causal_conv::kConvStateOut]),
        attributes_(causal_conv::attributes_of(args)),
        spans_(args.inputs[causal_conv::kCuSeqlens], args.inputs[causal_conv::kPastLens],
               args.inputs[causal_conv::kBlockTables], attributes_.cache_group),
        x_(inputs_.as<const float>() + attributes_.x_first),
        pitch_(inputs_.shape[1]),
        slots_(args.inputs[causal_conv::kConvState].shape[1]),
        channels_(weight_.shape[0]),
        width_(weight_.shape[1]),
        history_(width_ - 1) {}

  std::int64_t num_tasks() const { return ceil_div(channels_, kBlock); }

  void run(std::int64_t task, ConvolutionScratch* scratch) const {
    const std::int64_t first = task * kBlock, count = min(kBlock, channels_ - first);
    load_weight(first, count, scratch);
    for (std::int64_t seq = 0; seq < spans_.num_seqs(); ++seq) {
      const StateSpan span = spans_.of(seq);
      if (span.count == 0) continue;
      load_history(span, first, count, scratch);
      for (std::int64_t token = 0; token < span.count; ++token) convolve(span, token, first, count, *scratch);
      store_inputs(span, first, count);
    }
  }

 private:
  void load_weight(std::int64_t first, std::int64_t count, ConvolutionScratch* scratch) const {
    const std::int64_t skipped = first * width_;
    switch (weight_.dtype) {
      case DType::kBFloat16:
        transpose(weight_.as<const BFloat16>() + skipped, count, width_, scratch->weight);
        break;
      case DType::kFloat16:
        transpose(weight_.as<const Float16>() + skipped, count, width_, scratch->weight);
        break;
      default:
        transpose(weight_.as<const float>() + skipped, count, width_, scratch->weight);
    }
    for (std::int64_t i = 0; i < count; ++i) scratch->bias[i] = bias_ ? bias_[first + i] : 0.0f;
  }

  // The inputs of channel `first` and those after it in the state of a sequence, of the token at `position`.
  float* stored(const StateSpan& span, std::int64_t position, std::int64_t first) const {
    return state_in(states_, span.block) + position % slots_ * channels_ + first;
  }

  void load_history(const StateSpan& span, std::int64_t first, std::int64_t count, ConvolutionScratch* scratch) const {
    for (std::int64_t j = 0; j < history_; ++j) {
      const std::int64_t position = span.past - history_ + j;
      const float* from = position < 0 ? nullptr : stored(span, position, first);
      for (std::int64_t i = 0; i < count; ++i) scratch->history[j * kBlock + i] = from ? from[i] : 0.0f;
    }
  }

  // The inputs of channel `first` and those after it, `back` tokens before token `token` of a sequence.
  const float* input(const StateSpan& span, std::int64_t token, std::int64_t back, std::int64_t first,
                     const ConvolutionScratch& scratch) const {
    const std::int64_t at = token - back;
    return at < 0 ? scratch.history + (history_ + at) * kBlock : x_ + (span.first + at) * pitch_ + first;
  }

  void convolve(const StateSpan& span, std::int64_t token, std::int64_t first, std::int64_t count,
                const ConvolutionScratch& scratch) const {
    const bool is_silu = attributes_.activation == causal_conv::Activation::kSilu;
    const float* inputs[kMaxWidth];
    for (std::int64_t j = 0; j < width_; ++j) inputs[j] = input(span, token, history_ - j, first, scratch);
    float* y = y_ + (span.first + token) * channels_ + first;
    for (std::int64_t i = 0; i < count; i += kLanes) {
      Vec sum = load(scratch.bias + i);
      for (std::int64_t j = 0; j < width_; ++j) {
        sum = fma(load(scratch.weight + j * kBlock + i), load_first(inputs[j] + i, count - i), sum);
      }
      store_first(y + i, is_silu ? silu(sum) : sum, count - i);
    }
  }

  void store_inputs(const StateSpan& span, std::int64_t first, std::int64_t count) const {
    for (std::int64_t token = span.count > slots_ ? span.count - slots_ : 0; token < span.count; ++token) {
      const float* from = x_ + (span.first + token) * pitch_ + first;
      float* to = stored(span, span.past + token, first);
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
    }
  }

  const Tensor& inputs_;
  const Tensor& weight_;
  const float* bias_;
  float* y_;
  const Tensor& states_;
  const causal_conv::Attributes attributes_;
  const StateSpans spans_;
  const float* x_;  // the first channel of the first row; rows are `pitch_` elements apart
  const std::int64_t pitch_, slots_, channels_, width_, history_;
};

}  // namespace

void causal_conv(const KernelArgs& args) {
  const Convolution convolution(args);
  args.pool->parallel_for(convolution.num_tasks(), [&](std::int64_t task, int thread) {
    convolution.run(task, static_cast<ConvolutionScratch*>(args.pool->scratch(thread)));
  });
}

}  // namespace tl::TL_ISA
