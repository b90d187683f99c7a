#include "bindings/testing/testing.h"

NB_MODULE(_testing, module) {
  module.doc() = R"(
      Parts of the C++ runtime that only tests and ``scripts/bench_kernels.py`` drive by hand.

      Built with the CMake option ``TRTLLM_LITE_TESTING``, as ``scripts/test.sh`` does; no part of a wheel. Types and
      errors are those of ``_core``.)";
  nanobind::module_::import_("trtllm_lite._core");  // types and errors are the product's
  tl::bind_timing(module);
  tl::bind_steps(module);
  tl::bind_kv_cache(module);
  tl::bind_paced_executor(module);
  tl::bind_ranks(module);
  tl::bind_sampler(module);
  tl::bind_adapter_matrices(module);
  tl::bind_beam_search_by_hand(module);
  tl::bind_grammar_matcher(module);
}
