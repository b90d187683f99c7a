// Puts the features of all ranks side by side in y[row]; features beyond those of y are left out. `x` has the float32
// rows of one rank after those of another: [ranks, rows, part].
//
// Bytes: 8 * elements of y. Floor: bytes / bandwidth. Launch: grid = rows x ranks. `part` is a multiple of 4.
#include "cuda/async.cuh"

extern "C" __global__ void side_by_side(float* y, const float* x, int rows, int part, int features) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = blockIdx.x, rank = blockIdx.y;
  const int first = static_cast<int>(rank) * part, rest = features - first, count = rest < part ? rest : part;
  const float* from = x + (rank * static_cast<u64>(rows) + row) * static_cast<u64>(part);
  float* to = y + row * static_cast<u64>(features) + first;
  if (features % 4 != 0) {  // rows of y do not begin at multiples of 16 bytes
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
    return;
  }
  for (int i = threadIdx.x * 4; i < count; i += blockDim.x * 4) {
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  }
}
