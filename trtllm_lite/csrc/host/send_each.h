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

// Sends what each socket takes at once, and says how much that is. A socket that takes nothing, because it is full or
// broken, is left to its owner, who finds out why by its own next write.
void send_each(std::span<Sending> sendings);

}  // namespace tl
