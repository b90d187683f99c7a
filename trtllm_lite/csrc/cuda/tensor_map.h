// Encodes matrices for the copy engine of a GPU (compute capability 9.0 on).
#pragma once

#include "cuda/driver.h"
#include "engine/records.h"

namespace tl::cuda {

// The driver's form of `map`, whose tensor has elements of `dtype` and lies at `address`. Throws DeviceError.
TensorMap encode(const BoxedTensor& map, DType dtype, DevicePtr address);

}  // namespace tl::cuda
