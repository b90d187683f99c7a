// The second half of LowRank: y[row] = [residual[row] +] b @ the row's sums of each part of a product, over the parts
// of the depth that shrink.cuh left; rows without an adapter, and parts that it leaves alone, get the residual or 0.
//
// Bytes: an adapter's b once, 2 * rank * out, and 2 to 4 * out a row. FLOPs: 2 * rank * out a row. Floor: bytes /
// bandwidth (16 adapters of rank 16, 28672 outputs: 14.7 MB, 3.3 us at 4.47 TB/s). Launch: grid (blocks of columns,
// slots + 1, ceil(rows / 64)), TL_THREADS threads; a warp does 32 columns. What it reads of b first is under way before
// it waits: it depends on no other kernel.
//
// A lane has eight neighbouring columns of two rows in the fragments of four products, so that rows are read and
// written 16 bytes at a time; in the rank, its four neighbouring sums take the places of k that the fragments have for
// it, on both sides.
//
// Macros: TL_PARTS, TL_OUT_0, TL_OUT_1, TL_OUT_2 (outputs of each part, 0: there is no such part), TL_MAX_RANK (a
// multiple of 8), TL_SPLITS, TL_RESIDUAL (0 or 1), TL_THREADS.
#include "cuda/mma.cuh"
#include "low_rank/group.cuh"

namespace tl {

constexpr int kOut = TL_OUT_0 + TL_OUT_1 + TL_OUT_2, kWarpColumns = 32;
constexpr int kFirstUnits = ceil_div(TL_OUT_0, kWarpColumns), kSecondUnits = ceil_div(TL_OUT_1, kWarpColumns);
static_assert(TL_OUT_0 % 8 == 0 && TL_OUT_1 % 8 == 0 && TL_OUT_2 % 8 == 0, "outputs are multiples of 8");

// The columns of a warp, which lie in one part: of `width` outputs, from output `begin` of the product on.
struct Unit {
  int part, begin, width, column;

  __device__ __forceinline__ explicit Unit(int number) : part(0), begin(0), width(TL_OUT_0) {
    if (number >= kFirstUnits + kSecondUnits) {
      part = 2, begin = TL_OUT_0 + TL_OUT_1, width = TL_OUT_2, number -= kFirstUnits + kSecondUnits;
    } else if (number >= kFirstUnits) {
      part = 1, begin = TL_OUT_0, width = TL_OUT_1, number -= kFirstUnits;
    }
    column = number * kWarpColumns;
  }
};

// Rows of b for 16 of the rank: a pair of registers for each of four products of eight columns.
struct HeldWeights {
  uint2 pairs[4];

  __device__ __forceinline__ void load(const u16* b, const Unit& unit, int first, int rank, int lane) {
    const int at = first + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = unit.column + lane / 8 * 8 + j * 2 + lane / 4 % 2;
      const u16* row = b + static_cast<u64>(column) * TL_MAX_RANK + at;
      const bool present = at < rank && column < unit.width;
      pairs[j] = present ? *reinterpret_cast<const uint2*>(row) : make_uint2(0, 0);
    }
  }
};

// Four sums of a row, over all parts of the depth, as two registers; zeros for no row and beyond the rank.
__device__ __forceinline__ uint2 sums_of(const float* projected, int row, int part, int at, int rank) {
  if (row < 0 || at >= rank) return make_uint2(0, 0);
  const float* from = projected + static_cast<u64>(row) * TL_SPLITS * kColumns + part * TL_MAX_RANK + at;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int split = 0; split < TL_SPLITS; ++split) {
    const float4 more = *reinterpret_cast<const float4*>(from + split * kColumns);
    total = make_float4(total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w);
  }
  return make_uint2(pack2(total.x, total.y), pack2(total.z, total.w));
}

// y = [residual +] eight sums of a row, two of each product.
__device__ __forceinline__ void store_sums(u16* y, const u16* residual, const float (&sums)[4][4], int half) {
  float values[8] = {};
  if (TL_RESIDUAL) unpack8(__ldcg(reinterpret_cast<const uint4*>(residual)), values);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] += sums[i / 2][half * 2 + i % 2];
  *reinterpret_cast<uint4*>(y) = pack8(values);
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS, 4)
    low_rank_expand(tl::u16* y, const tl::u16* residual, const float* projected, const tl::u16* b, const int* ranks,
                    const int* rows, const int* ends, int num_slots, int num_rows) {
  using namespace tl;
  const int slot = blockIdx.y, lane = threadIdx.x % 32;
  const RowGroup group(rows, ends, slot, num_slots, num_rows);
  const Unit unit(blockIdx.x * kWarps + threadIdx.x / 32);
  const int first = group.first + blockIdx.z * kTileRows;
  const bool adapted = slot < num_slots && first < group.last && unit.column < unit.width;
  const int rank = adapted ? ranks[slot * TL_PARTS + unit.part] : 0;
  const u16* own = b + (static_cast<u64>(slot) * kOut + unit.begin) * TL_MAX_RANK;
  HeldWeights held;
  held.load(own, unit, 0, rank, lane);
  wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll 1
  for (int tile = first; tile < group.last; tile += gridDim.z * kTileRows) {
    const int halves[2] = {group.row(tile + lane / 4), group.row(tile + lane / 4 + 8)};
    float sums[4][4] = {};
#pragma unroll 1
    for (int at = 0; at < rank; at += 16) {
      if (rank > 16) held.load(own, unit, at, rank, lane);
      const uint2 upper = sums_of(projected, halves[0], unit.part, at + lane % 4 * 4, rank);
      const uint2 lower = sums_of(projected, halves[1], unit.part, at + lane % 4 * 4, rank);
      const u32 fragment[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
      for (int j = 0; j < 4; ++j) mma(sums[j], fragment, held.pairs[j].x, held.pairs[j].y);
    }
    const int column = unit.column + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (halves[half] < 0 || column >= unit.width) continue;
      const u64 at = static_cast<u64>(halves[half]) * kOut + unit.begin + column;
      store_sums(y + at, residual + at, sums, half);
    }
  }
}
