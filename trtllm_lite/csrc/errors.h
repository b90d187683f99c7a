// The exceptions of the C++ side. The bindings translate each to the class of the same name in trtllm_lite/errors.py.
#pragma once

#include <stdexcept>

namespace tl {

// An engine file that is missing, truncated, corrupted, hostile, or of another version.
struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An intact engine of another version. The message contains its own remedy.
struct UnsupportedVersion : EngineError {
  using EngineError::EngineError;
};

// An intact engine that needs a package which is not installed, or not in the right version. The message contains its
// own remedy.
struct MissingPlugin : EngineError {
  using EngineError::EngineError;
};

// A request that exceeds a limit. The message names the limit, the value, and the remedy.
struct LimitError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A valid request that is refused because too many are outstanding; it may be submitted again later.
struct OverloadedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device, or a library that drives it, that is missing, unsuitable, or failed.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An argument outside its domain.
struct ArgumentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tl
