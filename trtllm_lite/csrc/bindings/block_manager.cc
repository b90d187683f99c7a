#include "block_manager.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {

void bind_block_manager(nb::module_& module) {
  nb::class_<BlockManager>(module, "BlockManager")
      .def(nb::init<std::int64_t, std::int64_t>(), nb::arg("num_blocks"), nb::arg("tokens_per_block"))
      .def("reserve", &BlockManager::reserve, nb::arg("seq_id"), nb::arg("num_tokens"))
      .def("release", &BlockManager::release, nb::arg("seq_id"))
      .def("block_table", &BlockManager::block_table, nb::arg("seq_id"))
      .def("check_integrity", &BlockManager::check_integrity)
      .def_prop_ro("num_free", &BlockManager::num_free)
      .def_prop_ro("num_blocks", &BlockManager::num_blocks)
      .def_prop_ro("tokens_per_block", &BlockManager::tokens_per_block);
}

}  // namespace tl
