// Encodes tensor maps, by which a GPU's copy engine (TMA, compute capability 9.0 on) reads matrices.
#pragma once

#include "cuda/device/driver.h"
#include "engine/records.h"

namespace tl::cuda {

// The driver's encoding of `map`, a tensor of `dtype` elements at `address`. Throws DeviceError.
TensorMap encode(const BoxedTensor& map, DType dtype, DevicePtr address);

}  // namespace tl::cuda
