// The rows that a step computes for an output of the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace tl {

// Rows in contiguous memory.
struct StepOutput {
  std::unique_ptr<std::uint8_t[]> bytes;
  std::int64_t rows = 0, row_bytes = 0;
};

// Rows from `begin` to `end`; without an end, up to the last.
struct RowSlice {
  std::int64_t begin = 0;
  std::optional<std::int64_t> end;
};

// The place of rows in the arena, from byte `offset` on.
struct OutputPlace {
  std::int64_t offset = 0, rows = 0, row_bytes = 0;

  std::size_t bytes() const { return static_cast<std::size_t>(rows * row_bytes); }
};

// Finds rows of the output `name` in a step of these extents. Throws ArgumentError if the plan has no such output,
// LimitError if the step had fewer rows.
OutputPlace find_output(const Plan& plan, const Extents& step, const std::string& name, const RowSlice& slice);

}  // namespace tl
