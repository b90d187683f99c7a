// Loads the CPU kernels of other packages.
#pragma once

#include <string>
#include <vector>

namespace tl {

// Opens the shared library at `path`, which belongs to the installed `package`, and adds its operators to those that
// engines may call. Returns the operators that it has kernels for, which this machine can run. `digest` is that of the
// package's schemas. Throws EngineError if the library does not load, or was compiled for another version of the ABI,
// or against other schemas.
std::vector<std::string> load_plugin(const std::string& path, const std::string& package, const std::string& version,
                                     const std::string& digest);

}  // namespace tl
