#include "engine/plugins.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "errors.h"

namespace tl {
namespace {

std::mutex plugins_mutex;
std::list<LoadedPlugin> loaded_plugins;  // guarded by the mutex; elements never change
PluginLoader plugin_loader = nullptr;

// The first result of `find`, which is called with each loaded plugin, that is not null.
template <typename Find>
auto first_of_loaded(const Find& find) -> decltype(find(loaded_plugins.front())) {
  const std::lock_guard lock(plugins_mutex);
  for (const LoadedPlugin& plugin : loaded_plugins) {
    if (auto found = find(plugin)) return found;
  }
  return nullptr;
}

const LoadedPlugin* find_package(std::string_view package) {
  return first_of_loaded([&](const LoadedPlugin& plugin) { return plugin.package == package ? &plugin : nullptr; });
}

std::string described(const PluginUse& plugin) {
  std::string names;
  for (const std::string& name : plugin.operators) names.append(names.empty() ? "" : ", ").append(name);
  return "the engine needs " + plugin.package + " " + plugin.version + " (" + names + ")";
}

}  // namespace

void add_plugin(const LoadedPlugin& plugin) {
  const std::lock_guard lock(plugins_mutex);
  const auto found = std::ranges::find(loaded_plugins, plugin.library, &LoadedPlugin::library);
  if (found == loaded_plugins.end()) loaded_plugins.push_back(plugin);
}

const OpSchema* find_plugin_op(std::string_view name) {
  return first_of_loaded([&](const LoadedPlugin& plugin) -> const OpSchema* {
    const auto* const found = std::ranges::find_if(plugin.schemas, [&](const auto& one) { return one.name == name; });
    return found == plugin.schemas.end() ? nullptr : found;
  });
}

Kernel find_plugin_kernel(std::string_view op, std::string_view isa) {
  return first_of_loaded([&](const LoadedPlugin& plugin) -> Kernel {
    const auto is_wanted = [&](const KernelEntry& entry) { return entry.op == op && entry.isa == isa; };
    const auto* const found = std::ranges::find_if(plugin.kernels, is_wanted);
    return found == plugin.kernels.end() ? nullptr : found->kernel;
  });
}

void set_plugin_loader(PluginLoader loader) { plugin_loader = loader; }

void require_plugins(std::span<const PluginUse> plugins) {
  for (const PluginUse& plugin : plugins) {
    if (find_package(plugin.package) == nullptr && plugin_loader != nullptr) plugin_loader(plugin.package);
    const LoadedPlugin* const found = find_package(plugin.package);
    const std::string remedy = "pip install '" + plugin.package + "==" + plugin.version + "'";
    if (found == nullptr) throw MissingPlugin(described(plugin) + ", which is not installed: " + remedy);
    if (found->version != plugin.version) {
      throw MissingPlugin(described(plugin) + ", found version " + found->version + ": " + remedy +
                          ", or build the engine again");
    }
  }
}

}  // namespace tl
