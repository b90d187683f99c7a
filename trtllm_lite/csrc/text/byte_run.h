// Makes text of a run of tokens that stand for single bytes (SentencePiece's byte fallback).
#pragma once

#include <cstddef>
#include <string>

namespace tl {

// Gives each character once all of its bytes are there. In a run with a byte that belongs to none, every byte from the
// first one on that has given no character becomes U+FFFD. (The tokenizers library turns characters before it to
// U+FFFD, too, which a stream cannot: they have been given.)
class ByteRun {
 public:
  // Adds a byte to the run; appends to `text` what is certain now.
  void push(char byte, std::string& text);
  // The run has ended.
  void end(std::string& text);
  // The bytes of an unfinished character have been shown already as U+FFFD each; once it is finished the character
  // appears nevertheless.
  void take_as_shown() { num_shown_ = unfinished_.size(); }

 private:
  void replace(std::string& text);

  std::string unfinished_;
  std::size_t num_shown_ = 0;  // of the unfinished bytes
  bool is_broken_ = false;
};

}  // namespace tl
