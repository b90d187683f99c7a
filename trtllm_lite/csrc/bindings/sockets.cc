// Bindings of functions that send without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bindings.h"
#include "host/send_each.h"

namespace nb = nanobind;

namespace tl {
namespace {

std::vector<std::size_t> send_bytes(const std::vector<int>& sockets, const std::vector<nb::bytes>& data) {
  if (sockets.size() != data.size()) throw nb::value_error("send_each: expected as many sockets as data");
  std::vector<Sending> sendings;
  sendings.reserve(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) sendings.push_back({sockets[i], {data[i].c_str(), data[i].size()}});
  {
    const nb::gil_scoped_release release;
    send_each(sendings);
  }
  std::vector<std::size_t> sent;
  sent.reserve(sendings.size());
  for (const Sending& sending : sendings) sent.push_back(sending.num_sent);
  return sent;
}

}  // namespace

void bind_sockets(nb::module_& module) {
  module.def("send_each", &send_bytes, nb::arg("sockets"), nb::arg("data"), R"(
      Send to each socket the bytes that it takes without blocking; returns their number, 0 for a broken socket.

      The GIL is released.)");
}

}  // namespace tl
