// Dequantizes 8-bit or 4-bit weights to 16-bit elements, for products of many rows: where no tiled kernel fits, and
// where dequantizing once is faster than in each tile.
//
// Bytes: 3 * N * K, or 2.5 * N * K for 4-bit weights. Floor: bytes / bandwidth. Launch: TL_THREADS
// threads, sixteen bytes of the weight each. Macros: TL_IN (elements of a row, a multiple of the elements in sixteen
// bytes), TL_THREADS, and those of cuda/weight_form.cuh. Weights are stored in the layouts of their forms, scales and
// offsets of blocks in rows8 (plugins/README.md).
#include "cuda/async.cuh"
#include "cuda/small_floats.cuh"
#include "cuda/transpose.cuh"

namespace tl {

constexpr bool kFourBits = has_four_bits(kWeightForm);
constexpr int kPiece = kFourBits ? 32 : 16;  // elements in sixteen bytes

// The scale or offset of the block that contains element `k` of `row`, or of the whole row.
__device__ __forceinline__ float number_at(const void* numbers, int row, int k) {
  if constexpr (kBlock == 0) return static_cast<const float*>(numbers)[row];
  const int at = (row / 8 * (TL_IN / max_of(1, kBlock)) + k / max_of(1, kBlock)) * 8 + row % 8;
  if constexpr (kNumberType == NumberType::kFloat32) return static_cast<const float*>(numbers)[at];
  return number_of(static_cast<const u16*>(numbers)[at]);
}

// The bits of pairs in group kEight of eight elements, out of sixteen bytes: a group of 4-bit integers is in one word;
// groups of other types have a pair in each word.
template <int kEight>
__device__ __forceinline__ u32 pair_of(u32 word) {
  if constexpr (kWeightForm == WeightForm::kE2m1) return convert_e2m1<kEight>(word);
  return convert_e4m3<kEight>(word);
}
template <int kEight>
__device__ __forceinline__ void elements_of(const u32 (&words)[4], float (&elements)[8]) {
  if constexpr (is_small_float(kWeightForm)) {
    unpack8(make_uint4(pair_of<kEight>(words[0]), pair_of<kEight>(words[1]), pair_of<kEight>(words[2]),
                       pair_of<kEight>(words[3])),
            elements);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int nibble = words[kEight] >> 4 * (j / 2 + j % 2 * 4) & 15;
      const int byte = static_cast<signed char>(words[j / 2] >> 8 * (kEight * 2 + j % 2) & 0xff);
      const int integer = kWeightForm == WeightForm::kInt4 ? (nibble ^ 8) - 8 : nibble;
      elements[j] = static_cast<float>(kFourBits ? integer : byte);
    }
  }
}

// Dequantizes the groups of eight elements from kEight on. They all belong to one block.
template <int kEight>
__device__ __forceinline__ void dequantize_eights(u32 (&groups)[4][kPiece / 8], const u32 (&words)[4], float factor,
                                                  float summand) {
  if constexpr (kEight < kPiece / 8) {
    float values[8];
    elements_of<kEight>(words, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = factor * values[j] + summand;
    const uint4 eight = pack8(values);
    groups[0][kEight] = eight.x;
    groups[1][kEight] = eight.y;
    groups[2][kEight] = eight.z;
    groups[3][kEight] = eight.w;
    dequantize_eights<kEight + 1>(groups, words, factor, summand);
  }
}

}  // namespace tl

extern "C" __global__ void dequantize(tl::u16* weight, const void* stored, const void* scale, const void* offset,
                                      int rows) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  constexpr int kPieces = TL_IN / kPiece, kEights = kPiece / 8;
  const u64 piece = static_cast<u64>(blockIdx.x) * TL_THREADS + threadIdx.x, count = static_cast<u64>(rows) * kPieces;
  u32 groups[4][kEights] = {};
  if (piece < count) {
    const int row = static_cast<int>(piece / kPieces), k = static_cast<int>(piece % kPieces) * kPiece;
    const float factor = number_at(scale, row, k), summand = TL_OFFSETS ? number_at(offset, row, k) : 0.0f;
    const uint4 loaded = static_cast<const uint4*>(stored)[piece];
    const u32 words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    dequantize_eights<0>(groups, words, factor, summand);
  }
  // Neighbouring lanes store neighbouring pieces of 16 bytes, so that whole sectors are written.
  const int lane = threadIdx.x % 32, place = lane % kEights;
#pragma unroll
  for (int part = 0; part < 4; ++part) transpose(groups[part], lane);
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const u64 from = piece - place + i;
    if (from < count)
      reinterpret_cast<uint4*>(weight)[from * kEights + place] =
          make_uint4(groups[0][i], groups[1][i], groups[2][i], groups[3][i]);
  }
}
