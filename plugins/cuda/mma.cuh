// Tensor cores through mma.sync: m16n8k16, m16n8k8 for TF32, and the loads that feed them from shared memory.
//
// Fragment layout (PTX ISA, "Matrix Fragments for mma.m16n8k16"), with group = lane / 4 and pair = lane % 4:
//   A (16x16): a[0] = (row group, k 2*pair..+1), a[1] = (row group + 8, same k), a[2], a[3] = the same rows, k + 8
//   B (16x8):  b[0] = (k 2*pair..+1, column group), b[1] = k + 8
//   C (16x8):  c[0], c[1] = (row group, columns 2*pair, 2*pair + 1), c[2], c[3] = (row group + 8, same columns)
#pragma once

#include "cuda/types.cuh"

namespace tl {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ float load_shared_float(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_shared_two(u32 address) {
  float2 values;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(values.x), "=f"(values.y) : "r"(address) : "memory");
  return values;
}

__device__ __forceinline__ void load_shared(float (&values)[4], u32 address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_shared(u32 (&words)[4], u32 address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, const float (&values)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

// Loads four 8x8 matrices. Each lane passes the address of one 16-byte row: lanes 0-7 of the first matrix, lanes
// 8-15 of the second, and so on.
__device__ __forceinline__ void load_matrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x2(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Stores four 8x8 matrices whose rows are where load_matrix_x4() would load them.
__device__ __forceinline__ void store_matrix_x4(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// Transposes an 8x8 matrix: lane i holds elements 2 * (i % 4) and + 1 of row i / 4.
__device__ __forceinline__ u32 transpose_matrix(u32 rows) {
  u32 columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

// c += a * b: products of elements of float16, or of bfloat16, accumulated in float32.
template <bool kFp16 = TL_FP16>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kFp16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

constexpr u32 kTf32Bits = 0xffffe000u;  // of a float32; tensor cores ignore the others

// c += a * b for elements of TF32, as m16n8k8: with p = lane % 4, a[0] and a[1] are (row group, k p) and (row group +
// 8, k p), a[2] and a[3] the same rows with k p + 4, b0 is (k p, column group) and b1 k p + 4.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tl
