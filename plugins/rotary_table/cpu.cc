// RotaryTable on a CPU.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "host/thread_pool.h"
#include "rotary_table_schema.h"

namespace tl::TL_ISA {

// The angle is a float32 product, as in training: its rounding at large positions is part of the model. Only its cosine
// and sine are computed in double precision.
void rotary_table(const KernelArgs& args) {
  const Tensor& positions = args.inputs[rotary_table::kPositionIds];
  const Tensor& inv_freq = args.inputs[rotary_table::kInvFreq];
  const std::int64_t half = inv_freq.shape[0];
  const auto attributes = rotary_table::attributes_of(args);
  const float scale = static_cast<float>(attributes.scale);
  float* cosines = args.outputs[rotary_table::kCos].as<float>();
  float* sines = args.outputs[rotary_table::kSin].as<float>();
  args.pool->parallel_for(positions.shape[0], [&](std::int64_t t, int) {
    const float position = static_cast<float>(positions.as<const std::int32_t>()[t]);
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = position * inv_freq.as<const float>()[i];
      cosines[t * half + i] = scale * static_cast<float>(cos(static_cast<double>(angle)));
      sines[t * half + i] = scale * static_cast<float>(sin(static_cast<double>(angle)));
    }
  });
}

}  // namespace tl::TL_ISA
