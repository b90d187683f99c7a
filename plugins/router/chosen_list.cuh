// The experts that the rows of a step have chosen, as each block of a GEMV kernel of at most 16 rows finds them by
// itself: a kernel that chose for all blocks would take longer than any of them does.
//
// Bytes: 8 * experts per row, from L2. Latency: a warp has the scores of a row and chooses its experts
// (router/chosen.cuh), or those of several rows in turn. If there is only one row, the warp also lists them; otherwise
// all warps list together what they have chosen, after a barrier. Shares are found later, when weights have
// been requested. Macros: TL_TOKENS (the most rows), TL_LIST_BYTES (the size of ChosenList), and those of
// router/scoring.cuh and router/local.cuh.
#pragma once

#include "cuda/load_rows.cuh"
#include "router/chosen.cuh"
#include "router/count.cuh"

namespace tl {

constexpr int kMostListedRows = 16;  // the most rows of a step that has such lists
constexpr int kMostChoices = TL_TOKENS * kTopK, kMostListed = min_of(kLocalExperts, kMostChoices);
static_assert(TL_TOKENS <= kMostListedRows);

// One of the rank's experts that some row has chosen.
struct ChosenExpert {
  int expert;                      // index among the rank's experts
  u32 rows;                        // bit r is set if row r has chosen it
  unsigned char slots[TL_TOKENS];  // for each such row, the index of this choice among the row's kTopK
};

// How the experts of a step's rows are chosen. Padding rows choose none.
struct StepChoice {
  ScoreRow first;
  LaneTerms terms;
  int first_local;  // the first of the rank's experts
  const int* cache_slots;
  int spare, rows;

  __device__ __forceinline__ ScoreRow scores(int row) const {
    return {first.scores + row * TL_SCORES, first.bias, first.scale, first.threshold, first.factors};
  }
  // Lane i < kTopK gets choice i of the row. Its expert is an index among all experts; -1 in padding rows.
  __device__ __forceinline__ Chosen of(int row, int lane) const {
    const bool is_left_out = is_padding(cache_slots, spare, row);
    Chosen chosen(scores(row), terms, lane);
    if (is_left_out) chosen.expert = -1;
    return chosen;
  }
};

// In shared memory.
struct ChosenList {
  static constexpr int kWords = ceil_div(kLocalExperts, 32);
  ChosenExpert experts[kMostListed];           // ordered by expert
  float shares[kMostChoices];                  // [rows, kTopK]
  float largest[TL_TOKENS], total[TL_TOKENS];  // of each row, as in Chosen
  int choices[kMostChoices];                   // [rows, kTopK]: an index among all experts; -1 in padding rows
  u32 is_listed[kWords];                       // a bit for each of the rank's experts, if there are several rows
  int count;                                   // of `experts`

  // All threads of the block clear the list; a barrier must follow before choose().
  __device__ __forceinline__ void clear() {
    if constexpr (TL_TOKENS == 1) return;
    for (int i = threadIdx.x; i < kMostListed; i += blockDim.x) experts[i].rows = 0;
    for (int i = threadIdx.x; i < kWords; i += blockDim.x) is_listed[i] = 0;
  }
  // All threads of the block fill the list except for shares; a barrier of the block must follow.
  __device__ __forceinline__ void choose(const StepChoice& choice) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (TL_TOKENS == 1) {
      if (warp == 0) list_row(choice, put_row(choice, 0, lane), lane);
      __syncwarp();  // for add_shares() of the same warp
    } else {
#pragma unroll 1
      for (int row = warp; row < choice.rows; row += blockDim.x / 32) {
        const int expert = put_row(choice, row, lane);
        if (expert >= 0) atomicOr(is_listed + expert / 32, 1u << expert % 32);
      }
      block_sync();
      list_rows(choice);
    }
  }
  // Consumer threads add the shares; a barrier of all that read them must follow.
  __device__ __forceinline__ void add_shares(const StepChoice& choice) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < choice.rows; row += kConsumerWarps) {
      const int at = row * kTopK + lane;
      const Chosen chosen(lane < kTopK ? choices[at] : 0, largest[row], total[row]);
      const float share = chosen.share(choice.scores(row), lane);
      if (lane < kTopK) shares[at] = share;
    }
  }
  // A warp counts the step, after the barrier that follows choose().
  __device__ __forceinline__ void count_step(const StepChoice& choice, Tally tally) const {
    const int lane = threadIdx.x % 32, num_choices = choice.rows * kTopK;
    for (int i = lane; i < count; i += 32) tally.add_choices(experts[i].expert, __popc(experts[i].rows));
    int busiest = 0;
#pragma unroll 1
    for (int ep_rank = 0; ep_rank < kEpSize; ++ep_rank) {
      int own = 0;
      for (int i = lane; i < num_choices; i += 32) own += choices[i] >= 0 && choices[i] / kLocalExperts == ep_rank;
      busiest = max_of(busiest, warp_sum(own));
    }
    if (lane > 0) return;
    tally.add_read(count);
    tally.add_step(busiest);
  }

 private:
  // Stores the choices of a row. Lane i < kTopK gets that of slot i, an index among the rank's experts; -1 if there is
  // none.
  __device__ __forceinline__ int put_row(const StepChoice& choice, int row, int lane) {
    const Chosen chosen = choice.of(row, lane);
    if (kNeedsTotal && lane == 0) largest[row] = chosen.largest, total[row] = chosen.total;
    if (lane >= kTopK) return -1;
    choices[row * kTopK + lane] = chosen.expert;
    return local_number(chosen.expert, choice.first_local);
  }
  // Lists the experts of the only row.
  __device__ __forceinline__ void list_row(const StepChoice& choice, int expert, int lane) {
    if (choice.rows == 0) expert = -1;
    int place = 0;
#pragma unroll
    for (int slot = 0; slot < kTopK; ++slot) {
      const int other = __shfl_sync(0xffffffffu, expert, slot);
      place += other >= 0 && other < expert;
    }
    const u32 listed = __ballot_sync(0xffffffffu, expert >= 0);
    if (expert >= 0) experts[place] = {expert, 1, {static_cast<unsigned char>(lane)}};
    if (lane == 0) count = __popc(listed);
  }
  // The number of listed experts below `expert`.
  __device__ __forceinline__ int place(int expert) const {
    int before = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const int bits = expert - word * 32;
      const u32 below = bits <= 0 ? 0 : bits >= 32 ? 0xffffffffu : (1u << bits) - 1;
      before += __popc(is_listed[word] & below);
    }
    return before;
  }
  __device__ __forceinline__ void list_rows(const StepChoice& choice) {
    for (int i = threadIdx.x; i < choice.rows * kTopK; i += blockDim.x) {
      const int expert = local_number(choices[i], choice.first_local), row = i / kTopK;
      if (expert < 0) continue;
      ChosenExpert& listed = experts[place(expert)];
      if (atomicOr(&listed.rows, 1u << row) == 0) listed.expert = expert;
      listed.slots[row] = static_cast<unsigned char>(i % kTopK);
    }
    if (threadIdx.x == 0) count = place(kLocalExperts);
  }
};
static_assert(sizeof(ChosenList) == TL_LIST_BYTES, "TL_LIST_BYTES is not the size of the list");

}  // namespace tl
