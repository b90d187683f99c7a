// Before latent attention, for each token: its latent is normalised (RMS), its key is rotated, and both go into the
// caches; rotated parts of queries go behind where their absorbed parts will be.
//
// Bytes: a row of both operands, 2 * (latent_dim + rotary_dim) of the cache and 2 * heads * rotary_dim of queries (16
// heads: 9.5 KB a token). Floor: bytes / bandwidth. A block a token. RoPE turns pairs (i, i + rotary_dim / 2). Launch:
// TL_THREADS threads. Macros: those of extents.cuh, TL_PLAIN_DIM (of a query's other part), TL_THREADS.
#include "cuda/block_sum.cuh"
#include "latent_attention/extents.cuh"

namespace tl {

constexpr int kHalfWords = kRotaryDim / 4, kLatentWords = kLatentDim / 2;  // words of two elements
static_assert(kLatentWords <= TL_THREADS);

// Words `i` of both halves of a rotated part, of the token whose row of the tables is `cos` and `sin`.
__device__ __forceinline__ void rotate(const u32* from, u32& low, u32& high, int i, const float* cos,
                                       const float* sin) {
  const float2 a = unpack2(from[i]), b = unpack2(from[i + kHalfWords]);
  const float2 c = reinterpret_cast<const float2*>(cos)[i], s = reinterpret_cast<const float2*>(sin)[i];
  low = pack2(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y);
  high = pack2(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y);
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    append_latent(tl::u16* absorbed, tl::u16* keys, tl::u16* latents, const tl::u16* query, const tl::u16* latent,
                  const float* norm, const float* cos, const float* sin, const int* slots, float epsilon) {
  using namespace tl;
  const int token = blockIdx.x;
  const u32* words = reinterpret_cast<const u32*>(latent + static_cast<u64>(token) * kQueryDim);
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = slots[token];
  cos += static_cast<u64>(token) * (kRotaryDim / 2);
  sin += static_cast<u64>(token) * (kRotaryDim / 2);
  const int word = threadIdx.x;
  float2 two = make_float2(0.0f, 0.0f);
  if (word < kLatentWords) two = unpack2(words[word]);
  const float inverse = rsqrtf(block_sum(two.x * two.x + two.y * two.y) / kLatentDim + epsilon);
  if (word < kLatentWords) {
    const float2 weight = reinterpret_cast<const float2*>(norm)[word];
    reinterpret_cast<u32*>(latents)[LatentLayout::place(row, word * 2) / 2] =
        pack2(two.x * inverse * weight.x, two.y * inverse * weight.y);
  }
  for (int i = threadIdx.x; i < kHalfWords; i += TL_THREADS) {
    u32 low, high;
    rotate(words + kLatentWords, low, high, i, cos, sin);
    reinterpret_cast<u32*>(keys)[KeyLayout::place(row, i * 2) / 2] = low;
    reinterpret_cast<u32*>(keys)[KeyLayout::place(row, i * 2 + kRotaryDim / 2) / 2] = high;
  }
  const u16* turned = query + static_cast<u64>(token) * kHeads * (TL_PLAIN_DIM + kRotaryDim) + kHeads * TL_PLAIN_DIM;
  for (int i = threadIdx.x; i < kHeads * kHalfWords; i += TL_THREADS) {
    const int head = i / kHalfWords, at = i % kHalfWords;
    u16* to = absorbed + (static_cast<u64>(token) * kHeads + head) * kQueryDim + kLatentDim;
    u32 low, high;
    rotate(reinterpret_cast<const u32*>(turned + head * kRotaryDim), low, high, at, cos, sin);
    reinterpret_cast<u32*>(to)[at] = low;
    reinterpret_cast<u32*>(to)[at + kHalfWords] = high;
  }
}
