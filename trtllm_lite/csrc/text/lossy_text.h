// Makes text of bytes that come piece by piece and may be broken UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace tl {

// Gives each character once all of its bytes are there, and U+FFFD for bytes that belong to none, as many as Rust's
// String::from_utf8_lossy gives for all of the bytes at once.
class LossyText {
 public:
  // Adds bytes; appends to `text` what is certain now.
  void push(std::string_view bytes, std::string& text);
  // The bytes have ended: an unfinished character becomes U+FFFD.
  void finish(std::string& text);
  // What is unfinished now has been shown already as U+FFFD; once it is finished the character appears nevertheless.
  void take_as_shown() { shown_ = !unfinished_.empty(); }

 private:
  void replace(std::string& text);

  std::string unfinished_;  // at most 3 bytes
  bool shown_ = false;
};

}  // namespace tl
