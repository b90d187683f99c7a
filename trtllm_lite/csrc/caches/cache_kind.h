// What a kind of cache keeps of a sequence, in blocks: the file to read first about the KV cache.
//
// The layers of a model form cache groups (the manifest's CacheGroup), each of which has one kind, and a block table
// for each sequence: entry i of the table is the block of positions i * tokens_per_block and following. A kind says
// which entries a group needs, and when. The manager (kv_cache_manager.h) knows no kinds: it takes, shares, copies,
// swaps and gives back the blocks that the kinds of its groups ask for. A new kind is a class here, and a mark in
// schemas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace tl {

class CacheKind {
 public:
  virtual ~CacheKind() = default;
  // Whether sequences give back blocks while they run, each at its own time.
  virtual bool gives_back() const = 0;
  // The first entry that is needed once the next token to compute is at `position`; earlier ones are given back.
  virtual int first_needed(int position) const = 0;
  // The end of the table once a sequence of `length` tokens has the blocks to grow to `num_tokens`. Of a cache that
  // gives back blocks, only those for the next step count.
  virtual int table_end(int length, int num_tokens) const = 0;
  // The most blocks that a sequence can hold at once from now on, given that `num_remaining` known tokens are still to
  // be computed and it grows to at most `max_length`.
  virtual int most_at_once(int num_remaining, int max_length) const = 0;
  // The most blocks that each beam of a search can hold in addition to those of a prompt of `num_prompt` tokens.
  virtual int most_of_beam(int num_prompt, int max_length) const = 0;
};

// Keys and values, or latents, of all tokens.
class FullCache final : public CacheKind {
 public:
  explicit FullCache(int tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  bool gives_back() const override { return false; }
  int first_needed(int) const override { return 0; }
  int table_end(int, int num_tokens) const override { return num_blocks_for(num_tokens); }
  int most_at_once(int, int max_length) const override { return num_blocks_for(max_length); }
  // Beams share the full blocks of the prompt.
  int most_of_beam(int num_prompt, int max_length) const override {
    return num_blocks_for(max_length) - num_prompt / tokens_per_block_;
  }

 private:
  int num_blocks_for(int num_tokens) const {
    return static_cast<int>((std::int64_t{num_tokens} + tokens_per_block_ - 1) / tokens_per_block_);
  }

  int tokens_per_block_;
};

// Keys and values of the tokens that a window reaches: a query at position p attends to positions > p - window.
class WindowCache final : public CacheKind {
 public:
  // A step computes at most `max_step_tokens` of a sequence.
  WindowCache(int tokens_per_block, int window, int max_step_tokens)
      : all_(tokens_per_block),
        tokens_per_block_(tokens_per_block),
        window_(window),
        max_step_tokens_(max_step_tokens) {}

  bool gives_back() const override { return true; }
  int first_needed(int position) const override { return std::max(position - window_ + 1, 0) / tokens_per_block_; }
  int table_end(int length, int num_tokens) const override {
    return std::min(all_.table_end(length, num_tokens),
                    first_needed(length) + most_at_once(num_tokens - length, num_tokens));
  }
  int most_at_once(int num_remaining, int max_length) const override {
    const std::int64_t num_positions = std::int64_t{window_} - 1 + std::clamp(num_remaining, 1, max_step_tokens_);
    const std::int64_t most = (num_positions + tokens_per_block_ - 2) / tokens_per_block_ + 1;
    return static_cast<int>(std::min<std::int64_t>(all_.most_at_once(num_remaining, max_length), most));
  }
  // Blocks count once for each beam, because each beam gives them back at its own time.
  int most_of_beam(int, int max_length) const override { return most_at_once(1, max_length); }

 private:
  FullCache all_;
  int tokens_per_block_, window_, max_step_tokens_;
};

// The kind of a group with this window in tokens, 0 for none.
inline std::shared_ptr<const CacheKind> cache_kind(int tokens_per_block, int window, int max_step_tokens) {
  if (window == 0) return std::make_shared<FullCache>(tokens_per_block);
  return std::make_shared<WindowCache>(tokens_per_block, window, max_step_tokens);
}

}  // namespace tl
