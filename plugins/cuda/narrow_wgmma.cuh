// wgmma (sm_90a) with few columns: 64 weight rows in registers by tokens in shared memory (swap-AB).
//
// Fragments of A and of the accumulators have the layout of mma.sync, 16 rows for each warp of a warpgroup; B is
// K-major, as in cuda/wgmma.cuh. An instruction takes 32 bytes of each row: 16 elements of 16 bits, or 32 bytes.
#pragma once

#include "cuda/wgmma.cuh"

namespace tl {

#define TL_NARROW_16_BITS "f32." TL_NARROW_ELEMENT "." TL_NARROW_ELEMENT
#if TL_FP16
#define TL_NARROW_ELEMENT "f16"
#else
#define TL_NARROW_ELEMENT "bf16"
#endif
#define TL_NARROW(n, type, flags, places, sums, a0, a1, a2, a3, matrix, add)                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n type " {" places \
               "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " matrix ", p" flags ";\n}"                                    \
               : sums                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
#define TL_NARROW_4(sum) sum(d[0][0]), sum(d[0][1]), sum(d[0][2]), sum(d[0][3])
#define TL_NARROW_8(sum) TL_NARROW_4(sum), sum(d[1][0]), sum(d[1][1]), sum(d[1][2]), sum(d[1][3])
#define TL_NARROW_12(sum) TL_NARROW_8(sum), sum(d[2][0]), sum(d[2][1]), sum(d[2][2]), sum(d[2][3])
#define TL_NARROW_16(sum) TL_NARROW_12(sum), sum(d[3][0]), sum(d[3][1]), sum(d[3][2]), sum(d[3][3])
#define TL_NARROW_32(sum)                                                                                              \
  TL_NARROW_16(sum), sum(d[4][0]), sum(d[4][1]), sum(d[4][2]), sum(d[4][3]), sum(d[5][0]), sum(d[5][1]), sum(d[5][2]), \
      sum(d[5][3]), sum(d[6][0]), sum(d[6][1]), sum(d[6][2]), sum(d[6][3]), sum(d[7][0]), sum(d[7][1]), sum(d[7][2]),  \
      sum(d[7][3])
#define TL_NARROW_COLUMNS(type, flags, sum)                                                                           \
  static_assert(kFragments == 1 || kFragments == 2 || kFragments == 4 || kFragments == 8);                            \
  if constexpr (kFragments == 1) {                                                                                    \
    TL_NARROW("8", type, flags, "%0, %1, %2, %3", TL_NARROW_4(sum), "%4", "%5", "%6", "%7", "%8", "%9");              \
  } else if constexpr (kFragments == 2) {                                                                             \
    TL_NARROW("16", type, flags, "%0, %1, %2, %3, %4, %5, %6, %7", TL_NARROW_8(sum), "%8", "%9", "%10", "%11", "%12", \
              "%13");                                                                                                 \
  } else if constexpr (kFragments == 4) {                                                                             \
    TL_NARROW("32", type, flags, TL_D16, TL_NARROW_16(sum), "%16", "%17", "%18", "%19", "%20", "%21");                \
  } else {                                                                                                            \
    TL_NARROW("64", type, flags, TL_D32, TL_NARROW_32(sum), "%32", "%33", "%34", "%35", "%36", "%37");                \
  }
#define TL_NARROW_FLOAT "+f"
#define TL_NARROW_INT "+r"

// d = a * b^T, or d += a * b^T if `accumulate`, for 8 * kFragments columns of type kRows.
template <RowType kRows, int kFragments>
__device__ __forceinline__ void wgmma_narrow(SumOf<kRows> (&d)[kFragments][4], const u32 (&a)[4], u64 b,
                                             bool accumulate) {
  if constexpr (kRows == RowType::kInt8) {
    TL_NARROW_COLUMNS("k32.s32.s8.s8", "", TL_NARROW_INT)
  } else if constexpr (kRows == RowType::kE4m3) {
    TL_NARROW_COLUMNS("k32.f32.e4m3.e4m3", ", 1, 1", TL_NARROW_FLOAT)
  } else {
    TL_NARROW_COLUMNS("k16." TL_NARROW_16_BITS, ", 1, 1, 0", TL_NARROW_FLOAT)
  }
}

}  // namespace tl
