// Collectives over operands in host memory. Each rank computes a part of the result for all ranks.
#pragma once

#include <cstdint>
#include <span>

#include "ranks/rank_rendezvous.h"

namespace tl {

// Sets y of every rank to the sum of x[num_elements] over all ranks, added in the order of ranks. This rank computes
// its share of the elements.
void all_reduce(int rank, std::span<const RankOperands> ranks, std::int64_t num_elements);

// Concatenates the columns x[rows, x_features] of all ranks in y[rows, y_features] of every rank. This rank copies its
// own.
void all_gather(int rank, std::span<const RankOperands> ranks, std::int64_t rows, std::int64_t x_features,
                std::int64_t y_features);

}  // namespace tl
