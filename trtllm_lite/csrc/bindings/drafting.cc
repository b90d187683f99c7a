// Bindings of drafting.
#include "drafts/drafting.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "drafts/draft_model.h"

namespace nb = nanobind;

namespace tl {
void bind_drafting(nb::module_& module) {
  nb::class_<NgramSizes>(module, "NgramSizes",
                         "The least and the greatest number of tokens of an n-gram (ngram_drafter.h).")
      .def(nb::init<int, int>(), nb::arg("min"), nb::arg("max"));
  nb::class_<SuffixOptions>(module, "SuffixOptions", R"(
      How many tokens are drafted from earlier text, and of how many requests text is kept (suffix_drafter.h).)")
      .def(nb::init<int, double, double>(), nb::arg("max_cached_requests"), nb::arg("max_spec_factor"),
           nb::arg("min_token_prob"));
  nb::class_<SyntheticOptions>(module, "SyntheticOptions", R"(
      The probabilities that a draft token is accepted, by its position from 1 (synthetic_drafter.h).)")
      .def(nb::init<std::vector<double>>(), nb::arg("acceptance_rates"));
  module.def("check_draft_model", &check_draft_model, nb::arg("target"), nb::arg("draft"), nb::kw_only(),
             nb::arg("max_seq_len"), nb::arg("max_batch_size"), R"(
                 Raise ArgumentError if ``draft`` cannot draft for ``target``, LimitError if its limits are lower than
                 needed.)");
}

}  // namespace tl
