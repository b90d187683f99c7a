#include "host/send_each.h"

#include <sys/socket.h>

#include <cerrno>

namespace tl {

void send_each(std::span<Sending> sendings) {
  for (Sending& sending : sendings) {
    ssize_t sent = 0;
    do {
      sent = ::send(sending.socket, sending.data.data(), sending.data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    sending.num_sent = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
}

}  // namespace tl
