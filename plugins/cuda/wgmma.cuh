// Tensor cores through wgmma (sm_90a): a warpgroup multiplies 64 rows of A, in shared memory or registers, by B in
// shared memory. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
//
// Accumulators are float[N / 8][4], or int for int8. A lane of warp w of the group holds rows 16w + lane / 4 and + 8
// and, of each 8 columns, 2 * (lane % 4) and + 1, as in mma.sync; the same holds for A fragments in registers.
//
// Matrices in shared memory are column blocks of 64 elements: rows of 128 bytes whose 16-byte pieces are swizzled by
// the number of the row (swizzled()), in groups of 8 rows at addresses that are multiples of 1024.
#pragma once

#include "cuda/byte_rows.cuh"

namespace tl {

constexpr u32 kBlockRowBytes = 128;  // bytes of a row in a column block

// The offset of 16-byte piece `column` of row `row` in a matrix of `rows` rows.
__device__ __forceinline__ u32 swizzled(int row, int column, int rows) {
  return column / 8 * rows * kBlockRowBytes + row * kBlockRowBytes + (column % 8 ^ row % 8) * 16;
}

// The descriptor of a matrix at `address` with the 128-byte swizzle; groups of 8 rows are `group_bytes` apart. Column
// blocks are `block_bytes` apart, which matters only if columns are the operand's M or N.
__device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 block_bytes, u32 group_bytes = 1024) {
  return static_cast<u64>(1) << 62 | static_cast<u64>(group_bytes >> 4) << 32 |
         static_cast<u64>(block_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// The descriptor of a matrix of 8x8 submatrices of 128 contiguous bytes each. They are `k_bytes` apart along K and
// `other_bytes` along M or N, whichever of the two is contiguous within them.
__device__ __forceinline__ u64 submatrix_descriptor(u32 address, u32 k_bytes, u32 other_bytes) {
  return static_cast<u64>(other_bytes >> 4) << 32 | static_cast<u64>(k_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Orders earlier register writes before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of the latest groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of an accumulator to before this point.
__device__ __forceinline__ void pin(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ __forceinline__ void pin(int& sum) { asm volatile("" : "+r"(sum)::"memory"); }
template <class Sum, int kFragments>
__device__ __forceinline__ void pin(Sum (&d)[kFragments][4]) {
#pragma unroll
  for (int i = 0; i < kFragments * 4; ++i) pin(d[i / 4][i % 4]);
}

// Operands in shared memory have the RowType TL_ROW_TYPE; for bytes, 32 of them take the place of 16 elements. Both
// operands of bytes are K-major, and integers are not scaled.
#ifndef TL_ROW_TYPE
#define TL_ROW_TYPE 0
#endif
#if TL_ROW_TYPE == 2
#define TL_WGMMA_SHARED_TYPES "k32.s32.s8.s8"
#define TL_WGMMA_FLAGS ""
#define TL_SUM "+r"
#elif TL_ROW_TYPE == 1
#define TL_WGMMA_SHARED_TYPES "k32.f32.e4m3.e4m3"
#define TL_WGMMA_FLAGS ", 1, 1"
#define TL_SUM "+f"
#elif TL_FP16
#define TL_WGMMA_SHARED_TYPES "k16.f32.f16.f16"
#define TL_WGMMA_FLAGS ", 1, 1, 0, 0"
#define TL_SUM "+f"
#else
#define TL_WGMMA_SHARED_TYPES "k16.f32.bf16.bf16"
#define TL_WGMMA_FLAGS ", 1, 1, 0, 0"
#define TL_SUM "+f"
#endif
using TileSum = SumOf<static_cast<RowType>(TL_ROW_TYPE)>;
#define TL_F4(i) TL_SUM(d[i][0]), TL_SUM(d[i][1]), TL_SUM(d[i][2]), TL_SUM(d[i][3])
#define TL_F8(i) TL_F4(i), TL_F4(i + 1)
// TL_Fn, TL_Dn: the first n accumulators of d as asm operands, and their places in the instruction.
#define TL_F16 TL_F8(0), TL_F8(2)
#define TL_F24 TL_F16, TL_F8(4)
#define TL_F32 TL_F24, TL_F8(6)
#define TL_F40 TL_F32, TL_F8(8)
#define TL_F48 TL_F40, TL_F8(10)
#define TL_F56 TL_F48, TL_F8(12)
#define TL_F64 TL_F56, TL_F8(14)
#define TL_F72 TL_F64, TL_F8(16)
#define TL_F80 TL_F72, TL_F8(18)
#define TL_F88 TL_F80, TL_F8(20)
#define TL_F96 TL_F88, TL_F8(22)
#define TL_F104 TL_F96, TL_F8(24)
#define TL_F112 TL_F104, TL_F8(26)
#define TL_F120 TL_F112, TL_F8(28)
#define TL_F128 TL_F120, TL_F8(30)
#define TL_D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TL_D24 TL_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TL_D32 TL_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TL_D40 TL_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TL_D48 TL_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TL_D56 TL_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TL_D64 TL_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TL_D72 TL_D64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TL_D80 TL_D72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TL_D88 TL_D80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TL_D96 TL_D88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TL_D104 TL_D96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TL_D112 TL_D104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TL_D120 TL_D112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TL_D128 TL_D120 ", %120, %121, %122, %123, %124, %125, %126, %127"

// d = a * b^T, or d += a * b^T if `add`. A [64, 16] and B [N, 16] are K-major: 16 elements, or 32 bytes, of a row are
// contiguous.
#define TL_WGMMA_SHARED(n, regs, outputs, a, b, add)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                                                    \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" n TL_WGMMA_SHARED_TYPES " {" regs "}, " a ", " b \
               ", p" TL_WGMMA_FLAGS ";\n}"                                                                \
               : outputs                                                                                  \
               : "l"(a_matrix), "l"(b_matrix), "r"(static_cast<int>(accumulate)))

template <int kFragments>
__device__ __forceinline__ void wgmma_shared(TileSum (&d)[kFragments][4], u64 a_matrix, u64 b_matrix, bool accumulate) {
  static_assert(kFragments >= 4 && kFragments <= 32 && kFragments % 2 == 0);
  if constexpr (kFragments == 4) {
    TL_WGMMA_SHARED("32", TL_D16, TL_F16, "%16", "%17", "%18");
  } else if constexpr (kFragments == 6) {
    TL_WGMMA_SHARED("48", TL_D24, TL_F24, "%24", "%25", "%26");
  } else if constexpr (kFragments == 8) {
    TL_WGMMA_SHARED("64", TL_D32, TL_F32, "%32", "%33", "%34");
  } else if constexpr (kFragments == 10) {
    TL_WGMMA_SHARED("80", TL_D40, TL_F40, "%40", "%41", "%42");
  } else if constexpr (kFragments == 12) {
    TL_WGMMA_SHARED("96", TL_D48, TL_F48, "%48", "%49", "%50");
  } else if constexpr (kFragments == 14) {
    TL_WGMMA_SHARED("112", TL_D56, TL_F56, "%56", "%57", "%58");
  } else if constexpr (kFragments == 16) {
    TL_WGMMA_SHARED("128", TL_D64, TL_F64, "%64", "%65", "%66");
  } else if constexpr (kFragments == 18) {
    TL_WGMMA_SHARED("144", TL_D72, TL_F72, "%72", "%73", "%74");
  } else if constexpr (kFragments == 20) {
    TL_WGMMA_SHARED("160", TL_D80, TL_F80, "%80", "%81", "%82");
  } else if constexpr (kFragments == 22) {
    TL_WGMMA_SHARED("176", TL_D88, TL_F88, "%88", "%89", "%90");
  } else if constexpr (kFragments == 24) {
    TL_WGMMA_SHARED("192", TL_D96, TL_F96, "%96", "%97", "%98");
  } else if constexpr (kFragments == 26) {
    TL_WGMMA_SHARED("208", TL_D104, TL_F104, "%104", "%105", "%106");
  } else if constexpr (kFragments == 28) {
    TL_WGMMA_SHARED("224", TL_D112, TL_F112, "%112", "%113", "%114");
  } else if constexpr (kFragments == 30) {
    TL_WGMMA_SHARED("240", TL_D120, TL_F120, "%120", "%121", "%122");
  } else if constexpr (kFragments == 32) {
    TL_WGMMA_SHARED("256", TL_D128, TL_F128, "%128", "%129", "%130");
  }
}

// d += a * b, of float16 or of bfloat16. A [64, 16] is in registers; B [16, N] has the N elements of its rows
// contiguous.
#define TL_WGMMA_REGISTERS(n, types, regs, outputs, a, b)                                                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." types " {" regs "}, {" a "}, " b ", 1, 1, 1, 1;" \
               : outputs                                                                                         \
               : "r"(a_rows[0]), "r"(a_rows[1]), "r"(a_rows[2]), "r"(a_rows[3]), "l"(b_matrix))
#define TL_WGMMA_OF_TYPES(types)                                                   \
  if constexpr (kFragments == 8) {                                                 \
    TL_WGMMA_REGISTERS("64", types, TL_D32, TL_F32, "%32, %33, %34, %35", "%36");  \
  } else if constexpr (kFragments == 10) {                                         \
    TL_WGMMA_REGISTERS("80", types, TL_D40, TL_F40, "%40, %41, %42, %43", "%44");  \
  } else if constexpr (kFragments == 12) {                                         \
    TL_WGMMA_REGISTERS("96", types, TL_D48, TL_F48, "%48, %49, %50, %51", "%52");  \
  } else {                                                                         \
    TL_WGMMA_REGISTERS("128", types, TL_D64, TL_F64, "%64, %65, %66, %67", "%68"); \
  }

template <bool kFp16 = TL_FP16, int kFragments>
__device__ __forceinline__ void wgmma_registers(float (&d)[kFragments][4], const u32 (&a_rows)[4], u64 b_matrix) {
  static_assert(kFragments == 8 || kFragments == 10 || kFragments == 12 || kFragments == 16);
  if constexpr (kFp16) {
    TL_WGMMA_OF_TYPES("f16.f16")
  } else {
    TL_WGMMA_OF_TYPES("bf16.bf16")
  }
}

}  // namespace tl
