// Helpers for the bindings of sampling, shared by the product's module and the test module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <vector>

#include "errors.h"
#include "sampling/beam_search.h"
#include "sampling/sampling_params.h"

namespace tl::sampling_bindings {

using Row = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Rows = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Tokens = std::vector<TokenId>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw LimitError(message);
}

inline void throw_if_any(const std::vector<std::string>& messages) {
  std::string all;
  for (const auto& message : messages) all += all.empty() ? message : "\n" + message;
  require(all.empty(), all);
}

using ScoredTokens = std::vector<std::pair<Tokens, float>>;

inline ScoredTokens scored_tokens(const std::vector<BeamHypothesis>& hypotheses) {
  ScoredTokens out;
  for (const auto& [tokens, score] : hypotheses) out.emplace_back(tokens, score);
  return out;
}

inline std::span<const float> span_of(const Row& row) { return {row.data(), row.size()}; }

inline std::span<const float> row_of(const Rows& rows, std::size_t i) {
  return {rows.data() + i * rows.shape(1), rows.shape(1)};
}

}  // namespace tl::sampling_bindings

namespace tl {
void bind_beam_search(nanobind::module_& sampling);
}  // namespace tl
