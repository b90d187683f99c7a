// QuantizeRows on a CPU. A task is a row.
#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "quantize_rows_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::uint32_t kMagnitudeMask = 0x7fffffff, kExponentMask = 0x7f800000;

float largest_magnitude(const float* x, std::int64_t size) {
  Vec largest = zero();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    largest = max(largest, keep_bits(load_first(x + i, size - i), kMagnitudeMask));
  }
  return reduce_max(largest);
}

// The nearest integer to x, clamped to the range of int8.
TL_INLINE Vec nearest_int8(Vec x) { return round(max(broadcast(-128.0f), min(broadcast(127.0f), x))); }

// The nearest E4M3 number to x. There are eight such numbers in 2^e <= |x| < 2^(e+1), 2^(e-3) apart; below 2^-6 they
// are 2^-9 apart. Adding and subtracting 1.5 * 2^(e+20), whose last bit is worth 2^(e-3), rounds to them.
TL_INLINE Vec nearest_e4m3(Vec x) {
  const Vec within = max(broadcast(-448.0f), min(broadcast(448.0f), x));
  const Vec magic = max(broadcast(0x1p-6f), keep_bits(within, kExponentMask)) * broadcast(0x1.8p20f);
  return (within + magic) - magic;
}

template <typename Nearest>
void quantize(const float* x, float scale, float* y, std::int64_t size, const Nearest& nearest) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_first(y + i, nearest(load_first(x + i, size - i) / broadcast(scale)), size - i);
  }
}

}  // namespace

void quantize_rows(const KernelArgs& args) {
  const Tensor& x = args.inputs[quantize_rows::kX];
  const float* given = args.inputs[quantize_rows::kScale].as<const float>();
  float* y = args.outputs[quantize_rows::kY].as<float>();
  float* scales = args.outputs[quantize_rows::kYScale].as<float>();
  const auto attributes = quantize_rows::attributes_of(args);
  const auto factor = static_cast<float>(attributes.scale_factor), least = static_cast<float>(attributes.min_scale);
  const std::int64_t size = x.shape[1];
  for_each_row(args.pool, x.shape[0], size, [=, from = x.as<const float>()](std::int64_t row) {
    const float* elements = from + row * size;
    const float wanted = given ? *given : largest_magnitude(elements, size) * factor;
    const float scale = given || wanted > least ? wanted : least;
    scales[row] = scale;
    if (attributes.to == quantize_rows::To::kInt8) {
      quantize(elements, scale, y + row * size, size, nearest_int8);
    } else {
      quantize(elements, scale, y + row * size, size, nearest_e4m3);
    }
  });
}

}  // namespace tl::TL_ISA
