// Scratch memory of one thread that samples.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_scan.h"

namespace tl {

// Buffers that grow to the size of the vocabulary once; later rows allocate nothing.
struct SamplerWorkspace {
  RowScan raw;
  RowScan processed;
  std::vector<float> processed_logits;
  std::vector<std::uint32_t> mask;
  std::vector<double> block_sums;
  Candidates candidates;
};

}  // namespace tl
