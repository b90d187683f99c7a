// What the C++ side throws; the bindings translate each to the class of the same name in trtllm_lite/errors.py.
#pragma once

#include <stdexcept>

namespace tl {

// An engine that is absent, truncated, corrupted, hostile, or of another version.
struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An engine that is intact but of another version; its message carries its own remedy.
struct UnsupportedVersion : EngineError {
  using EngineError::EngineError;
};

// A request beyond a limit: the message names the limit, the value, and the remedy.
struct LimitError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Too many requests are outstanding: this one is sound, and may be submitted again later.
struct OverloadedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device, or a library that drives it, that is absent, unsuitable, or failed.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An argument outside its domain.
struct ArgumentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tl
