// Values of all heads from means of latents: see head_tile.cuh. Launch: grid (kTilesOfHeads, rows / TL_ROWS rounded
// up).
#include "latent_attention/head_tile.cuh"

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    make_values(tl::u16* y, const tl::u16* mean, const tl::u16* value_up, int rows) {
  extern __shared__ __align__(128) char memory[];
  tl::multiply_head(y, mean, value_up, blockIdx.x, blockIdx.y * tl::kRows, rows, memory);
}
