#include "bindings/testing/testing.h"

NB_MODULE(_testing, module) {
  module.doc() = "Parts of the C++ runtime that only tests and benchmarks drive by hand; see _testing.pyi.";
  nanobind::module_::import_("trtllm_lite._core");  // types and errors are the product's
  tl::bind_kernels(module);
  tl::bind_steps(module);
  tl::bind_kv_cache(module);
  tl::bind_paced_executor(module);
  tl::bind_ranks(module);
  tl::bind_sampler(module);
  tl::bind_adapter_matrices(module);
  tl::bind_beam_search_by_hand(module);
  tl::bind_grammar_matcher(module);
}
