#include "engine/crc32c.h"

#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {
namespace {

// Borrows the bytes of any object with a contiguous buffer for its lifetime.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
  }
  ~BufferView() { PyBuffer_Release(&buffer_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  const void* data() const { return buffer_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_;
};

std::uint32_t checksum(nb::handle data, std::uint32_t crc) {
  const BufferView view(data);
  nb::gil_scoped_release release;
  return crc32c(view.data(), view.size(), crc);
}

}  // namespace

void bind_crc32c(nb::module_& module) { module.def("crc32c", &checksum, nb::arg("data"), nb::arg("crc") = 0); }

}  // namespace tl
