// The operators of other packages, which a process has loaded because engines need them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/op_schema.h"
#include "engine/records.h"

namespace tl {

// What the library of a package registers; the lists live as long as the process.
struct LoadedPlugin {
  std::string package;
  std::string version;
  std::string library;  // its path
  List<OpSchema> schemas;
  List<KernelEntry> kernels;
};

// Adds operators to those that find_op and find_kernel know. A library is added once.
void add_plugin(const LoadedPlugin& plugin);

// Null if no loaded package has such an operator, or such a kernel.
const OpSchema* find_plugin_op(std::string_view name);
Kernel find_plugin_kernel(std::string_view op, std::string_view isa);

// Loads the libraries of an installed package; does nothing if there is no such package. Throws MissingPlugin if the
// libraries do not fit.
using PluginLoader = void (*)(const std::string& package);
void set_plugin_loader(PluginLoader loader);

// Throws MissingPlugin unless all packages are loaded, or can be, in the versions that the engine was built with.
void require_plugins(std::span<const PluginUse> plugins);

}  // namespace tl
