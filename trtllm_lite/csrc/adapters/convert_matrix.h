// Converts matrices of adapters from the types that files have to those that engines read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtypes.h"

namespace tl {

// A row-major matrix of float32, float16 or bfloat16 at any address, as a file has it.
struct StoredMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Both write `count` rows from row `first` on, times `scale` in float32, to their place in the whole result at `to`,
// and return whether all elements that they read are finite.
//
// convert_rows keeps rows and columns, and rounds to `dtype`, one of the same three types: to the nearest, ties to
// even; what is too large for float16 becomes infinity.
bool convert_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, DType dtype,
                  std::byte* to);
// transpose_rows writes them as columns of the result [from.columns, from.rows].
bool transpose_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, float* to);

}  // namespace tl
