// Rowwise on a CPU: a piece of a row goes through all steps of the program at a time, so that it stays in the L1 cache.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd/activation.h"
#include "host/thread_pool.h"
#include "program.h"
#include "rowwise_schema.h"

namespace tl::TL_ISA {
namespace {

using rowwise::Operation;

constexpr std::int64_t kPiece = 256;
// With fewer pieces, a task would cost less than its scheduling.
constexpr std::int64_t kTaskPieces = 64;

// Elements first .. first + count - 1 of row `row`.
struct Piece {
  std::int64_t row, first, count;
};

template <typename Function>
TL_INLINE void apply(float* x, std::int64_t count, const Function& function) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(x + i, function(load(x + i)));
}

template <typename Function>
TL_INLINE void combine(float* x, const float* y, std::int64_t count, const Function& function) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(x + i, function(load(x + i), load(y + i)));
}

TL_INLINE Vec sqrt_lanes(Vec x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = sqrtf(x[lane]);
  return x;
}

void push(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(to + i, load_first(from + i, count - i));
}

void push(const std::uint8_t* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < ceil_div(count, kLanes) * kLanes; ++i) to[i] = i < count ? from[i] : 0.0f;
}

// Pushes a piece of rows, which begins with element `at`.
void push_rows(const Tensor& rows, std::int64_t at, std::int64_t count, float* to) {
  if (rows.dtype == DType::kUint8) return push(rows.as<const std::uint8_t>() + at, count, to);
  push(rows.as<const float>() + at, count, to);
}

// Applies a unary operation in place.
void apply(Operation operation, float* x, std::int64_t count) {
  const Vec one = broadcast(1.0f);
  switch (operation) {
    case Operation::kNeg:
      return apply(x, count, [](Vec v) { return zero() - v; });
    case Operation::kTanh:
      return apply(x, count, [](Vec v) { return tanh(v); });
    case Operation::kGelu:
      return apply(x, count, [](Vec v) { return gelu(v); });
    case Operation::kGeluTanh:
      return apply(x, count, [](Vec v) { return gelu_tanh(v); });
    case Operation::kSilu:
      return apply(x, count, [](Vec v) { return silu(v); });
    case Operation::kSigmoid:
      return apply(x, count, [=](Vec v) { return one / (one + exp(zero() - v)); });
    case Operation::kRelu:
      return apply(x, count, [](Vec v) { return max(zero(), v); });
    case Operation::kExp:
      return apply(x, count, [](Vec v) { return exp(v); });
    case Operation::kSqrt:
      return apply(x, count, [](Vec v) { return sqrt_lanes(v); });
    default:
      return apply(x, count, [=](Vec v) { return one / v; });
  }
}

// x = x operation y.
void combine(Operation operation, float* x, const float* y, std::int64_t count) {
  switch (operation) {
    case Operation::kAdd:
      return combine(x, y, count, [](Vec a, Vec b) { return a + b; });
    case Operation::kSub:
      return combine(x, y, count, [](Vec a, Vec b) { return a - b; });
    case Operation::kMul:
      return combine(x, y, count, [](Vec a, Vec b) { return a * b; });
    default:
      return combine(x, y, count, [](Vec a, Vec b) { return a / b; });
  }
}

void run(const rowwise::Program& program, std::int64_t x1_first, const KernelArgs& args, const Piece& piece) {
  alignas(64) float stack[rowwise::kMaxDepth][kPiece];
  const std::int64_t features = args.inputs[rowwise::kX0].shape[1], count = piece.count;
  const std::int64_t at = piece.row * features + piece.first;
  const Tensor& x1 = args.inputs[rowwise::kX1];
  int depth = 0;
  for (int i = 0; i < program.size; ++i) {
    const auto [operation, index] = program.steps[i];
    switch (operation) {
      case Operation::kRow:
        if (index == 1) {
          push_rows(x1, piece.row * x1.shape[1] + x1_first + piece.first, count, stack[depth++]);
        } else {
          push_rows(args.inputs[rowwise::kX0 + index], at, count, stack[depth++]);
        }
        break;
      case Operation::kVector:
        push(args.inputs[rowwise::kV0 + index].as<const float>() + piece.first, count, stack[depth++]);
        break;
      case Operation::kConstant: {
        const Vec constant = broadcast(args.inputs[rowwise::kConstants].as<const float>()[index]);
        apply(stack[depth++], count, [=](Vec) { return constant; });
        break;
      }
      case Operation::kAdd:
      case Operation::kSub:
      case Operation::kMul:
      case Operation::kDiv:
        --depth;
        combine(operation, stack[depth - 1], stack[depth], count);
        break;
      default:
        apply(operation, stack[depth - 1], count);
    }
  }
  float* y = args.outputs[rowwise::kY].as<float>() + at;
  for (std::int64_t i = 0; i < count; i += kLanes) store_first(y + i, load(stack[0] + i), count - i);
}

}  // namespace

void rowwise(const KernelArgs& args) {
  const auto attributes = tl::rowwise::attributes_of(args);
  const tl::rowwise::Program program = tl::rowwise::parse(attributes.program);
  const Tensor& x = args.inputs[tl::rowwise::kX0];
  const std::int64_t features = x.shape[1], pieces_per_row = ceil_div(features, kPiece);
  const std::int64_t pieces = x.shape[0] * pieces_per_row;
  args.pool->parallel_for(ceil_div(pieces, kTaskPieces), [&](std::int64_t task, int) {
    const std::int64_t last = min((task + 1) * kTaskPieces, pieces);
    for (std::int64_t piece = task * kTaskPieces; piece < last; ++piece) {
      const std::int64_t first = piece % pieces_per_row * kPiece;
      run(program, attributes.x1_first, args, {piece / pieces_per_row, first, min(kPiece, features - first)});
    }
  });
}

}  // namespace tl::TL_ISA
