// Products of rows with the weights of the experts that they have chosen, for GroupedGatedLinear and GroupedLinear.
//
// One expert after the other: its rows are gathered and multiplied as if they were all there is. Experts of a few rows
// are multiplied together (row_groups.h), which changes no bits, so that a row has the same bits whatever the others
// have chosen. An expert that no row has chosen costs a look at the rows' choices.
#pragma once

#include <string.h>

#include <cstdint>

#include "cpu/kernel.h"
#include "cpu/products.h"
#include "cpu/row_groups.h"
#include "cpu/row_tasks.h"

namespace tl::TL_ISA {

struct Experts {
  const Tensor& ids;           // [rows, top_k]
  const PackedWeight& packed;  // [experts, …, in_features], `panels` panels each
  std::int64_t panels;
  const Tensor& gathered;  // room for rows of in_features
  const Tensor& members;   // room for a number for each row
  std::int64_t first;      // the number of the first expert in `weight`; ids of others are left out

  // Calls finish(sums, member, panel) for the members and panels of each expert, by rising number of experts. A member
  // is row * top_k + slot of a row that has the expert in that slot; its activations are at row_of(member).
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

  // The number of a member's expert among those of the weight.
  TL_INLINE std::int64_t expert_of(std::int64_t member) const { return ids.as<const std::int32_t>()[member] - first; }

 private:
  struct Few {
    RowGroups rows;
    std::int32_t members[kMostGroups];  // those of rows
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

  // Writes the members of an expert; at most one for each row, whatever the ids are.
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

  // One expert's part of an operand in panels, which may be absent.
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
