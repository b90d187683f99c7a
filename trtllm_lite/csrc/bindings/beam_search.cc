// Bindings of the parameters of beam search.
#include "sampling/beam_search.h"

#include "bindings/sampling.h"

namespace nb = nanobind;

namespace tl {
void bind_beam_search(nb::module_& m) {
  nb::enum_<EarlyStopping>(m, "EarlyStopping",
                           "The rule by which a search with enough finished sequences ends: see beam_search.h.")
      .value("FALSE", EarlyStopping::kFalse)
      .value("TRUE", EarlyStopping::kTrue)
      .value("NEVER", EarlyStopping::kNever);
  nb::class_<BeamSearchParams>(m, "BeamSearchParams", "The parameters of a beam search, besides SamplingParams.")
      .def(nb::init<>())
      .def_rw("num_beams", &BeamSearchParams::num_beams)
      .def_rw("length_penalty", &BeamSearchParams::length_penalty)
      .def_rw("early_stopping", &BeamSearchParams::early_stopping)
      .def(
          "violations",
          [](const BeamSearchParams& beams, const SamplingParams& params, int vocab_size) {
            return violations(beams, params, vocab_size);
          },
          nb::arg("params"), nb::arg("vocab_size"),
          "A sentence for everything wrong with a search of these parameters; empty if nothing is.");
}

}  // namespace tl
