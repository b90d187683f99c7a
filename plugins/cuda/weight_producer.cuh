// The producer warps, which fill a ring of weight stages (cuda/weight_ring.cuh).
//
// They issue one bulk copy per row and stage, without registers in between. One warp needs copies of 1 to 2 KB: at 512
// bytes an H200 reaches 3.1 TB/s, at 1 KB 4.1, at 2 KB 4.2 (measured). For shorter copies, two warps issue half of them
// each.
#pragma once

#include "cuda/async.cuh"
#include "cuda/weight_walk.cuh"

namespace tl {

// A producer warp. Several such warps may share a stage, and groups of them take turns at stages.
//
// The ring is deep, so that copies go on while the consumers do something else, but only kInFlight stages are in flight
// at a time: every copy beyond what saturates the memory only lengthens the queues, in which everything else that a
// block reads or writes (x, barriers, results) must wait.
template <class Ring, class Product, class Op>
struct Producer {
  using Walk = WalkOf<Op>;

  const Op& op;
  RingPosition<Ring> at;
  RingPosition<Ring> landing;  // the oldest of its stages in flight
  int rows, lane;
  int turn, share;  // of which stages it copies which half tiles
  Step<Product, Op> step = {};
  int next = 0, under_way = 0;  // the number of the next stage, and how many are in flight
  u64 policy = evict_first_policy();
  GroupShare<Ring> groups = {};

  // `warp`: the number of the producer warp.
  __device__ __forceinline__ Producer(const Op& op, const RingPosition<Ring>& start, int rows, int warp, int lane)
      : op(op),
        at(start),
        landing(start),
        rows(rows),
        lane(lane),
        turn(warp / Ring::kSharers),
        share(warp % Ring::kSharers) {
    landing.advance(turn);
    advance(turn);
  }

  static constexpr int kHalves = Ring::kHalves, kMine = ceil_div(kHalves, Ring::kSharers);
  static constexpr int kInFlight = max_of(1, Ring::kInFlight / Ring::kTurns);

  // The half tiles of a stage: the first row of each, and how many rows it has.
  struct Halves {
    u64 first[kMine];
    int present[kMine];
  };
  __device__ __forceinline__ Halves halves() const {
    const int first_tile = groups.template group<Op>(step.group) * Ring::kTilesPerStage;
    Halves mine;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int half = share + i * Ring::kSharers;
      const int tile = first_tile + half / 2;
      mine.first[i] = Walk::first_row(op, step.part, tile, half % 2);
      mine.present[i] = half < kHalves ? Walk::num_rows(op, tile, half % 2) : 0;
    }
    return mine;
  }

  // Waits until its next stage may be overwritten and few enough stages are in flight.
  __device__ __forceinline__ void acquire() {
    if (Ring::kInFlight < Ring::kStages && under_way == kInFlight) {
      barrier_wait(landing.full(), landing.parity);
      landing.advance(Ring::kTurns);
      --under_way;
    }
    ++under_way;
    barrier_wait(at.empty(), at.parity ^ 1);
  }

