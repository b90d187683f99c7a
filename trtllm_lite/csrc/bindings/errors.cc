#include "errors.h"

#include <iterator>
#include <string_view>

#include "bindings/bindings.h"
#include "host/home_process.h"

namespace nb = nanobind;

namespace tl {
namespace {

void raise(const char* class_name, const std::exception& error) {
  const nb::object type = nb::module_::import_("trtllm_lite.errors").attr(class_name);
  // A message may quote bytes of a damaged file, or a name cut within a UTF-8 character.
  const std::string_view text = error.what();
  const nb::object message = nb::steal(PyUnicode_DecodeUTF8(text.data(), std::ssize(text), "replace"));
  PyErr_SetObject(type.ptr(), message.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const EngineError& error) {
    raise("EngineError", error);
  } catch (const LimitError& error) {
    raise("LimitError", error);
  } catch (const OverloadedError& error) {
    raise("OverloadedError", error);
  } catch (const DeviceError& error) {
    raise("DeviceError", error);
  } catch (const ArgumentError& error) {
    raise("ArgumentError", error);
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate);
  nb::class_<HomeProcess>(module, "HomeProcess", R"(
      The process that made this object. Its forks lack the threads and devices that its engines need.)")
      .def(nb::init<>())
      .def("is_this", &HomeProcess::is_this)
      .def("check", &HomeProcess::check, "Raises EngineError in a fork of the process.");
}

}  // namespace tl
