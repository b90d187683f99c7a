// LowRank on a CPU: rows of a times x, then rows of b times those results, in order of rank.
#include <string.h>

#include "cpu/simd/simd.h"
#include "host/thread_pool.h"
#include "low_rank_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kRanksPerTask = 8;
constexpr std::int64_t kColumnsPerTask = 512;

struct Problem {
  const float* x;
  const std::int32_t* tokens;  // null: row i is token i
  const LowRankPart* const* adapters;
  float* y;
  float* projected;
  std::int64_t rows, in_features, out_features, rank_columns, max_rank;
  std::int64_t first_part, num_parts, ends[3];

  // The part of the row's adapter for projection `part` of the product; rank 0 if there is none.
  LowRankPart part_of(std::int64_t row, std::int64_t part) const {
    const LowRankPart* adapter = adapters[tokens != nullptr ? tokens[row] : row];
    return adapter != nullptr ? adapter[first_part + part] : LowRankPart{};
  }
};

// sums[r] = dot product of rows[r] and x, for kCount rows that share the loads of x.
template <int kCount>
TL_INLINE void dots(const float* rows, const float* x, std::int64_t size, float* sums) {
  Vec totals[kCount];
  for (Vec& total : totals) total = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vec loaded = load(x + i);
    for (int r = 0; r < kCount; ++r) totals[r] = fma(load(rows + r * size + i), loaded, totals[r]);
  }
  if (i < size) {
    const Vec loaded = load_first(x + i, size - i);
    for (int r = 0; r < kCount; ++r) totals[r] = fma(load_first(rows + r * size + i, size - i), loaded, totals[r]);
  }
  for (int r = 0; r < kCount; ++r) sums[r] = reduce_add(totals[r]);
}

void project(const Problem& problem, std::int64_t task) {
  const std::int64_t tasks_per_row = problem.rank_columns / kRanksPerTask;
  const std::int64_t row = task / tasks_per_row, column = task % tasks_per_row * kRanksPerTask;
  const LowRankPart part = problem.part_of(row, column / problem.max_rank);
  std::int64_t rank = column % problem.max_rank;
  const std::int64_t last = min(rank + kRanksPerTask, part.rank), size = problem.in_features;
  const float* x = problem.x + row * size;
  float* sums = problem.projected + row * problem.rank_columns + column;
  for (; rank + 4 <= last; rank += 4, sums += 4) dots<4>(part.a + rank * size, x, size, sums);
  for (; rank < last; ++rank, ++sums) dots<1>(part.a + rank * size, x, size, sums);
}

// y[n] = the sum over rank of sums[rank] * b[rank * width + n], for kVectors vectors of outputs.
template <int kVectors>
TL_INLINE void expand_vectors(const LowRankPart& part, const float* b, std::int64_t width, const float* sums,
                              float* y) {
  Vec totals[kVectors];
  for (Vec& total : totals) total = zero();
  for (std::int64_t rank = 0; rank < part.rank; ++rank) {
    const Vec factor = broadcast(sums[rank]);
    for (int v = 0; v < kVectors; ++v) totals[v] = fma(factor, load(b + rank * width + v * kLanes), totals[v]);
  }
  for (int v = 0; v < kVectors; ++v) store(y + v * kLanes, totals[v]);
}

// Computes outputs first .. last-1 of the row. They belong to one projection, which has `width` outputs from `begin`
// on.
void expand(const Problem& problem, std::int64_t row, std::int64_t part_index, std::int64_t first, std::int64_t last) {
  const std::int64_t begin = part_index == 0 ? 0 : problem.ends[part_index - 1];
  const std::int64_t width = problem.ends[part_index] - begin;
  const LowRankPart part = problem.part_of(row, part_index);
  const float* sums = problem.projected + row * problem.rank_columns + part_index * problem.max_rank;
  float* y = problem.y + row * problem.out_features;
  if (part.rank == 0) {
    memset(y + first, 0, static_cast<std::size_t>(last - first) * sizeof(float));
    return;
  }
  const auto b_of = [&](std::int64_t n) { return part.b + (n - begin); };
  std::int64_t n = first;
  for (; n + 4 * kLanes <= last; n += 4 * kLanes) expand_vectors<4>(part, b_of(n), width, sums, y + n);
  for (; n + kLanes <= last; n += kLanes) expand_vectors<1>(part, b_of(n), width, sums, y + n);
  if (n == last) return;
  Vec total = zero();
  for (std::int64_t rank = 0; rank < part.rank; ++rank) {
    total = fma(broadcast(sums[rank]), load_first(b_of(n) + rank * width, last - n), total);
  }
  store_first(y + n, total, last - n);
}

void expand_chunk(const Problem& problem, std::int64_t task) {
  const std::int64_t tasks_per_row = ceil_div(problem.out_features, kColumnsPerTask);
  const std::int64_t row = task / tasks_per_row, first = task % tasks_per_row * kColumnsPerTask;
  const std::int64_t last = min(first + kColumnsPerTask, problem.out_features);
  std::int64_t at = first;
  for (std::int64_t part = 0; part < problem.num_parts; ++part) {
    const std::int64_t end = min(problem.ends[part], last);
    if (at < end) expand(problem, row, part, at, end);
    at = max(at, end);
  }
}

}  // namespace

void low_rank(const KernelArgs& args) {
  if (args.adapters == nullptr) return;
  const auto attributes = low_rank::attributes_of(args);
  const Tensor& x = args.inputs[low_rank::kX];
  const Tensor &y = args.outputs[low_rank::kY], &projected = args.outputs[low_rank::kProjected];
  const std::int64_t out = y.shape[1];
  const Problem problem{x.as<const float>(),
                        args.inputs[low_rank::kLogitsIndices].as<const std::int32_t>(),
                        args.adapters,
                        y.as<float>(),
                        projected.as<float>(),
                        x.shape[0],
                        x.shape[1],
                        out,
                        projected.shape[1],
                        attributes.max_rank,
                        attributes.first_part,
                        attributes.num_parts,
                        {attributes.first_end, attributes.second_end, attributes.third_end}};
  args.pool->parallel_for(problem.rows * (problem.rank_columns / kRanksPerTask),
                          [&](std::int64_t task, int) { project(problem, task); });
  args.pool->parallel_for(problem.rows * ceil_div(out, kColumnsPerTask),
                          [&](std::int64_t task, int) { expand_chunk(problem, task); });
}

}  // namespace tl::TL_ISA
