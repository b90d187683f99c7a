// Calls from C++ threads to Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "errors.h"
#include "executor/device_executor.h"

namespace tl {

// What nanobind asks of an object that implements an interface of trtllm_lite/runtime/interfaces.py: a call finds out.
inline bool is_any(PyObject*) { return true; }

// An array that borrows memory for the duration of a call.
template <typename T, typename... Extents>
auto array_over(T* data, Extents... extents) {
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<sizeof...(Extents)>>(
                            data, {static_cast<std::size_t>(extents)...}, nanobind::handle()),
                        nanobind::rv_policy::reference);
}

inline auto array_over(std::span<const std::int32_t> values) { return array_over(values.data(), values.size()); }

// Reads the memory use from a dictionary with the keys `weights`, `kv_cache` and `workspace`.
inline MemoryUse memory_use(const nanobind::dict& memory) {
  const auto bytes = [&](const char* name) { return nanobind::cast<std::size_t>(memory[name]); };
  return {bytes("weights"), bytes("kv_cache"), bytes("workspace")};
}

// Runs `call` with the GIL. Converts a Python exception to one of ours, so that no Python exception crosses threads.
template <typename Call>
void call_python(const Call& call) {
  const nanobind::gil_scoped_acquire acquire;
  try {
    call();
  } catch (const nanobind::python_error& error) {
    const auto message = nanobind::cast<std::string>(nanobind::str(error.value()));
    if (error.matches(nanobind::module_::import_("trtllm_lite.errors").attr("LimitError"))) throw LimitError(message);
    throw DeviceError(message);
  }
}

}  // namespace tl