  // Copies the contiguous rows of a half tile to the places that they have among eight. Past the last feature there is
  // nothing to copy.
  __device__ __forceinline__ void weights(const Halves& mine) {
    const int first_k = groups.part * Product::kPartK + step.chunk * Ring::kStageK;
    const u32 bytes = Product::chunk_k(step.chunk) * Ring::kWeightBits / 8;
    const u32 run_bytes = kBlock == 0 ? 0 : Product::chunk_k(step.chunk) / max_of(1, kBlock) * kBlockBytes;
    u32 copied = 0;
    if (Product::kStreamX && share == 0) {
      const int first_tile = groups.template group<Op>(step.group) * Ring::kTilesPerStage;
      copied = __popc(Walk::present(op, step.part, first_tile, rows)) * Product::chunk_k(step.chunk) * 2;
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      copied += mine.present[i] * bytes + (mine.present[i] > 0 ? kNumberKinds * run_bytes : 0);
    stage_begin(at.full(), copied);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int half = share + i * Ring::kSharers;
      const char* from =
          static_cast<const char*>(op.weight) + (mine.first[i] * Product::kIn + first_k) * Ring::kWeightBits / 8;
      const u32 place = half * 8 + static_cast<u32>(mine.first[i]) % 8;
      stage_copy_rows<8>(at.data() + place * Ring::kPitch, Ring::kPitch, from, Product::kIn * Ring::kWeightBits / 8,
                         mine.present[i], bytes, at.full(), lane, policy);
      if constexpr (kBlock != 0) {
        const u64 run = (mine.first[i] / 8 * (Product::kIn / kBlock) + first_k / kBlock) * kBlockBytes;
        const void* kinds[2] = {op.numbers.scale, op.numbers.offset};
#pragma unroll
        for (int kind = 0; kind < kNumberKinds; ++kind) {
          stage_copy_rows<1>(at.data() + Ring::kNumberOffset + (kind * kHalves + half) * Ring::kRunBytes, 0,
                             static_cast<const char*>(kinds[kind]) + run, 0, mine.present[i] > 0, run_bytes, at.full(),
                             lane, policy);
        }
      }
    }
    if (!Product::kStreamX || share > 0) stage_commit(at.full());
  }

  // The first of the warps that share a stage copies x.
  __device__ __forceinline__ void activations(const RingPosition<Ring>& to, const u16* x,
                                              const Step<Product, Op>& of_stage) {
    if (share > 0) return;
    const u16* from = x + of_stage.chunk * Ring::kStageK;
    const u32 bytes = Product::chunk_k(of_stage.chunk) * 2;
    if constexpr (Walk::kListed) {
      const u32 present =
          Walk::present(op, of_stage.part, groups.template group<Op>(of_stage.group) * Ring::kTilesPerStage, rows);
#pragma unroll 1
      for (u32 left = present; left != 0; left &= left - 1) {
        const int row = __ffs(left) - 1;
        const u16* source = from + static_cast<u64>(Walk::x_row(op, of_stage.part, row)) * Product::kIn;
        stage_copy_rows<1>(to.x_data() + row * Ring::kStagedXPitch, 0, source, 0, 1, bytes, to.full(), lane, policy);
      }
    } else {
      stage_copy_rows<Ring::kTokens>(to.x_data(), Ring::kStagedXPitch, from, Product::kIn * 2, rows, bytes, to.full(),
                                     lane, policy);
    }
    stage_commit(to.full());
  }

  __device__ __forceinline__ void advance(int stages) {
    next += stages;
    at.advance(stages);
    step.advance(stages, Walk::parts(op));
  }
  __device__ __forceinline__ void copy_stage() {
    const Halves mine = halves();
    acquire();
    weights(mine);
  }

  // Copies the weights of known_tiles(), but no more than the ring has room for: consumers empty no stage yet.
  __device__ __forceinline__ void copy_known() {
    static_assert(Walk::kWaits && Walk::kOnePart && !Product::kStreamX);
    const int known = min_of(Walk::known_tiles(op) / Ring::kTilesPerStage * Product::kChunks, Ring::kStages);
    for (; next < known; advance(Ring::kTurns)) copy_stage();
  }
  // Copies all other weights without waiting for the previous kernel; copies x only after that kernel has ended.
  __device__ __forceinline__ void copy(const u16* x) {
    const int total = groups.groups(op) * Walk::parts(op) * Product::kChunks;
    RingPosition<Ring> first = at;
    Step<Product, Op> seen = step;
    int early = 0;
    for (; next < total && (!Product::kStreamX || early < kInFlight); ++early, advance(Ring::kTurns)) copy_stage();
    if constexpr (Product::kStreamX) {
      wait_for_previous_kernel();
      for (; early > 0; --early, first.advance(Ring::kTurns), seen.advance(Ring::kTurns, Walk::parts(op))) {
        activations(first, x, seen);
      }
      for (; next < total; advance(Ring::kTurns)) {
        copy_stage();
        activations(at, x, step);
      }
    }
  }
};

}  // namespace tl
