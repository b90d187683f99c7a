// Divides work on rows into tasks that are large enough.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {

// A task of fewer elements costs less than its scheduling.
constexpr std::int64_t kMinTaskElements = 16384;

// Calls work(row) for every row of `size` elements.
template <typename Work>
void for_each_row(ThreadPool* pool, std::int64_t rows, std::int64_t size, const Work& work) {
  const std::int64_t task_rows = ceil_div(kMinTaskElements, size);
  pool->parallel_for(ceil_div(rows, task_rows), [&](std::int64_t task, int) {
    const std::int64_t last = min((task + 1) * task_rows, rows);
    for (std::int64_t row = task * task_rows; row < last; ++row) work(row);
  });
}

}  // namespace tl::TL_ISA
