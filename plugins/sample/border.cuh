// The border of top_k and top_p in a row, by narrowing a range of keys to a sixteenth in each pass over the row.
//
// top_k keeps every token that ties with the k-th. top_p keeps the smallest set of the most likely tokens whose share
// of the weight reaches top_p; of tokens that tie at its border, lower ids come first (as in
// csrc/sampling/truncation.h).
#pragma once

#include "sample/row.cuh"

namespace tl {

constexpr int kBins = 16;
constexpr int kCountShift = 48;  // a thread's bin: number of tokens above, sum of weights below
constexpr u32 kBinBytes = kBins * kThreads * 8;
static_assert(TL_VOCAB <= kThreads * 4096, "a thread's weights must stay below 2^48");

struct Bins {
  u32 bounds[kBins + 1];  // keys bounds[i] to bounds[i + 1] - 1 are of bin i
  u64 counts[kBins];
  u64 weights[kBins];
  u64 block_counts[kBins];  // this block's part of `counts`
  u64 block_weights[kBins];
};

// A range of keys, and how it is cut: evenly by value while the range is wide, because even cuts by key would spend
// most bins on values near zero; then by key, until a single key is left.
struct Range {
  u32 low, high;  // keys low to high - 1
  bool by_value;
  float base, width, per_width;
  int shift;

  __device__ __forceinline__ Range(u32 from, u32 to, bool value) : low(from), high(to), by_value(value) {
    base = from_sort_bits(low);
    width = (from_sort_bits(high - 1) - base) / kBins;
    per_width = 1.0f / width;
    shift = max_of(0, 28 - __clz(high - low - 1));
  }
  __device__ __forceinline__ u32 bound(int bin) const {
    if (bin == 0) return low;
    if (bin == kBins) return high;
    const u64 key = by_value ? sort_bits(fmaf(static_cast<float>(bin), width, base))
                             : static_cast<u64>(low) + (static_cast<u64>(bin) << shift);
    return key < low ? low : key > high ? high : static_cast<u32>(key);
  }
  __device__ __forceinline__ int bin_of(const u32 (&bounds)[kBins + 1], u32 key, float value) const {
    const int estimate =
        by_value ? static_cast<int>((value - base) * per_width) : static_cast<int>((key - low) >> shift);
    int bin = estimate < 0 ? 0 : min_of(estimate, kBins - 1);
    while (key < bounds[bin]) --bin;
    while (key >= bounds[bin + 1]) ++bin;
    return bin;
  }
};

// Sums the row's tokens of the range into `bins`. `columns` is shared memory of kBinBytes: one column per thread,
// without atomics.
__device__ __forceinline__ void fill_bins(const Row& row, const Range& range, Bins& bins, u64* columns) {
  u64* mine = columns + threadIdx.x;
  __syncthreads();  // the last use of bins and columns is over
#pragma unroll
  for (int i = 0; i < kBins; ++i) mine[i * kThreads] = 0;
  if (threadIdx.x <= kBins) bins.bounds[threadIdx.x] = range.bound(threadIdx.x);
  __syncthreads();
  const float skip = row.surely_below({range.low});
  visit_row(row.logits, cluster_rank() * kThreads + threadIdx.x, kBlocks * kThreads, [&](int id, float logit) {
    if (!(logit >= skip) || !row.allows(id)) return;
    const float value = row.scaled(logit);
    const u32 key = sort_bits(value);
    if (key < range.low || key >= range.high) return;
    const u64 weight = row.weight(row.likelihood(value));
    mine[range.bin_of(bins.bounds, key, value) * kThreads] += (1ull << kCountShift) + weight;
  });
  __syncthreads();
  static_assert(kBins == kWarps, "a warp sums a bin");
  u64 count = 0, weight = 0;
  for (int i = threadIdx.x % 32; i < kThreads; i += 32) {
    const u64 packed = columns[threadIdx.x / 32 * kThreads + i];
    count += packed >> kCountShift;
    weight += packed & ((1ull << kCountShift) - 1);
  }
  count = warp_sum(count);
  weight = warp_sum(weight);
  if (threadIdx.x % 32 == 0) {
    bins.block_counts[threadIdx.x / 32] = count;
    bins.block_weights[threadIdx.x / 32] = weight;
  }
  cluster_sync();
  if (threadIdx.x < kBins) {
    u64 counts = 0, weights = 0;
#pragma unroll
    for (int rank = 0; rank < kBlocks; ++rank) {
      counts += load_of_block(bins.block_counts + threadIdx.x, rank);
      weights += load_of_block(bins.block_weights + threadIdx.x, rank);
    }
    bins.counts[threadIdx.x] = counts;
    bins.weights[threadIdx.x] = weights;
  }
  cluster_sync();
}

// Among `count` tokens that tie at `key`, those of lowest id whose weights make up for `missing`.
__device__ __forceinline__ Border among_ties(const Row& row, u32 key, u64 count, u64 weight, u64 missing) {
  const u64 each = weight / count, needed = (missing + each - 1) / each;
  if (needed >= count) return {key};
  const auto ties = [&](int id, float logit) -> u64 { return sort_bits(row.scaled(logit)) == key && row.allows(id); };
  return {key, find_by_sum(row.logits, ties, [&](u64) { return needed - 1; })};
}

// The border of the tokens from `border` on whose sum reaches a target: the count `top_k` or, if that is 0, the share
// `top_p` of all their weight. All threads get the same border. (One copy: it is large, and called twice.)
__device__ __noinline__ Border narrow(const Row& row, const Border& border, int top_k, float top_p, u64* columns) {
  __shared__ Bins bins;
  u32 low = border.key, high = sort_bits(row.max_scaled) + 1;
  u64 target = top_k, above = 0;
  for (int pass = 0;; ++pass) {
    fill_bins(row, Range(low, high, pass < 2), bins, columns);
    if (pass == 0 && top_k == 0) {
      u64 total = 0;
      for (int i = 0; i < kBins; ++i) total += bins.weights[i];
      const u64 share = static_cast<u64>(ceil(static_cast<double>(total) * top_p));
      target = share == 0 ? 1 : share;
    }
    int bin = kBins - 1;
    const auto sum = [&] { return top_k > 0 ? bins.counts[bin] : bins.weights[bin]; };
    for (; bin >= 0 && above + sum() < target; --bin) above += sum();
    if (bin < 0) return {low};  // fewer than asked for
    low = bins.bounds[bin];
    high = bins.bounds[bin + 1];
    if (bins.counts[bin] == 1 || above + sum() == target) return {low};
    if (high - low == 1) {
      if (top_k > 0) return {low};
      return among_ties(row, low, bins.counts[bin], bins.weights[bin], target - above);
    }
  }
}

}  // namespace tl
