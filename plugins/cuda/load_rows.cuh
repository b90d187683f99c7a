// The consumer warps of a GEMV kernel load the rows of x into shared memory, and normalize them if asked to.
#pragma once

#include "cuda/async.cuh"
#include "cuda/byte_rows.cuh"
#include "cuda/fixed_rows.cuh"
#include "cuda/small_floats.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kConsumerWarps = TL_CONSUMER_WARPS;
constexpr int kConsumerThreads = 32 * kConsumerWarps;

// A barrier of all threads of the block, at which they may arrive in different places of a kernel. racecheck of
// CUDA 13.0 reports reads that follow one such barrier as hazards if barriers of fewer threads came before; two in a
// row satisfy it.
__device__ __forceinline__ void block_sync() {
  asm volatile("bar.sync 0;" ::: "memory");
  if constexpr (TL_RACECHECK) asm volatile("bar.sync 0;" ::: "memory");
}
__device__ __forceinline__ void consumer_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

// Where and how rows of x are stored: as 16-bit elements, as bytes with `scales` (all equal to `scale` or, with
// TL_ROW_SCALES, from each row's largest element and at least `scale`), or as fixed-point numbers with block scales.
struct RowTarget {
  char* rows;
  float* scales;
  float scale;
};

// A thread's share of a row: vectors of 8 elements, kThreads vectors apart.
template <int kIn, int kThreads>
struct RowShare {
  static constexpr int kVectors = kIn / 8, kCount = ceil_div(kVectors, kThreads);
  __device__ __forceinline__ static int vector(int i) {
    return static_cast<int>(threadIdx.x) % kThreads + i * kThreads;
  }
  __device__ __forceinline__ static bool exists(int i) { return kVectors % kThreads == 0 || vector(i) < kVectors; }

  __device__ __forceinline__ static void load(uint4 (&raw)[kCount], const u16* row, bool present) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      raw[i] = make_uint4(0, 0, 0, 0);
      if (exists(i) && present) raw[i] = __ldcg(reinterpret_cast<const uint4*>(row) + vector(i));
    }
  }
  __device__ __forceinline__ static float sum_of_squares(const uint4 (&raw)[kCount]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float values[8];
      unpack8(raw[i], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += values[j] * values[j];
    }
    return sum;
  }
  __device__ __forceinline__ static float largest(const uint4 (&raw)[kCount]) {
    float magnitude = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) magnitude = fmaxf(magnitude, largest_magnitude(raw[i]));
    return magnitude;
  }
  // A row to be quantized with its own scale is loaded twice: a long row does not fit in a warp's registers.
  __device__ __forceinline__ static float largest_of(const u16* row) {
    float magnitude = 0.0f;
#pragma unroll 8
    for (int i = 0; i < kCount; ++i) {
      if (!exists(i)) continue;
      magnitude = fmaxf(magnitude, largest_magnitude(__ldcg(reinterpret_cast<const uint4*>(row) + vector(i))));
    }
    return magnitude;
  }
  template <RowType kRows>
  __device__ __forceinline__ static void round_to(char* target, const u16* row, float scale) {
    const float factor = 1.0f / scale;
#pragma unroll 8
    for (int i = 0; i < kCount; ++i) {
      if (!exists(i)) continue;
      const uint4 elements = __ldcg(reinterpret_cast<const uint4*>(row) + vector(i));
      reinterpret_cast<uint2*>(target)[vector(i)] = pack8_bytes<kRows>(elements, factor);
    }
  }
  // Stores 16-bit elements, or bytes of the elements divided by the scale.
  template <RowType kRows>
  __device__ __forceinline__ static void store(char* row, const uint4 (&raw)[kCount], float scale) {
    constexpr bool kBytes = kRows != RowType::k16Bits;
    const float factor = kBytes ? 1.0f / scale : 1.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!exists(i)) continue;
      if constexpr (kBytes) {
        reinterpret_cast<uint2*>(row)[vector(i)] = pack8_bytes<kRows>(raw[i], factor);
      } else {
        reinterpret_cast<uint4*>(row)[vector(i)] = raised_rows(raw[i]);
      }
    }
  }
  // Stores fixed-point numbers (cuda/fixed_rows.cuh).
  template <class Fixed>
  __device__ __forceinline__ static void store(const RowTarget& to, int m, const uint4 (&raw)[kCount], int pitch) {
    const auto put = [&](int at, uint4 bytes) {
      uint2* halves = reinterpret_cast<uint2*>(to.rows + m * pitch + Fixed::place(at));
      halves[0] = make_uint2(bytes.x, bytes.y);
      halves[8] = make_uint2(bytes.z, bytes.w);
    };
    Fixed::store(to.scales, m, raw, [](int i) { return exists(i) ? vector(i) : -1; }, put);
  }
  // raw * inverse * weight, rounded once. Weights are read through the L1 cache, which warm() has filled.
  __device__ __forceinline__ static void scale(uint4 (&raw)[kCount], float inverse, const float* weight) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // Without this, the compiler keeps every unpacked value from sum_of_squares(), loads all weights first, and
      // spills.
      asm volatile("" : "+r"(raw[i].x), "+r"(raw[i].y), "+r"(raw[i].z), "+r"(raw[i].w)::"memory");
      const float4* from = reinterpret_cast<const float4*>(weight) + (exists(i) ? vector(i) : 0) * 2;
      const float4 lo = from[0], hi = from[1];
      const float factors[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
      float values[8];
      unpack8(raw[i], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] *= inverse * factors[j];
      raw[i] = pack8(values);
    }
  }
};

