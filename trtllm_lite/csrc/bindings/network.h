// A network that a Python object runs.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "network/network.h"

namespace tl {

// A network over an object as the class Network of _core.pyi describes it; null for None.
std::unique_ptr<Network> borrow_network(const nanobind::object& object);

}  // namespace tl
