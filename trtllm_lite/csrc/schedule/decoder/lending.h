// Memory of the KV cache that is lent to other uses of the device.
#pragma once

#include <utility>
#include <vector>

#include "schedule/decoder/kv_blocks.h"
#include "schedule/decoder/running_set.h"

namespace tl {

// Owns the orders for slabs and what has been lent since it was last asked. Running requests keep what they need; no
// request is admitted before there is room for the slab.
class Lending {
 public:
  // Borrows the arguments.
  Lending(KvBlocks& blocks, const RunningSet& running) : blocks_(blocks), running_(running) {}

  // Asks for `num_slabs` more slabs. Throws std::logic_error if more would be lent than SlabLayout allows.
  void lend(int num_slabs);
  // Lends slabs that are asked for, as far as they are free.
  void go_on();
  // Takes the slabs that have been lent since the last call.
  std::vector<int> take_lent() { return std::exchange(lent_, {}); }
  void give_back(int slab);

  // Whether a slab is asked for that has no room yet: what becomes free is lent first.
  bool holds_back_admission() const { return num_wanted_ > 0 && !blocks_.cache().lent().leaving(); }
  // Slabs that requests leave unused.
  int num_spare_slabs() const;
  // Notes that a request lacks blocks: lent memory is asked for, once until some comes back or more is lent.
  void miss_blocks();
  // Whether lent memory has been asked for since the last call.
  bool take_short_of_blocks() { return std::exchange(short_of_blocks_, false); }

 private:
  int num_spare_blocks() const;

  KvBlocks& blocks_;
  const RunningSet& running_;
  int num_wanted_ = 0;
  std::vector<int> lent_;
  bool short_of_blocks_ = false, has_asked_ = false;
};

}  // namespace tl
