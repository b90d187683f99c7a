// Products of rows with the weights of their chosen experts, for GroupedGatedLinear and GroupedLinear.
//
// Experts are computed one after the other: an expert's rows are gathered and multiplied as if there were no others.
// Experts with a few rows are multiplied together (row_groups.h), with equal bits, so that a row's result does not
// depend on what other rows have chosen. An expert without rows costs only the search for them.
#pragma once

#include <string.h>

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/products/products.h"
#include "cpu/products/row_groups.h"
#include "cpu/row_tasks.h"

namespace tl::TL_ISA {

struct Experts {
  const Tensor& ids;           // [rows, top_k]
  const PackedWeight& packed;  // [experts, …, in_features], `panels` panels each
  std::int64_t panels;
  const Tensor& gathered;  // room for rows of in_features
  const Tensor& members;   // room for one number per row
  std::int64_t first;      // first expert in `weight`; other ids are skipped

  // Calls finish(sums, member, panel) for the members and panels of each expert, in order of experts. A member is row *
  // top_k + slot for a row that has the expert in that slot; its activations are at row_of(member).
  template <typename RowOf, typename Finish>
  void multiply_each(const KernelArgs& args, const RowOf& row_of, const Finish& finish) const {
    Few few;
    const std::int64_t most = min(kMostRowsOfGroup, most_rows_of_groups(args, depth(), packed));
    for (std::int64_t expert = 0; expert < packed.weight.shape[0]; ++expert) {
      const std::int64_t count = find_members(expert);
      if (count == 0) continue;
      const bool is_few = count <= most;
      if (!is_few || !few.rows.has_room(count, most_rows_of_groups(args, depth(), packed))) {
        multiply_few(args, &few, finish);
      }
      if (is_few) {
        add_few(expert, count, row_of, &few);
      } else {
        multiply_many(args, expert, count, row_of, finish);
      }
    }
    multiply_few(args, &few, finish);
  }

  // The index of a member's expert among those of the weight.
  TL_INLINE std::int64_t expert_of(std::int64_t member) const { return ids.as<const std::int32_t>()[member] - first; }

 private:
  struct Few {
    RowGroups rows;
    std::int32_t members[kMostGroups];  // the member of each row
  };

  std::int64_t depth() const { return packed.weight.shape[packed.weight.rank - 1]; }

  template <typename RowOf>
  void add_few(std::int64_t expert, std::int64_t count, const RowOf& row_of, Few* few) const {
    const auto* own = members.as<const std::int32_t>();
    few->rows.begin(count, expert * panels);
    for (std::int64_t i = 0; i < count; ++i) {
      few->members[few->rows.num_rows] = own[i];
      few->rows.add(row_of(own[i]));
    }
  }

  template <typename Finish>
  void multiply_few(const KernelArgs& args, Few* few, const Finish& finish) const {
    if (few->rows.count == 0) return;
    const auto use = [&](const float* sums, std::int64_t row, std::int64_t panel) {
      finish(sums, few->members[row], panel);
    };
    multiply_groups(args, few->rows, depth(), packed, panels, Epilogue(use));
    few->rows.num_rows = few->rows.count = 0;
  }

  template <typename RowOf, typename Finish>
  void multiply_many(const KernelArgs& args, std::int64_t expert, std::int64_t count, const RowOf& row_of,
                     const Finish& finish) const {
    const auto* own = members.as<const std::int32_t>();
    auto* rows = gathered.as<float>();
    for_each_row(args.pool, count, depth(), [&](std::int64_t i) {
      memcpy(rows + i * depth(), row_of(own[i]), static_cast<std::size_t>(depth()) * sizeof(float));
    });
    const Tensor x{rows, DType::kFloat32, Layout::kRowMajor, 2, {count, depth()}};
    const Tensor weight = of_expert(packed.weight, expert), scale = of_expert(packed.scale, expert);
    const Tensor offset = of_expert(packed.offset, expert);
    const auto use = [&](const float* sums, std::int64_t row, std::int64_t panel) { finish(sums, own[row], panel); };
    multiply(args, x, Tensor{}, PackedWeight{weight, scale, offset}, panels, Epilogue(use));
  }

  // Finds the members of an expert: at most one for each row, whatever the ids are.
  std::int64_t find_members(std::int64_t expert) const {
    const auto* chosen = ids.as<const std::int32_t>();
    auto* to = members.as<std::int32_t>();
    const std::int64_t top_k = ids.shape[1];
    std::int64_t count = 0;
    for (std::int64_t row = 0; row < ids.shape[0]; ++row) {
      for (std::int64_t member = row * top_k; member < (row + 1) * top_k; ++member) {
        if (chosen[member] - first != expert) continue;
        to[count++] = static_cast<std::int32_t>(member);
        break;
      }
    }
    return count;
  }

  // One expert's part of an operand in panels; the operand may be absent.
  Tensor of_expert(const Tensor& all, std::int64_t expert) const {
    if (!all.data) return Tensor{};
    const std::int64_t columns = all.shape[all.rank - 1];
    Tensor part = all;
    part.data = all.as<char>() + expert * (panels * columns * kPanelWidth * bits_of(all.dtype) / 8);
    part.rank = all.rank - 1;
    for (int axis = 0; axis < part.rank; ++axis) part.shape[axis] = all.shape[axis + 1];
    return part;
  }
};

}  // namespace tl::TL_ISA
