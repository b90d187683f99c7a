// The second half of LowRank: y[row] = [residual[row] +] b @ the row's sums for each part of a product, added up over
// the splits of shrink.cuh. Rows without an adapter, and parts that the adapter does not change, get the residual or 0.
//
// Bytes: an adapter's b once (2 * rank * out), and 2 to 4 * out per row. FLOPs: 2 * rank * out per row. Floor: bytes /
// bandwidth (16 adapters of rank 16, 28672 outputs: 14.7 MB, 3.3 us at 4.47 TB/s). Launch: grid (blocks of columns,
// slots + 1, ceil(rows / 64)), TL_THREADS threads; a warp has TL_UNITS times 32 columns. It loads b for the first 16
// elements of the rank before it waits for the previous kernel, because b does not depend on it, and keeps them for all
// rows.
//
// A lane has eight neighbouring columns of two rows in the fragments of four products, so that rows are read and
// written 16 bytes at a time. Along the rank, the four neighbouring elements that a lane loads stand for the four
// values of k in its fragments; as b and the sums are permuted alike, the product is unchanged.
//
// Macros: TL_PARTS, TL_OUT_0, TL_OUT_1, TL_OUT_2 (outputs of each part; 0: there is no such part), TL_MAX_RANK (a
// multiple of 8), TL_SPLITS, TL_UNITS, TL_RESIDUAL (0 or 1), TL_THREADS.
#include "cuda/mma.cuh"
#include "low_rank/group.cuh"

namespace tl {

constexpr int kOut = TL_OUT_0 + TL_OUT_1 + TL_OUT_2, kUnitColumns = 32, kWarpColumns = TL_UNITS * kUnitColumns;
constexpr int kFirstWarps = ceil_div(TL_OUT_0, kWarpColumns), kSecondWarps = ceil_div(TL_OUT_1, kWarpColumns);
static_assert(TL_OUT_0 % 8 == 0 && TL_OUT_1 % 8 == 0 && TL_OUT_2 % 8 == 0, "outputs are multiples of 8");

// The columns of a warp, from `column` on. They lie in one part, which has `width` outputs from output `begin` on.
struct Columns {
  int part, begin, width, column;

  __device__ __forceinline__ explicit Columns(int warp) : part(0), begin(0), width(TL_OUT_0) {
    if (warp >= kFirstWarps + kSecondWarps) {
      part = 2, begin = TL_OUT_0 + TL_OUT_1, width = TL_OUT_2, warp -= kFirstWarps + kSecondWarps;
    } else if (warp >= kFirstWarps) {
      part = 1, begin = TL_OUT_0, width = TL_OUT_1, warp -= kFirstWarps;
    }
    column = warp * kWarpColumns;
  }
  // The first of the eight columns of a unit that a lane stores.
  __device__ __forceinline__ int of(int unit, int lane) const { return column + unit * kUnitColumns + lane % 4 * 8; }
};

// The fragments of b for one unit of columns and 16 elements of the rank from `at` on: two registers for each product.
struct Weights {
  uint2 pairs[4];

  __device__ __forceinline__ void load(const u16* b, const Columns& columns, int unit, int at, int rank, int lane) {
    const int first = at + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = columns.column + unit * kUnitColumns + lane / 8 * 8 + j * 2 + lane / 4 % 2;
      const u16* row = b + static_cast<u64>(column) * TL_MAX_RANK + first;
      const bool present = first < rank && column < columns.width;
      pairs[j] = present ? *reinterpret_cast<const uint2*>(row) : make_uint2(0, 0);
    }
  }
};

// The fragments of two rows' sums for 16 elements of the rank from `at` on.
struct Sums {
  u32 fragment[4];

  __device__ __forceinline__ void load(const float* projected, const int (&rows)[2], int part, int at, int rank,
                                       int lane) {
    const int first = at + lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 pair = rows[half] < 0 || first >= rank ? make_uint2(0, 0) : total(projected, rows[half], part, first);
      fragment[half] = pair.x;
      fragment[2 + half] = pair.y;
    }
  }
  // Four sums of a row, added up over all parts of the depth and packed in two registers.
  __device__ __forceinline__ static uint2 total(const float* projected, int row, int part, int at) {
    const float* from = projected + static_cast<u64>(row) * TL_SPLITS * kColumns + part * TL_MAX_RANK + at;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int split = 0; split < TL_SPLITS; ++split) {
      const float4 more = *reinterpret_cast<const float4*>(from + split * kColumns);
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    return make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w));
  }
};

// y = [residual +] eight results of a row, two from each product.
__device__ __forceinline__ void store_row(u16* y, const uint4& residual, const float (&results)[4][4], int half) {
  float values[8] = {};
  if (TL_RESIDUAL) unpack8(residual, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] += results[i / 2][half * 2 + i % 2];
  *reinterpret_cast<uint4*>(y) = pack8(values);
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS, 2)
    low_rank_expand(tl::u16* y, const tl::u16* residual, const float* projected, const tl::u16* b, const int* ranks,
                    const int* rows, const int* ends, int num_slots, int slot_stride, int num_rows) {
  using namespace tl;
  const int slot = blockIdx.y, lane = threadIdx.x % 32;
  const RowGroup group(rows, ends, slot, num_slots, num_rows);
  allow_next_kernel();
  const Columns columns(blockIdx.x * kWarps + threadIdx.x / 32);
  const int first = group.first + blockIdx.z * kTileRows;
  const bool adapted = slot < num_slots && first < group.last && columns.column < columns.width;
  const int rank = adapted ? of_slot(ranks, slot, slot_stride)[columns.part] : 0;
  const u16* own = of_slot(b, slot, slot_stride) + static_cast<u64>(columns.begin) * TL_MAX_RANK;
  Weights held[TL_UNITS];
#pragma unroll
  for (int unit = 0; unit < TL_UNITS; ++unit) held[unit].load(own, columns, unit, 0, rank, lane);
  int halves[2] = {group.row(first + lane / 4), group.row(first + lane / 4 + 8)};
  wait_for_previous_kernel();
#pragma unroll 1
  for (int tile = first; tile < group.last; tile += gridDim.z * kTileRows) {
    if (tile != first) halves[0] = group.row(tile + lane / 4), halves[1] = group.row(tile + lane / 4 + 8);
    const auto place = [&](int unit, int half) {
      return static_cast<u64>(halves[half]) * kOut + columns.begin + columns.of(unit, lane);
    };
    const auto present = [&](int unit, int half) {
      return halves[half] >= 0 && columns.of(unit, lane) < columns.width;
    };
    uint4 residuals[TL_UNITS][2];
#pragma unroll
    for (int i = 0; TL_RESIDUAL && i < TL_UNITS * 2; ++i) {
      if (!present(i / 2, i % 2)) continue;
      residuals[i / 2][i % 2] = __ldcg(reinterpret_cast<const uint4*>(residual + place(i / 2, i % 2)));
    }
    Sums sums;
    sums.load(projected, halves, columns.part, 0, rank, lane);
#pragma unroll
    for (int unit = 0; unit < TL_UNITS; ++unit) {
      float results[4][4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) mma(results[j], sums.fragment, held[unit].pairs[j].x, held[unit].pairs[j].y);
#pragma unroll 1
      for (int at = 16; at < rank; at += 16) {
        Weights weights;
        Sums more;
        weights.load(own, columns, unit, at, rank, lane);
        more.load(projected, halves, columns.part, at, rank, lane);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(results[j], more.fragment, weights.pairs[j].x, weights.pairs[j].y);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (present(unit, half)) store_row(y + place(unit, half), residuals[unit][half], results, half);
      }
    }
  }
}
