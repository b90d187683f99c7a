// Makes text of a run of tokens that stand for single bytes (SentencePiece's byte fallback).
#pragma once

#include <cstddef>
#include <string>

namespace tl {

// Returns each character once all its bytes have come. In a run with an invalid byte, every byte after
// the characters already returned becomes U+FFFD. (The tokenizers library replaces earlier characters too, which a
// stream cannot do: they have been returned already.)
class ByteRun {
 public:
  // Adds a byte to the run; appends to `text` what is certain now.
  void push(char byte, std::string& text);
  // Ends the run.
  void end(std::string& text);
  // Notes that the bytes of the unfinished character have been shown already, as U+FFFD each. Once it is finished, the
  // character still appears.
  void take_as_shown() { num_shown_ = unfinished_.size(); }

 private:
  void replace(std::string& text);

  std::string unfinished_;
  std::size_t num_shown_ = 0;  // unfinished bytes that have been shown
  bool is_broken_ = false;
};

}  // namespace tl
