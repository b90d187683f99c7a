// Checks of weights with scales beyond what the operators' schemas can say.
#pragma once

#include <span>
#include <string>

#include "cpu/kernel.h"
#include "engine/records.h"

namespace tl {

// Returns an error message, or an empty string. Absent operands are null.
inline std::string scaled_weight_problem(const PlanTensor* weight, const PlanTensor* scale, const PlanTensor* offset) {
  constexpr std::int64_t kWord = 8;  // kernels read 4-bit elements by words, which must not cross the end of a block
  if (offset != nullptr && scale == nullptr) return "weight_offset: expected weight_scale with it, found none";
  if (scale == nullptr) return "";
  const std::int64_t blocks = scale->shape.back().value, block = weight->shape.back().value / blocks;
  if (blocks > kMaxWeightBlocks) {
    return "weight_scale: expected at most " + std::to_string(kMaxWeightBlocks) + " blocks of a row, found " +
           std::to_string(blocks);
  }
  if (bits_of(weight->dtype) != 4) return "";
  if (block % kWord == 0) return "";
  return "weight: expected blocks of a multiple of 8 elements of 4 bits, found " + std::to_string(block);
}

}  // namespace tl
