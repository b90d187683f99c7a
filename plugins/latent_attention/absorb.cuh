// Runs before latent attention. The plain parts of queries absorb key_up (head_tile.cuh), and their rotated parts are
// stored after them. The latent of each token is normalized (RMS), its key is rotated, and both are stored in the
// caches.
//
// Bytes: those of head_tile.cuh, and for each row 4 * (latent_dim + rotary_dim) and 4 * heads * rotary_dim (16 heads:
// 6.4 KB). Floor: bytes / bandwidth. RoPE rotates pairs (i, i + rotary_dim / 2). Launch: as in head_tile.cuh, but with
// grid (kTilesOfHeads + TL_ROWS / 16, rows / TL_ROWS rounded up): the last blocks of each row of the grid append 16
// rows each to the caches. Macros: those of extents.cuh, and those of head_tile.cuh, with TL_IN the size of the plain
// part.
#include "latent_attention/extents.cuh"
#include "latent_attention/head_tile.cuh"

namespace tl {

constexpr int kHalfWords = kRotaryDim / 4, kLatentWords = kLatentDim / 2;  // words of two elements
constexpr int kAppendedRows = 16;                                          // rows that a block appends
static_assert(kRotaryDim % 4 == 0 && kLatentWords % 32 == 0);

// Rows of RoPE's tables.
struct Angles {
  const float* cos;
  const float* sin;

  // Words i and i + kHalfWords of the rotary part at `from`, rotated by the angles of row `row`.
  __device__ __forceinline__ uint2 rotated(const u32* from, int i, int row) const {
    const float2 a = unpack2(from[i]), b = unpack2(from[i + kHalfWords]);
    const float2 c = reinterpret_cast<const float2*>(cos)[row * kHalfWords + i];
    const float2 s = reinterpret_cast<const float2*>(sin)[row * kHalfWords + i];
    return make_uint2(pack2(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y),
                      pack2(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y));
  }
};

// Rotates the rotary parts of a head's queries.
__device__ __forceinline__ void rotate_queries(u16* absorbed, const u16* query, Angles angles, int head, int first,
                                               int rows) {
  const int count = min_of(rows - first, kRows);
  for (int i = threadIdx.x; i < count * kHalfWords; i += kThreads) {
    const int row = first + i / kHalfWords, word = i % kHalfWords;
    const u16* from = query + static_cast<u64>(row) * TL_X_STRIDE + kHeads * kIn + head * kRotaryDim;
    u32* to = reinterpret_cast<u32*>(absorbed + static_cast<u64>(row) * TL_Y_STRIDE + head * kQueryDim + kLatentDim);
    const uint2 two = angles.rotated(reinterpret_cast<const u32*>(from), word, row);
    to[word] = two.x;
    to[word + kHalfWords] = two.y;
  }
}

// One warp stores a token's latent and key in their slot.
__device__ __forceinline__ void append(u32* keys, u32* latents, const u32* words, const float* norm, Angles angles,
                                       int row, int slot, float epsilon, int lane) {
  u32* key_block = reinterpret_cast<u32*>(cache_block(keys, slot / TL_PAGE));
  u32* latent_block = reinterpret_cast<u32*>(cache_block(latents, slot / TL_PAGE));
  const int place = slot % TL_PAGE;
  float2 pairs[kLatentWords / 32];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kLatentWords / 32; ++i) {
    pairs[i] = unpack2(words[i * 32 + lane]);
    squares += pairs[i].x * pairs[i].x + pairs[i].y * pairs[i].y;
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, bits);
  const float inverse = rsqrtf(squares / kLatentDim + epsilon);
#pragma unroll
  for (int i = 0; i < kLatentWords / 32; ++i) {
    const int word = i * 32 + lane;
    const float2 weight = reinterpret_cast<const float2*>(norm)[word];
    latent_block[LatentLayout::place(place, word * 2) / 2] =
        pack2(pairs[i].x * inverse * weight.x, pairs[i].y * inverse * weight.y);
  }
  for (int i = lane; i < kHalfWords; i += 32) {
    const uint2 two = angles.rotated(words + kLatentWords, i, row);
    key_block[KeyLayout::place(place, i * 2) / 2] = two.x;
    key_block[KeyLayout::place(place, i * 2 + kRotaryDim / 2) / 2] = two.y;
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    absorb_queries(tl::u16* absorbed, tl::u32* keys, tl::u32* latents, const tl::u16* query, const tl::u32* latent,
                   const tl::u16* key_up, const float* norm, const float* cos, const float* sin, const int* slots,
                   float epsilon, int rows) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  const int number = blockIdx.x, first = blockIdx.y * kRows;
  const Angles angles{cos, sin};
  if (number < kTilesOfHeads) {
    multiply_head(absorbed, query, key_up, number, first, rows, memory);
    if (number % kHeadTiles == 0) rotate_queries(absorbed, query, angles, number / kHeadTiles, first, rows);
    return;
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  const int begin = first + (number - kTilesOfHeads) * kAppendedRows, end = min_of(begin + kAppendedRows, rows);
  for (int row = begin + threadIdx.x / 32; row < end; row += kThreads / 32) {
    append(keys, latents, latent + static_cast<u64>(row) * (kQueryDim / 2), norm, angles, row, slots[row], epsilon,
           threadIdx.x % 32);
  }
}
