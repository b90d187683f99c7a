// The bytes of a Python object with a buffer.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string_view>

namespace tl {

// Any Python object with a buffer.
class Buffer : public nanobind::object {
  NB_OBJECT(Buffer, nanobind::object, "typing_extensions.Buffer", PyObject_CheckBuffer)
};

// Borrows the bytes of a contiguous buffer.
class BufferView {
 public:
  explicit BufferView(const Buffer& object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) nanobind::raise_python_error();
  }
  ~BufferView() { PyBuffer_Release(&buffer_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  const void* data() const { return buffer_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }
  std::string_view text() const { return {static_cast<const char*>(buffer_.buf), size()}; }

 private:
  Py_buffer buffer_;
};

}  // namespace tl
