#include "engine/crc32c.h"

#include <nanobind/nanobind.h>

#include "bindings/bindings.h"
#include "bindings/buffer_view.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::uint32_t checksum(const Buffer& data, std::uint32_t crc) {
  const BufferView view(data);
  nb::gil_scoped_release release;
  return crc32c(view.data(), view.size(), crc);
}

}  // namespace

void bind_crc32c(nb::module_& module) {
  module.def("crc32c", &checksum, nb::arg("data"), nb::arg("crc") = 0,
             "CRC-32C (RFC 3720) of ``data`` after data whose checksum is ``crc``. The GIL is released.");
}

}  // namespace tl
