#include "host/shared_library.h"

#include <dlfcn.h>

#include "errors.h"

namespace tl {

SharedLibrary SharedLibrary::open(const std::vector<std::string>& names, const std::string& remedy) {
  std::string reasons;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return {handle, name};
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason ? reason : name);
  }
  throw DeviceError("expected to load " + names.front() + ", found none (" + reasons + "); " + remedy);
}

bool SharedLibrary::exists(const char* name) { return dlopen(name, RTLD_LAZY | RTLD_LOCAL) != nullptr; }

void* SharedLibrary::look_up(const char* symbol) const { return dlsym(handle_, symbol); }

void* SharedLibrary::find(const char* symbol, const char* remedy) const {
  if (void* address = look_up(symbol)) return address;
  throw DeviceError(name_ + ": expected a function " + symbol + ", found none; " + remedy);
}

}  // namespace tl
