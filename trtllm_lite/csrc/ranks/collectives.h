// What collectives compute of operands in host memory. Each rank computes a part of the result for all.
#pragma once

#include <cstdint>
#include <span>

#include "ranks/rank_meeting.h"

namespace tl {

// y of every rank is the sum of x[num_elements] of all, added in the order of the ranks. This rank computes the
// elements of its share.
void all_reduce(int rank, std::span<const RankOperands> ranks, std::int64_t num_elements);

// y[rows, y_features] of every rank has x[rows, x_features] of all side by side. This rank copies its own.
void all_gather(int rank, std::span<const RankOperands> ranks, std::int64_t rows, std::int64_t x_features,
                std::int64_t y_features);

}  // namespace tl
