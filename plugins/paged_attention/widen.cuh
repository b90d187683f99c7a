// Converts the keys and values that many new tokens see from a cache of bytes to float16, before prefill_wgmma.cuh: see
// wide_cache.cuh. Keys of 16 bits beside values of bytes stay where they are.
//
// Bytes: 3 for each element that is converted. Floor: bytes / bandwidth. Launch: 256 threads, any grid; a warp
// converts the keys or the values of a KV head of a block at a time. Macros: TL_KV_HEADS, TL_HEAD_DIM, TL_PAGE,
// TL_BLOCK_BYTES, TL_CACHE_TYPE, TL_KEY_TYPE, TL_FP16 (1), TL_WIDE_TOKENS, and those of seen_keys.cuh.
#include "paged_attention/convert.cuh"
#include "paged_attention/sequence_search.cuh"
#include "paged_attention/wide_cache.cuh"

namespace tl {

using Raw = CacheLayout<TL_HEAD_DIM, 1>;
using Wide = CacheLayout<TL_HEAD_DIM, 2>;
constexpr int kPieces = TL_HEAD_DIM / 16;  // of a token: 16 bytes, which become two pieces of float16
constexpr int kLanePieces = TL_PAGE * kPieces / 32;
constexpr int kBatch = kLanePieces <= 8 ? kLanePieces : gcd_of(kLanePieces, 8);  // pieces that a lane loads together
constexpr int kKinds = kByteKeys ? 2 : 1;
static_assert(kByteValues && TL_PAGE * kPieces % 32 == 0);

// The offset in bytes of element d of token `token` from a block's first token.
template <class Layout>
__device__ __forceinline__ u32 offset_of(int token, int d) {
  const int row = token % kGroupTokens, bytes = Layout::kTokenBytes / TL_HEAD_DIM;
  return token / kGroupTokens * Layout::kGroupBytes + row * Layout::kRunBytes + Layout::offset(d, row) * bytes;
}

// Converts a KV head of a block. Neighbouring lanes write neighbouring pieces, so that whole sectors are written:
// pieces of a token where the layout is swizzled, otherwise pieces of neighbouring tokens.
__device__ __forceinline__ void widen(char* wide, const char* cache, int lane) {
  const bool odd = lane % 2;
#pragma unroll 1
  for (int first = lane; first < TL_PAGE * kPieces; first += 32 * kBatch) {
    int tokens[kBatch], pieces[kBatch];
    uint4 bytes[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int index = first + n * 32;
      tokens[n] = Wide::kSwizzled ? index / kPieces : index % TL_PAGE;
      pieces[n] = Wide::kSwizzled ? index % kPieces : index / TL_PAGE;
      bytes[n] = *reinterpret_cast<const uint4*>(cache + offset_of<Raw>(tokens[n], pieces[n] * 16));
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      u32 low[4], high[4];
      convert_bytes(bytes[n].x, low[0], low[1]);
      convert_bytes(bytes[n].y, low[2], low[3]);
      convert_bytes(bytes[n].z, high[0], high[1]);
      convert_bytes(bytes[n].w, high[2], high[3]);
      if constexpr (Wide::kSwizzled) {  // lanes exchange pieces, so that each has every other one
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const u32 other = __shfl_xor_sync(0xffffffffu, odd ? low[word] : high[word], 1);
          low[word] = odd ? other : low[word];
          high[word] = odd ? high[word] : other;
        }
      }
      const int d = pieces[n] * 16 - (Wide::kSwizzled && odd ? 8 : 0), next = Wide::kSwizzled ? 16 : 8;
      *reinterpret_cast<uint4*>(wide + offset_of<Wide>(tokens[n], d)) = make_uint4(low[0], low[1], low[2], low[3]);
      *reinterpret_cast<uint4*>(wide + offset_of<Wide>(tokens[n], d + next)) =
          make_uint4(high[0], high[1], high[2], high[3]);
    }
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(256)
    widen_cache(tl::u16* wide_keys, tl::u16* wide_values, const void* key_cache, const void* value_cache,
                const int* cu_seqlens, const int* past_lens, const int* block_tables, int num_seqs, int max_blocks,
                int window, int wide_blocks) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const int lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
  const SeenBlocks seen{cu_seqlens, past_lens, window};
  SequenceSearch search;
  for (int unit = uniform((blockIdx.x * blockDim.x + threadIdx.x) / 32);; unit += warps) {
    const int index = unit / (kKinds * TL_KV_HEADS), head = unit / kKinds % TL_KV_HEADS;
    const auto found = search.find(index, num_seqs, lane, [&](int s) { return seen.wide(s); });
    if (found.seq < 0 || index - found.block + seen.wide(found.seq) > wide_blocks) return;
    const int block = block_tables[static_cast<u64>(found.seq) * max_blocks + seen.first(found.seq) + found.block];
    const bool is_key = kByteKeys && unit % 2 == 0;
    const u64 to = static_cast<u64>(index) * TL_KV_HEADS + head;
    widen(reinterpret_cast<char*>(is_key ? wide_keys : wide_values) + to * (TL_PAGE * Wide::kTokenBytes),
          cache_block(is_key ? key_cache : value_cache, block) + head * (TL_PAGE * Raw::kTokenBytes), lane);
  }
}
