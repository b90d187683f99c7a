#include "text/byte_run.h"

#include "text/utf8.h"

namespace tl {

void ByteRun::push(char byte, std::string& text) {
  unfinished_.push_back(byte);
  const Utf8Part part = is_broken_ ? Utf8Part::kBroken : start_of(unfinished_).part;
  if (part == Utf8Part::kUnfinished) return;
  if (part == Utf8Part::kBroken) {
    is_broken_ = true;
    replace(text);
    return;
  }
  text += unfinished_;
  unfinished_.clear();
  num_shown_ = 0;
}

void ByteRun::end(std::string& text) {
  replace(text);
  is_broken_ = false;
}

void ByteRun::replace(std::string& text) {
  for (std::size_t i = num_shown_; i < unfinished_.size(); ++i) text += kReplacementCharacter;
  unfinished_.clear();
  num_shown_ = 0;
}

}  // namespace tl
