// What a kind of cache keeps of a sequence, in blocks: the file to read first about the KV cache.
//
// The layers of a model form cache groups (the manifest's CacheGroup), each of which has one kind, and a block table
// for each sequence: entry i of the table is the block of positions i * tokens_per_block and following; a state has one
// entry alone. A kind says which entries a group needs, and when. The manager (kv_cache_manager.h) knows no kinds: it
// takes, shares, copies, swaps and gives back the blocks that the kinds of its groups ask for. A new kind is a class
// here, and a mark in schemas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "engine/records.h"

namespace tl {

class CacheKind {
 public:
  virtual ~CacheKind() = default;
  // The entry that the token at `position` writes.
  virtual int entry(int position) const = 0;
  // The positions that may be written, from 0 on, if the table has `num_entries`.
  virtual int num_writable(int num_entries) const = 0;
  // Whether an entry sums up all tokens so far, so that each step reads it and writes it anew. Another sequence that
  // begins with the same tokens goes on from a copy that was kept in time, while full blocks can be shared.
  virtual bool sums_up() const = 0;
  // Whether a sequence can go on in two ways that share what it has so far.
  virtual bool can_fork() const = 0;
  // Whether a sequence needs more entries the longer it is.
  virtual bool grows() const = 0;
  // Whether sequences give back blocks while they run, each at its own time.
  virtual bool gives_back() const = 0;
  // The first entry that is needed once the next token to compute is at `position`; earlier ones are given back.
  virtual int first_needed(int position) const = 0;
  // The end of the table once a sequence of `length` tokens has the blocks to grow to `num_tokens`. Of a cache that
  // gives back blocks, only those for the next step count.
  virtual int table_end(int length, int num_tokens) const = 0;
  // The most entries that a sequence can hold at once from now on, given that `num_remaining` known tokens are still to
  // be computed and it grows to at most `max_length`.
  virtual int most_at_once(int num_remaining, int max_length) const = 0;
  // The most entries that each beam of a search can hold in addition to those of a prompt of `num_prompt` tokens.
  virtual int most_of_beam(int num_prompt, int max_length) const = 0;

  // The entries that `num_tokens` tokens have written.
  int num_entries(int num_tokens) const { return num_tokens > 0 ? entry(num_tokens - 1) + 1 : 0; }
};

// Keys and values, or latents, of all tokens.
class FullCache final : public CacheKind {
 public:
  explicit FullCache(int tokens_per_block) : tokens_per_block_(tokens_per_block) {}

  int entry(int position) const override { return position / tokens_per_block_; }
  int num_writable(int num_entries) const override { return num_entries * tokens_per_block_; }
  bool sums_up() const override { return false; }
  bool can_fork() const override { return true; }
  bool grows() const override { return true; }
  bool gives_back() const override { return false; }
  int first_needed(int) const override { return 0; }
  int table_end(int, int num_tokens) const override { return num_entries(num_tokens); }
  int most_at_once(int, int max_length) const override { return num_entries(max_length); }
  // Beams share the full blocks of the prompt.
  int most_of_beam(int num_prompt, int max_length) const override {
    return num_entries(max_length) - num_prompt / tokens_per_block_;
  }

 private:
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

  int entry(int position) const override { return all_.entry(position); }
  int num_writable(int num_entries) const override { return all_.num_writable(num_entries); }
  bool sums_up() const override { return false; }
  bool can_fork() const override { return true; }
  bool grows() const override { return true; }
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

// The state of recurrent layers after all tokens so far.
class StateCache final : public CacheKind {
 public:
  int entry(int) const override { return 0; }
  int num_writable(int num_entries) const override { return num_entries > 0 ? std::numeric_limits<int>::max() : 0; }
  bool sums_up() const override { return true; }
  bool can_fork() const override { return false; }
  bool grows() const override { return false; }
  bool gives_back() const override { return false; }
  int first_needed(int) const override { return 0; }
  int table_end(int, int num_tokens) const override { return num_entries(num_tokens); }
  int most_at_once(int, int max_length) const override { return num_entries(max_length); }
  int most_of_beam(int, int max_length) const override { return num_entries(max_length); }
};

// What blocks need to know of a cache group: the kind of the manifest, the window in tokens or 0, and the number of
// consecutive blocks that an entry of a table takes.
struct CacheSpec {
  CacheKindName kind = CacheKindName::kFull;
  int window = 0;
  int blocks = 1;
};

// A step computes at most `max_step_tokens` of a sequence.
inline std::shared_ptr<const CacheKind> make_cache_kind(const CacheSpec& spec, int tokens_per_block,
                                                        int max_step_tokens) {
  switch (spec.kind) {
    case CacheKindName::kWindow:
      return std::make_shared<WindowCache>(tokens_per_block, spec.window, max_step_tokens);
    case CacheKindName::kState:
      return std::make_shared<StateCache>();
    case CacheKindName::kFull:
    case CacheKindName::kLatent:
      break;
  }
  return std::make_shared<FullCache>(tokens_per_block);
}

}  // namespace tl
