// How one warp chooses the experts of a row, for any number of rows.
//
// Macros: those of router/scoring.cuh and router/local.cuh.
#pragma once

#include "router/chosen.cuh"
#include "router/count.cuh"

namespace tl {

struct RowChoice {
  int* ids;       // [rows, kTopK]: index among the rank's experts, or -1
  float* shares;  // [rows, kTopK]
  ScoreRow first;
  LaneTerms terms;
  int first_local;  // the first of the rank's experts

  // Lane i < kTopK gets choice i of the row, an index among all experts; -1 if the row is left out.
  __device__ __forceinline__ int of(int row, bool is_left_out, int lane) const {
    ScoreRow scores = first;
    scores.scores += static_cast<u64>(row) * TL_SCORES;
    const Chosen chosen(scores, terms, lane);
    const float share = chosen.share(scores, lane);
    if (lane < kTopK) {
      ids[row * kTopK + lane] = is_left_out ? -1 : local_number(chosen.expert, first_local);
      shares[row * kTopK + lane] = share;
    }
    return is_left_out ? -1 : chosen.expert;
  }
};

}  // namespace tl
