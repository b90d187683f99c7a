// Sends bytes to many sockets.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace tl {

struct Sending {
  int socket = -1;
  std::string_view data;
  std::size_t num_sent = 0;
};

// Sends as much as each socket takes at once, and records how much that is. A socket that takes nothing, because it is
// full or broken, is left to its owner, whose next write gives the reason.
void send_each(std::span<Sending> sendings);

}  // namespace tl
