#include "caches/kv_geometry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {

void bind_kv_geometry(nb::module_& module) {
  nb::class_<KvGeometry>(module, "KvGeometry", R"(
      The blocks of the KV cache that sequences need: ``groups`` has, for each cache group of a manifest, its kind, its
      window (0 for none), and the number of consecutive blocks that an entry of its tables takes.

      A step computes at most ``max_step_tokens`` of a sequence.)")
      .def(
          "__init__",
          [](KvGeometry* self, int tokens_per_block, const std::vector<std::tuple<std::string, int, int>>& groups,
             int max_step_tokens) {
            std::vector<CacheSpec> specs;
            for (const auto& [kind, window, blocks] : groups) {
              const auto name = std::ranges::find(kCacheKindNameNames, kind);
              if (name == std::end(kCacheKindNameNames)) {
                throw std::invalid_argument("KV cache: expected a kind of cache, found " + kind);
              }
              specs.push_back({static_cast<CacheKindName>(name - std::begin(kCacheKindNameNames)), window, blocks});
            }
            new (self) KvGeometry(tokens_per_block, specs, max_step_tokens);
          },
          nb::arg("tokens_per_block"), nb::arg("groups"), nb::arg("max_step_tokens"))
      .def("most_blocks", &KvGeometry::most_blocks, nb::arg("num_remaining"), nb::arg("max_length"), R"(
          The most blocks that a sequence holds at once with ``num_remaining`` known tokens still to be computed.)")
      .def("most_blocks_of_batch", &KvGeometry::most_blocks_of_batch, nb::arg("batch_size"), nb::arg("max_length"), R"(
          The most blocks that a batch of sequences holds at once if it computes one prompt at a time.)")
      .def("longest_sequence", &KvGeometry::longest_sequence, nb::arg("num_blocks"),
           "Tokens of the longest sequence that ``num_blocks`` blocks hold.");
}

}  // namespace tl
