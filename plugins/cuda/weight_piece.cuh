// Loads a fragment of the weights for the tensor cores from a stage of a ring in shared memory.
#pragma once

#include "cuda/int4.cuh"
#include "cuda/small_floats.cuh"
#include "cuda/weight_form.cuh"

namespace tl {

// The low and the high nibbles, as bytes, of words of eight 4-bit weights in the layout pairs8. Signed nibbles become
// 16 times their value.
template <WeightForm kForm>
struct NibbleBytes {
  static constexpr bool kSigned = kForm == WeightForm::kInt4;
  static constexpr u32 kMask = kSigned ? 0xf0f0f0f0u : 0x0f0f0f0fu;
  __device__ __forceinline__ static u32 low(u32 word) { return (kSigned ? word << 4 : word) & kMask; }
  __device__ __forceinline__ static u32 high(u32 word) { return (kSigned ? word : word >> 4) & kMask; }
};

// A piece of 16 weight rows, 32 bytes of each, as this lane loads it, and its conversion for products.
//
// The elements of a row may be multiplied in any order that is the same for the weight and for x. For 4-bit integers,
// lane q of each four takes elements 8q to 8q + 7 of 32, which are one word, in two products. Words of other types are
// already in the order of the tensor cores.
template <class Ring>
struct WeightPiece {
  static constexpr int kProducts = Ring::kPieceK / Ring::kProductK;
  static constexpr bool kSigned = Ring::kForm == WeightForm::kInt4;
  u32 words[4];  // the first halves of rows 0-7 and 8-15, then the second halves

  // The offset of this lane's row from the place of the first row.
  __device__ __forceinline__ static u32 place(int lane) { return (lane % 16) * Ring::kPitch + lane / 16 * 16; }
  __device__ __forceinline__ void load(u32 from) { load_matrix_x4(words, from); }
  // Like place(), for rows 0-7 alone.
  __device__ __forceinline__ static u32 half_place(int lane) { return lane % 8 * Ring::kPitch + lane / 8 % 2 * 16; }
  __device__ __forceinline__ void load_half(u32 from) {
    u32 both[2];
    load_matrix_x2(both, from);
    words[0] = both[0], words[2] = both[1];
    words[1] = words[3] = 0;
  }
  template <int kProduct>
  __device__ __forceinline__ void convert(u32 (&a)[4], u32 mask) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if constexpr (Ring::kForm == WeightForm::kE2m1) {
        const u32 word = words[kProduct / 2 * 2 + row];
        a[row] = lowered_e2m1<kProduct % 2 * 2>(word);
        a[row + 2] = lowered_e2m1<kProduct % 2 * 2 + 1>(word);
      } else if constexpr (Ring::kForm == WeightForm::kE4m3) {
        a[row] = lowered_e4m3<0>(words[kProduct * 2 + row]);
        a[row + 2] = lowered_e4m3<1>(words[kProduct * 2 + row]);
      } else if constexpr (Ring::kFourBits) {
        const u32 word = words[kProduct / 2 * 2 + row];
        a[row] = convert_int4<kSigned, kProduct % 2 * 2>(word, mask);
        a[row + 2] = convert_int4<kSigned, kProduct % 2 * 2 + 1>(word, mask);
      } else if constexpr (Ring::kForm == WeightForm::kInt8 || Ring::kForm == WeightForm::kInt8Blocks) {
        convert_int8(words[kProduct * 2 + row], a[row], a[row + 2]);
      } else {
        a[row] = words[row];
        a[row + 2] = words[row + 2];
      }
    }
  }
  // Like convert(), for 4-bit integers, without subtracting the constant of raised_int4().
  template <int kProduct>
  __device__ __forceinline__ void raise(u32 (&a)[4], u32 mask) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const u32 word = words[kProduct / 2 * 2 + row];
      a[row] = raised_int4<kSigned, kProduct % 2 * 2>(word, mask);
      a[row + 2] = raised_int4<kSigned, kProduct % 2 * 2 + 1>(word, mask);
    }
  }
  // The operand of wgmma: like convert(), but with 4-bit weights as bytes.
  template <int kProduct>
  __device__ __forceinline__ void take(u32 (&a)[4]) const {
    if constexpr (Ring::kFourBits) {
      using Bytes = NibbleBytes<Ring::kForm>;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        a[row] = Bytes::low(words[kProduct * 2 + row]);
        a[row + 2] = Bytes::high(words[kProduct * 2 + row]);
      }
    } else {
      convert<kProduct>(a, 0);
    }
  }
};

}  // namespace tl
