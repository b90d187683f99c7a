// Converts matrices of adapters from the types of files to those of engines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtypes.h"

namespace tl {

// A row-major matrix of float32, float16 or bfloat16 at any address, as in a file.
struct StoredMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// convert_rows and transpose_rows convert `count` rows from row `first` on, multiplied by `scale` in float32. They
// write them to their place in the whole result, which begins at `to`, and return whether all elements read are finite.
//
// convert_rows keeps the order of elements. Both round to `dtype`, one of the same three types: to nearest, ties to
// even; numbers too large for float16 become infinity.
bool convert_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, DType dtype,
                  std::byte* to);
// transpose_rows writes the rows as columns of the result [from.columns, from.rows].
bool transpose_rows(const StoredMatrix& from, std::int64_t first, std::int64_t count, float scale, float* to);

}  // namespace tl
