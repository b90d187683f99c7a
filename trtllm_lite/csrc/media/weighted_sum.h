// Sums of rows of bytes, each row multiplied by a weight.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tl {

// out[i] = Σ rows[k * stride + i] * weight k, rounded and clipped to a byte, for i < size; `digits` are the weights of
// `count` rows (media/axis_weights.h).
using WeightedSum = void (*)(const std::uint8_t* rows, std::ptrdiff_t stride, int count, const std::int8_t* digits,
                             std::uint8_t* out, std::ptrdiff_t size);

// The implementations that this machine can run, best first. Their results are equal, as sums are of whole numbers.
// The last one needs nothing; `index` counts from 0. Null beyond the last one.
WeightedSum weighted_sum(int index);

}  // namespace tl
