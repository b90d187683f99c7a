// The elements that bytes or four bits and their numbers mean, as 16-bit elements, for products of many rows that a
// library computes where there is no tiled kernel.
//
// Bytes: 3 * N * K, or 2.5 of four bits. Floor: those over the memory bandwidth. Launch: TL_THREADS threads, sixteen
// bytes of the weight each. Macros: TL_IN (elements of a row, a multiple of those in sixteen bytes), TL_THREADS, and
// those of cuda/weight_form.cuh. Weights lie in the layouts mma_k16 and pairs8, numbers of blocks in rows8
// (plugins/README.md).
#include "cuda/async.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

constexpr bool kFourBits = has_four_bits(kWeightForm);
constexpr int kPiece = kFourBits ? 32 : 16;  // elements of sixteen bytes

// The number of `row` and of the block that element `k` lies in, or of the row.
__device__ __forceinline__ float number_of(const void* numbers, int row, int k) {
  if constexpr (kBlock == 0) return static_cast<const float*>(numbers)[row];
  const int at = (row / 8 * (TL_IN / max_of(1, kBlock)) + k / max_of(1, kBlock)) * 8 + row % 8;
  if constexpr (kNumberType == NumberType::kFloat32) return static_cast<const float*>(numbers)[at];
  const u16 bits = static_cast<const u16*>(numbers)[at];
  if constexpr (kNumberType == NumberType::kBFloat16) return __uint_as_float(static_cast<u32>(bits) << 16);
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
  return number;
}

// Element j of eight: a word has eight of four bits, and two pairs of int8, which belong to different eights.
__device__ __forceinline__ float element_of(const u32 (&words)[4], int eight, int j) {
  if constexpr (kFourBits) {
    const int nibble = words[eight] >> 4 * (j / 2 + j % 2 * 4) & 15;
    return static_cast<float>(kWeightForm == WeightForm::kInt4 ? (nibble ^ 8) - 8 : nibble);
  }
  return static_cast<float>(static_cast<signed char>(words[j / 2] >> 8 * (eight * 2 + j % 2) & 0xff));
}

}  // namespace tl

extern "C" __global__ void dequantize(tl::u16* weight, const void* stored, const void* scale, const void* offset,
                                      int rows) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  constexpr int kPieces = TL_IN / kPiece;
  const u64 piece = static_cast<u64>(blockIdx.x) * TL_THREADS + threadIdx.x;
  const int row = static_cast<int>(piece / kPieces), k = static_cast<int>(piece % kPieces) * kPiece;
  if (row >= rows) return;
  const float factor = number_of(scale, row, k), summand = TL_OFFSETS ? number_of(offset, row, k) : 0.0f;
  const uint4 loaded = static_cast<const uint4*>(stored)[piece];
  const u32 words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  uint4* to = reinterpret_cast<uint4*>(weight) + piece * (kPiece / 8);
#pragma unroll
  for (int eight = 0; eight < kPiece / 8; ++eight) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = factor * element_of(words, eight, j) + summand;
    to[eight] = pack8(values);
  }
}
