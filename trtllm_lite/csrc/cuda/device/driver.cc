#include "cuda/device/driver.h"

#include "errors.h"
#include "host/shared_library.h"

namespace tl::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

Driver load_driver() {
  const SharedLibrary library = SharedLibrary::open({kLibrary},
                                                    "install the driver of an NVIDIA GPU, or where there is none use "
                                                    "an engine for cpu (trtllm-lite build --target cpu)");
  Driver driver{};
#define TL_RESOLVE(member, symbol, parameters) \
  driver.member = library.function<Result(*) parameters>(symbol, "install a driver for CUDA 12.3 or later");
  TL_CUDA_DRIVER_FUNCTIONS(TL_RESOLVE)
#undef TL_RESOLVE
  driver.function_parameter = library.optional_function<decltype(driver.function_parameter)>("cuFuncGetParamInfo");
  return driver;
}

const Driver& loaded_driver() {
  static const Driver loaded = load_driver();
  return loaded;
}

const Driver& initialised_driver() {
  const Driver& loaded = loaded_driver();
  loaded.check(loaded.init(0), "initialising the CUDA driver");
  return loaded;
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
  static const Driver& ready = initialised_driver();
  return ready;
}

int count_devices() {
  if (!SharedLibrary::exists(kLibrary) || loaded_driver().init(0) == kNoDevice) return 0;
  int count = 0;
  driver().check(driver().device_count(&count), "counting GPUs");
  return count;
}

}  // namespace tl::cuda
