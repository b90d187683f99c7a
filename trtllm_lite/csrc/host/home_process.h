// Protects owners of threads and devices, which do not exist in a forked child process: there they must not be used,
// waited for or destroyed.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "errors.h"

namespace tl {

// The process that made this object.
class HomeProcess {
 public:
  bool is_this() const { return ::getpid() == id_; }
  // Throws EngineError in a forked child process.
  void check() const {
    if (is_this()) return;
    throw EngineError("this engine was opened in another process (" + std::to_string(id_) +
                      "), and a fork of that has neither its threads nor its device: open the engine after the fork, "
                      "or start processes with multiprocessing.get_context(\"spawn\")");
  }

 private:
  ::pid_t id_ = ::getpid();
};

struct DestroyAtHome {
  template <typename T>
  void operator()(T* object) const {
    if (home.is_this()) delete object;
  }
  HomeProcess home;
};

// In a forked child process the object is not destroyed: its threads do not exist, and its locks may never open.
template <typename T>
using HomeBound = std::unique_ptr<T, DestroyAtHome>;

}  // namespace tl
