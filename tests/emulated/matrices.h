// The arithmetic of tensor cores: fragments and matrices in shared memory as the PTX ISA defines them.
#pragma once

#include "machine.h"

namespace emulated {

// Conversions of 16-bit elements from and to float32, the latter with rounding to nearest even.
template <bool kHalf>
float to_float(u16 bits);
template <bool kHalf>
u16 from_float(float value);
float from_e4m3(u16 bits);

// Types of elements that wgmma multiplies. Accumulators are int for kInt8 and float for the others.
enum class Element { kBFloat16, kHalf, kE4m3, kInt8 };

struct MmaOperands {
  float* c[4];
  u32 a[4], b[2];
};

struct LoadOperands {
  u32* results[4];
  u32 address;
};

struct StoreOperands {
  u32 words[4];
  u32 address;
};

// Operations of a whole warp; lanes[i] points to the operands of lane i.
template <bool kHalf>
void multiply_m16n8k16(void* const* lanes);
void multiply_m16n8k8(void* const* lanes);  // of TF32
template <int kMatrices, bool kTransposed>
void load_matrices(void* const* lanes);     // ldmatrix
void store_matrices(void* const* lanes);    // stmatrix of four matrices
void transpose_matrix(void* const* lanes);  // movmatrix; the operands are a MatrixWord

struct MatrixWord {
  u32 from, to;
};

// One warp's 16 rows of wgmma: d[16, N] = a * b [+ d], over 32 bytes of each row of A and each column of B. A is in
// registers, or in shared memory at a descriptor.
struct WgmmaOperands {
  float* const* d;  // N / 2 accumulators, integers if the elements are int8
  u32 a[4];
  u64 a_matrix, b_matrix;
  bool in_registers, accumulate, a_transposed, b_transposed;
};

template <Element kElement>
void issue_wgmma(int columns, void* const* lanes);

}  // namespace emulated
