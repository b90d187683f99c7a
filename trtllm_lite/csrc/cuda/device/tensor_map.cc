#include "cuda/device/tensor_map.h"

namespace tl::cuda {

TensorMap encode(const BoxedTensor& map, DType dtype, DevicePtr address) {
  constexpr unsigned kRank = 2;
  const int data_type = item_size(dtype) == 1      ? kTensorMapBytes
                        : dtype == DType::kFloat16 ? kTensorMapFloat16
                                                   : kTensorMapBFloat16;
  // The innermost extent comes first; its stride is one element.
  const std::uint64_t extents[kRank] = {static_cast<std::uint64_t>(map.columns), static_cast<std::uint64_t>(map.rows)};
  const std::uint64_t strides[kRank - 1] = {extents[0] * static_cast<std::uint64_t>(item_size(dtype))};
  const unsigned box[kRank] = {static_cast<unsigned>(map.box_columns), static_cast<unsigned>(map.box_rows)};
  const unsigned element_strides[kRank] = {1, 1};
  TensorMap encoded{};
  driver().check(
      driver().tensor_map_encode(&encoded, data_type, kRank, address + static_cast<DevicePtr>(map.offset), extents,
                                 strides, box, element_strides, kTensorMapNotInterleaved, kTensorMapSwizzle128Bytes,
                                 kTensorMapPromoteTo256Bytes, kTensorMapZerosOutOfBounds),
      "describing a matrix to the copy engine");
  return encoded;
}

}  // namespace tl::cuda
