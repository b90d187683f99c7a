// Runs a network that is implemented by a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "bindings/python_calls.h"
#include "network/network.h"

namespace tl {

class PyNetwork : public nanobind::object {
  NB_OBJECT(PyNetwork, nanobind::object, "trtllm_lite.runtime.interfaces.Network", is_any)
};

// Makes a network of an object that implements the class Network in trtllm_lite/runtime/interfaces.py; null for None.
std::unique_ptr<Network> borrow_network(const std::optional<PyNetwork>& object);

}  // namespace tl
