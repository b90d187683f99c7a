// ChannelMagnitudes: the largest |x| and the sum of |x| of each feature over all rows of 16-bit elements.
//
// Bytes: 2 * features a row. FLOPs: 2 an element. Floor: bytes / bandwidth (512 rows of 14336: 14.7 MB, 3.4 us at the
// 4.26 TB/s of a copy). A block has 64 features: eight threads read them in one row, and 32 rows are read at a time.
// Sums are added in one order whatever the card is. Launch: grid = ceil(features / 64), 256 threads. Macros:
// TL_FEATURES (a multiple of 8).
#include "cuda/async.cuh"

namespace tl {

constexpr int kVectors = TL_FEATURES / 8, kWide = 8, kDeep = 32, kColumns = 8 * kWide;
static_assert(TL_FEATURES % 8 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(256) channel_magnitudes(float* y, const uint4* x, int rows) {
  using namespace tl;
  __shared__ u32 all_largest[kDeep * kColumns];
  __shared__ float all_sums[kDeep * kColumns];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int lane = threadIdx.x % kWide, depth = threadIdx.x / kWide, vector = blockIdx.x * kWide + lane;
  // The bits of magnitudes, compared as integers, have the order of the magnitudes, with NaN as the largest.
  u32 largest[8] = {};
  float sums[8] = {};
  for (int row = depth; vector < kVectors && row < rows; row += kDeep) {
    float values[8];
    unpack8(x[static_cast<u64>(row) * kVectors + vector], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const u32 bits = __float_as_uint(values[j]) & 0x7fffffffu;
      largest[j] = bits > largest[j] ? bits : largest[j];
      sums[j] += __uint_as_float(bits);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    all_largest[depth * kColumns + lane * 8 + j] = largest[j];
    all_sums[depth * kColumns + lane * 8 + j] = sums[j];
  }
  __syncthreads();
  const int column = threadIdx.x, feature = blockIdx.x * kColumns + column;
  if (column >= kColumns || feature >= TL_FEATURES) return;
  u32 most = 0;
  float sum = 0.0f;
  for (int i = 0; i < kDeep; ++i) {
    most = all_largest[i * kColumns + column] > most ? all_largest[i * kColumns + column] : most;
    sum += all_sums[i * kColumns + column];
  }
  y[feature] = __uint_as_float(most);
  y[TL_FEATURES + feature] = sum;
}
