// The functions that add to the module for tests and benchmarks of kernels, one per concept. module.cc calls them all.
#pragma once

#include <nanobind/nanobind.h>

namespace tl {

void bind_adapter_matrices(nanobind::module_& module);
void bind_beam_search_by_hand(nanobind::module_& module);
void bind_grammar_matcher(nanobind::module_& module);
void bind_timing(nanobind::module_& module);
void bind_kv_cache(nanobind::module_& module);
void bind_paced_executor(nanobind::module_& module);
void bind_ranks(nanobind::module_& module);
void bind_sampler(nanobind::module_& module);
void bind_steps(nanobind::module_& module);

}  // namespace tl
