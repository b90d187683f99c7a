#include "caches/kv_geometry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {

void bind_kv_geometry(nb::module_& module) {
  nb::class_<KvGeometry>(module, "KvGeometry", R"(
      The blocks of the KV cache that sequences need: ``windows`` has the window of each cache group, 0 for none.

      A step computes at most ``max_step_tokens`` of a sequence.)")
      .def(nb::init<int, std::vector<int>, int>(), nb::arg("tokens_per_block"), nb::arg("windows"),
           nb::arg("max_step_tokens"))
      .def("most_blocks", &KvGeometry::most_blocks, nb::arg("num_remaining"), nb::arg("max_length"), R"(
          The most blocks that a sequence holds at once with ``num_remaining`` known tokens still to be computed.)")
      .def("most_blocks_of_batch", &KvGeometry::most_blocks_of_batch, nb::arg("batch_size"), nb::arg("max_length"), R"(
          The most blocks that a batch of sequences holds at once if it computes one prompt at a time.)")
      .def("longest_sequence", &KvGeometry::longest_sequence, nb::arg("num_blocks"),
           "Tokens of the longest sequence that ``num_blocks`` blocks hold.");
}

}  // namespace tl
