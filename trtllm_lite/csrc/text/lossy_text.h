// Makes text of bytes that come in pieces and may be invalid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace tl {

// Returns each character once all its bytes have come, and for invalid bytes as many U+FFFD as Rust's
// String::from_utf8_lossy gives for all bytes at once.
class LossyText {
 public:
  // Adds bytes; appends to `text` what is certain now.
  void push(std::string_view bytes, std::string& text);
  // Called at the end: an unfinished character becomes U+FFFD.
  void finish(std::string& text);
  // Notes that the unfinished bytes have been shown already as U+FFFD. If they turn out to begin a valid
  // character, it is returned as well.
  void take_as_shown() { shown_ = !unfinished_.empty(); }

 private:
  void replace(std::string& text);

  std::string unfinished_;  // the bytes of an unfinished character: at most 3
  bool shown_ = false;
};

}  // namespace tl
