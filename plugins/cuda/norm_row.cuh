// The RMS norm of one row, held in the registers of its block: a thread handles eight elements (a vector) at a time.
//
// y = row / sqrt(mean(row^2) + epsilon) * weight. If TL_Y_TYPE is a type of bytes (RowType), y is rounded to 16 bits
// and then quantized. `y_scale` is the scale of all rows or, with TL_ROW_SCALES, the least scale; each row's own scale
// is then written to `row_scales`. Macros: TL_HIDDEN, TL_THREADS (a multiple of 32), TL_Y_TYPE, TL_ROW_SCALES (0 or 1).
#pragma once

#include "cuda/block_max.cuh"
#include "cuda/block_sum.cuh"
#include "cuda/byte_rows.cuh"

namespace tl {

constexpr int kVectors = TL_HIDDEN / 8, kCount = ceil_div(kVectors, TL_THREADS);
constexpr RowType kYType = static_cast<RowType>(TL_Y_TYPE);
static_assert(TL_HIDDEN % 8 == 0 && TL_THREADS % 32 == 0);

// Calls use(i, vector) for the thread's i-th vector of a row, which is number `vector` in the row.
template <typename Use>
__device__ __forceinline__ void for_each_vector(const Use& use) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector < kVectors) use(i, vector);
  }
}

// a + b for eight elements, rounded to 16 bits.
__device__ __forceinline__ uint4 add8(uint4 a, uint4 b) {
  float sum[8], other[8];
  unpack8(a, sum);
  unpack8(b, other);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum[j] += other[j];
  return pack8(sum);
}

// A thread's part of the norm weight, which is the same for every row of the block.
struct NormWeight {
  float values[kCount][8];

  // The weight is a constant, so the kernel may load it before it waits for the previous one.
  __device__ __forceinline__ explicit NormWeight(const float* weight) {
    for_each_vector([&](int i, int vector) {
      const float4* from = reinterpret_cast<const float4*>(weight) + vector * 2;
      *reinterpret_cast<float4*>(values[i]) = from[0];
      *reinterpret_cast<float4*>(values[i] + 4) = from[1];
    });
  }
};

struct NormedRows {
  void* y;
  float* row_scales;
  float epsilon, y_scale;
};

// Stores results at the given pointers.
struct Here {
  template <typename T, typename Store>
  __device__ __forceinline__ void operator()(T* to, const Store& store) const {
    store(to);
  }
};

// Normalizes row `row`, which is in `packed`, and overwrites `packed`. `places(to, store)` calls store(to) for each
// place where results go. A block that normalizes several rows synchronizes between them.
template <typename Places = Here>
__device__ __forceinline__ void norm_row(uint4 (&packed)[kCount], const NormWeight& weight, u64 row, NormedRows to,
                                         const Places& places = Places()) {
  float squares = 0.0f, largest = 0.0f;
  for_each_vector([&](int i, int) {
    float values[8];
    unpack8(packed[i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
  });
  const float inverse = rsqrtf(block_sum(squares) / TL_HIDDEN + to.epsilon);
  for_each_vector([&](int i, int vector) {
    float values[8];
    unpack8(packed[i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] *= inverse * weight.values[i][j];
    packed[i] = pack8(values);
    if (TL_ROW_SCALES) largest = fmaxf(largest, largest_magnitude(packed[i]));
    if (kYType != RowType::k16Bits) return;
    places(static_cast<uint4*>(to.y) + row * kVectors + vector, [&](uint4* y) { *y = packed[i]; });
  });
  if constexpr (kYType != RowType::k16Bits) {
    if constexpr (TL_ROW_SCALES) {
      to.y_scale = scale_of_row<kYType>(block_max(largest), to.y_scale);
      if (threadIdx.x == 0) places(to.row_scales + row, [&](float* scale) { *scale = to.y_scale; });
    }
    const float factor = 1.0f / to.y_scale;
    for_each_vector([&](int i, int vector) {
      const uint2 bytes = pack8_bytes<kYType>(packed[i], factor);
      places(static_cast<uint2*>(to.y) + row * kVectors + vector, [&](uint2* y) { *y = bytes; });
    });
  }
}

}  // namespace tl
