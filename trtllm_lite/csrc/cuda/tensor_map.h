// How the copy engine of a GPU (compute capability 9.0 on) sees a matrix.
#pragma once

#include "cuda/driver.h"
#include "engine/cuda_plan.h"

namespace tl::cuda {

// The driver's form of `map`, whose tensor has elements of `dtype` and lies at `address`. Throws DeviceError.
TensorMap encode(const TensorMapRef& map, CudaDType dtype, DevicePtr address);

}  // namespace tl::cuda
