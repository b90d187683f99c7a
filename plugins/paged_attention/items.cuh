// The items of a step of sequences with few new tokens each: up to kItemTokens consecutive new tokens of a sequence,
// which attend to its keys together.
//
// Items are in shared memory; their numbers follow the order of tokens. Sequences without new tokens come last, and
// have no items. Items of fewer tokens take less time, but a sequence has more of them, and each reads its keys.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// For sequences of up to kNewTokens new tokens. There are at most kMaxItems_ items, of up to kItemTokens tokens or, in
// steps of few sequences, of up to kFewTokens.
template <int kMaxItems_, int kNewTokens, int kItemTokens, int kFewTokens = kItemTokens>
struct SplitItems {
  static constexpr int kMaxItems = kMaxItems_;
  static constexpr bool kHasSmaller = kFewTokens < kItemTokens && kFewTokens < kNewTokens;
  int lengths[kMaxItems];    // tokens of the sequence up to the item's last one
  u16 first[kMaxItems + 1];  // packed token with which the item begins; the last entry in use is where all tokens end
  u16 seqs[kMaxItems];

  __device__ __forceinline__ int seq_of(int item) const { return seqs[item]; }
  __device__ __forceinline__ int first_of(int item) const { return first[item]; }
  __device__ __forceinline__ int count_of(int item) const { return first[item + 1] - first[item]; }

  // All threads of the block call load(); after a barrier, one warp calls divide(). Sequence s has the new tokens
  // cu_seqlens[s] .. cu_seqlens[s + 1] - 1, of which there is at least one in all sequences together.
  __device__ __forceinline__ void load(const int* past_lens, const int* cu_seqlens, int num_seqs, int& num_items) {
    const int end = cu_seqlens[num_seqs];
    for (int s = threadIdx.x; s < num_seqs; s += blockDim.x) {
      const int begin = cu_seqlens[s], next = cu_seqlens[s + 1], past = past_lens[s];
      if (begin == next) continue;
      lengths[s] = past + next - begin;
      first[s] = begin;
      seqs[s] = s;
      if (next < end) continue;
      first[s + 1] = end;
      num_items = s + 1;
    }
  }
  // Divides sequences, which load() made one item each: into the smaller items if there are at most `most_smaller`. It
  // goes from the last to the first, because an item's number is not below that of its sequence.
  __device__ __forceinline__ void divide(int& num_items, int most_smaller) {
    const bool smaller = kHasSmaller && num_items * ceil_div(kNewTokens, kFewTokens) <= most_smaller;
    if (kNewTokens <= kItemTokens && !smaller) return;
    const int most_tokens = smaller ? kFewTokens : kItemTokens;
    const int lane = threadIdx.x % 32, num_seqs = num_items, end_token = first[num_seqs];
    int end = 0;  // one past the last item of the sequences that are left
    for (int s = lane; s < num_seqs; s += 32) end += ceil_div(count_of(s), most_tokens);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) end += __shfl_xor_sync(0xffffffffu, end, offset);
    __syncwarp();
    if (lane == 0) {
      num_items = end;
      first[end] = end_token;
    }
    for (int base = (num_seqs - 1) / 32 * 32; base >= 0; base -= 32) {
      const int s = base + lane;
      const bool is_there = s < num_seqs;
      const int begin = is_there ? first[s] : 0, length = is_there ? lengths[s] : 0;
      const int count = is_there ? (s + 1 < num_seqs ? first[s + 1] : end_token) - begin : 0;
      const int items = ceil_div(count, most_tokens);
      int through = items;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
      }
      const int all = __shfl_sync(0xffffffffu, through, 31), first_item = end - all + through - items;
      __syncwarp();
      for (int i = 0; i < items; ++i) {
        const int token = i * most_tokens;
        first[first_item + i] = begin + token;
        lengths[first_item + i] = length - count + min_of(token + most_tokens, count);
        seqs[first_item + i] = s;
      }
      end -= all;
      __syncwarp();
    }
  }
};

// For sequences of one new token each: item s is sequence s.
template <int kMaxItems_>
struct SplitItems<kMaxItems_, 1, 1> {
  static constexpr int kMaxItems = kMaxItems_;
  static constexpr bool kHasSmaller = false;
  int lengths[kMaxItems];

  __device__ __forceinline__ static int seq_of(int item) { return item; }
  __device__ __forceinline__ static int first_of(int item) { return item; }
  __device__ __forceinline__ static constexpr int count_of(int) { return 1; }
  __device__ __forceinline__ void load(const int* past_lens, const int*, int num_seqs, int& num_items) {
    for (int s = threadIdx.x; s < num_seqs; s += blockDim.x) lengths[s] = past_lens[s] + 1;
    if (threadIdx.x == 0) num_items = num_seqs;
  }
  __device__ __forceinline__ void divide(int&, int) {}
};

}  // namespace tl
