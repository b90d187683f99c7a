#include "cuda/driver.h"

#include "errors.h"
#include "shared_library.h"

namespace tl::cuda {
namespace {

Driver load_driver() {
  const SharedLibrary library = SharedLibrary::open({"libcuda.so.1"},
                                                    "install the driver of an NVIDIA GPU, or where there is none use "
                                                    "an engine for cpu (trtllm-lite build --target cpu)");
  Driver driver{};
#define TL_RESOLVE(member, symbol, parameters) \
  driver.member = library.function<Result(*) parameters>(symbol, "install a driver for CUDA 12.3 or later");
  TL_CUDA_DRIVER_FUNCTIONS(TL_RESOLVE)
#undef TL_RESOLVE
  driver.function_parameter = library.optional_function<decltype(driver.function_parameter)>("cuFuncGetParamInfo");
  driver.check(driver.init(0), "initialising the CUDA driver");
  return driver;
}

}  // namespace

void Driver::check(Result result, std::string_view what, std::string_view name) const {
  if (result == 0) return;
  const char* error = nullptr;
  const char* text = nullptr;
  error_name(result, &error);
  error_string(result, &text);
  std::string message(what);
  message.append(name).append(": ").append(error ? error : "CUDA error " + std::to_string(result));
  if (text) message.append(" (").append(text).append(")");
  throw DeviceError(message);
}

bool Driver::reached(Event event) const {
  const Result result = event_query(event);
  if (result == kNotReady) return false;
  check(result, "running a step");
  return true;
}

const Driver& driver() {
  static const Driver loaded = load_driver();
  return loaded;
}

}  // namespace tl::cuda