// Prefetches the norm weights into the L1 cache. They are constants, so no wait for the previous kernel is needed.
template <int kIn>
__device__ __forceinline__ void warm(const float* weight) {
  for (int i = threadIdx.x * 32; i < kIn; i += kConsumerThreads * 32) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(weight + i)));
  }
}

// Stores row m of x for m < rows: x[m][i] or, with kNorm, x[m][i] / sqrt(mean(x[m]^2) + epsilon) * weight[i]. The sum
// of squares and the products are float32, rounded once. `scratch` holds 2 * kConsumerWarps * kTokens floats. Ends with
// a barrier of the consumer threads.
//
// A few rows are shared by all warps; many rows get a warp each, which needs no barrier. The loads are plain ones,
// because bulk copies would queue behind those of the ring (measured on an H200: 0.9 us more per kernel at M = 1).
template <int kIn, int kTokens, int kPitch, bool kNorm, RowType kRows, bool kFixed>
__device__ __forceinline__ void load_rows(const RowTarget& to, float* scratch, const u16* x, const float* weight,
                                          float epsilon, int rows) {
  constexpr bool kBytes = kRows != RowType::k16Bits, kRowScales = kBytes && TL_ROW_SCALES;
  using Fixed = FixedRows<kIn, kTokens>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if constexpr (kTokens >= kConsumerWarps) {
    static_assert(!kFixed, "a row takes a warp too long");
    using Share = RowShare<kIn, 32>;
#pragma unroll 1
    for (int m = warp; m < rows; m += kConsumerWarps) {
      const u16* row = x + static_cast<u64>(m) * kIn;
      float scale = to.scale;
      if constexpr (kBytes && !kNorm) {
        if constexpr (kRowScales) scale = scale_of_row<kRows>(warp_max(Share::largest_of(row)), scale);
        Share::template round_to<kRows>(to.rows + m * kPitch, row, scale);
      } else {
        uint4 raw[Share::kCount];
        Share::load(raw, row, true);
        if constexpr (kNorm) {
          Share::scale(raw, rsqrtf(warp_sum(Share::sum_of_squares(raw)) / kIn + epsilon), weight);
          if constexpr (kRowScales) scale = scale_of_row<kRows>(warp_max(Share::largest(raw)), scale);
        }
        Share::template store<kRows>(to.rows + m * kPitch, raw, scale);
      }
      if (kBytes && lane == 0) to.scales[m] = scale;
    }
  } else {
    using Share = RowShare<kIn, kConsumerThreads>;
    uint4 raw[kTokens][Share::kCount];
#pragma unroll
    for (int m = 0; m < kTokens; ++m) Share::load(raw[m], x + static_cast<u64>(m) * kIn, m < rows);
    if constexpr (kNorm) {
#pragma unroll
      for (int m = 0; m < kTokens; ++m) {
        const float sum = warp_sum(Share::sum_of_squares(raw[m]));
        if (lane == 0) scratch[m * kConsumerWarps + warp] = sum;
      }
      consumer_sync();
#pragma unroll
      for (int m = 0; m < kTokens; ++m) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kConsumerWarps; ++w) sum += scratch[m * kConsumerWarps + w];
        Share::scale(raw[m], rsqrtf(sum / kIn + epsilon), weight);
      }
    }
    float* magnitudes = scratch + kTokens * kConsumerWarps;
    if constexpr (kRowScales) {
#pragma unroll
      for (int m = 0; m < kTokens; ++m) {
        const float magnitude = warp_max(Share::largest(raw[m]));
        if (lane == 0) magnitudes[m * kConsumerWarps + warp] = magnitude;
      }
      consumer_sync();
    }
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      float scale = to.scale;
      if constexpr (kRowScales) {
        float magnitude = 0.0f;
#pragma unroll
        for (int w = 0; w < kConsumerWarps; ++w) magnitude = fmaxf(magnitude, magnitudes[m * kConsumerWarps + w]);
        scale = scale_of_row<kRows>(magnitude, to.scale);
      }
      if (m < rows) {
        if constexpr (kFixed) {
          Share::template store<Fixed>(to, m, raw[m], kPitch);
        } else {
          Share::template store<kRows>(to.rows + m * kPitch, raw[m], scale);
        }
      }
      if (kBytes && threadIdx.x == 0) to.scales[m] = scale;
    }
  }
  consumer_sync();
}

}  // namespace tl
