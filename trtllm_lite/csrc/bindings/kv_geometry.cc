#include "caches/kv_geometry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {

void bind_kv_geometry(nb::module_& module) {
  nb::class_<KvGeometry>(module, "KvGeometry")
      .def(nb::init<int, std::vector<int>, int>(), nb::arg("tokens_per_block"), nb::arg("windows"),
           nb::arg("max_step_tokens"))
      .def("most_blocks", &KvGeometry::most_blocks, nb::arg("num_remaining"), nb::arg("max_length"))
      .def("most_blocks_of_batch", &KvGeometry::most_blocks_of_batch, nb::arg("batch_size"), nb::arg("max_length"))
      .def("longest_sequence", &KvGeometry::longest_sequence, nb::arg("num_blocks"));
}

}  // namespace tl
