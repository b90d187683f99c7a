// A library that is found at run time, so that this package loads on machines without it.
#pragma once

#include <string>
#include <vector>

namespace tl {

// The library is never closed, because what it returned may be in use until the process ends.
class SharedLibrary {
 public:
  // Opens the first of `names` (file names or paths) that exists. Throws DeviceError with the reason for each name, and
  // `remedy`.
  static SharedLibrary open(const std::vector<std::string>& names, const std::string& remedy);

  // Whether there is such a library.
  static bool exists(const char* name);

  // The symbol's address. Throws DeviceError if the library lacks the symbol.
  template <typename Pointer>
  Pointer function(const char* symbol, const char* remedy) const {
    return reinterpret_cast<Pointer>(find(symbol, remedy));
  }

  // The symbol's address; null if the library lacks the symbol.
  template <typename Pointer>
  Pointer optional_function(const char* symbol) const {
    return reinterpret_cast<Pointer>(look_up(symbol));
  }

  const std::string& name() const { return name_; }

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* find(const char* symbol, const char* remedy) const;
  void* look_up(const char* symbol) const;

  void* handle_;
  std::string name_;
};

}  // namespace tl
