// Runs a network that is implemented by a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "network/network.h"

namespace tl {

// Makes a network of an object that implements the class Network in _core.pyi; null for None.
std::unique_ptr<Network> borrow_network(const nanobind::object& object);

}  // namespace tl
