#include "errors.h"

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace tl {
namespace {

void raise(const char* class_name, const std::exception& error) {
  const nb::object type = nb::module_::import_("trtllm_lite.errors").attr(class_name);
  PyErr_SetString(type.ptr(), error.what());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const EngineError& error) {
    raise("EngineError", error);
  } catch (const LimitError& error) {
    raise("LimitError", error);
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace tl
