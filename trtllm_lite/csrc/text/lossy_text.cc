#include "text/lossy_text.h"

#include "text/utf8.h"

namespace tl {

void LossyText::push(std::string_view bytes, std::string& text) {
  std::string joined;
  if (!unfinished_.empty()) {
    joined.swap(unfinished_);
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const auto [part, num_bytes] = start_of(bytes);
    if (part == Utf8Part::kUnfinished) {
      unfinished_ = bytes;
      return;
    }
    if (part == Utf8Part::kCharacter) {
      text += bytes.substr(0, num_bytes);
      shown_ = false;
    } else {
      replace(text);
    }
    bytes.remove_prefix(num_bytes);
  }
}

void LossyText::finish(std::string& text) {
  if (!unfinished_.empty()) replace(text);
  unfinished_.clear();
}

void LossyText::replace(std::string& text) {
  if (!shown_) text += kReplacementCharacter;
  shown_ = false;
}

}  // namespace tl
