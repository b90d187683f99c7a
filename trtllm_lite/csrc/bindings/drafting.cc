// Bindings of drafting, and of the pace of steps.
#include "drafts/drafting.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "drafts/draft_model.h"
#include "schedule/step_pace.h"
#include "schedule/step_time.h"

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

void bind_pace(nb::module_& module) {
  module.attr("CPU_STEP_SECONDS") = kStepSeconds;
  nb::class_<StepPace>(module, "StepPace", R"(
      Estimates how many tokens a step of ``seconds`` (0: any time) can take, from the times of earlier steps.)")
      .def(nb::init<double>(), nb::arg("seconds"))
      .def("max_prefill", &StepPace::max_prefill, nb::arg("num_decode_tokens"),
           "Tokens that a step may prefill beside ``num_decode_tokens`` decode tokens.")
      .def("observe", &StepPace::observe, nb::arg("num_tokens"), nb::arg("seconds"), "Record the duration of a step.");
}

}  // namespace tl
