#include "caches/lent_slabs.h"

#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace tl {

LentSlabs::LentSlabs(const SlabLayout& layout, int num_blocks) : layout_(layout) {
  if (layout.max_lent == 0) return;
  if (layout.max_lent < 0 || layout.block_bytes < 1 || layout.slab_bytes < 1) {
    throw std::invalid_argument("KV cache: expected lent slabs and blocks of 1 byte or more");
  }
  states_.resize(static_cast<std::size_t>(num_blocks * layout.block_bytes / layout.slab_bytes));
  if (layout.max_lent >= num_slabs()) {
    throw std::invalid_argument("KV cache: expected fewer lent slabs than the " + std::to_string(num_slabs()) +
                                " that its blocks fill, found " + std::to_string(layout.max_lent));
  }
}

int LentSlabs::max_blocks_of_slab() const {
  if (layout_.max_lent == 0) return 0;
  // A slab begins at a multiple of this many bytes after the beginning of a block.
  const std::int64_t step = std::gcd(layout_.slab_bytes, layout_.block_bytes);
  const std::int64_t num_blocks = (layout_.slab_bytes - step + layout_.block_bytes - 1) / layout_.block_bytes + 1;
  return static_cast<int>(num_blocks);
}

int LentSlabs::num_present(int slab, const BlockPool& pool) const {
  int num_present = 0;
  for (std::int32_t block = first(slab); block <= last(slab); ++block) num_present += !pool.is_absent(block);
  return num_present;
}

std::optional<int> LentSlabs::choose(const BlockPool& pool) const {
  std::optional<int> best;
  std::pair least(std::numeric_limits<int>::max(), 0);
  for (int slab = 1; slab < num_slabs(); ++slab) {
    if (states_[static_cast<std::size_t>(slab)] != State::kHome) continue;
    std::pair cost(0, 0);
    for (std::int32_t block = first(slab); block <= last(slab); ++block) {
      cost.first += !pool.is_absent(block) && !pool.is_ready(block);
      cost.second += pool.is_cached(block);
    }
    if (cost >= least) continue;
    least = cost;
    best = slab;
  }
  return best;
}

void LentSlabs::begin(int slab, const BlockPool& pool) {
  if (leaving_ || states_[static_cast<std::size_t>(slab)] != State::kHome || num_lent_ == layout_.max_lent) {
    throw std::logic_error("KV cache: slab " + std::to_string(slab) + " cannot be lent now");
  }
  states_[static_cast<std::size_t>(slab)] = State::kLeaving;
  leaving_ = slab;
  num_leaving_ = num_present(slab, pool);
}

std::optional<int> LentSlabs::go_on(BlockPool& pool) {
  if (!leaving_) return std::nullopt;
  for (std::int32_t block = first(*leaving_); block <= last(*leaving_); ++block) {
    if (!pool.is_ready(block)) continue;
    pool.remove(block);
    --num_leaving_;
  }
  return num_leaving_ == 0 ? std::optional(end_leaving()) : std::nullopt;
}

int LentSlabs::end_leaving() {
  const int slab = *std::exchange(leaving_, std::nullopt);
  states_[static_cast<std::size_t>(slab)] = State::kLent;
  ++num_lent_;
  return slab;
}

void LentSlabs::give_back(int slab, BlockPool& pool) {
  if (slab < 0 || slab >= num_slabs() || !is_lent(slab)) {
    throw std::logic_error("KV cache: slab " + std::to_string(slab) + " is not lent");
  }
  states_[static_cast<std::size_t>(slab)] = State::kHome;
  --num_lent_;
  for (std::int32_t block = first(slab); block <= last(slab); ++block) {
    if (pool.is_absent(block) && is_whole(block)) pool.restore(block);
  }
}

// Whether no slab of the block is lent or on its way.
bool LentSlabs::is_whole(std::int64_t block) const {
  const std::int64_t from = block * layout_.block_bytes / layout_.slab_bytes;
  const std::int64_t to = ((block + 1) * layout_.block_bytes - 1) / layout_.slab_bytes;
  for (std::int64_t slab = from; slab <= to && slab < num_slabs(); ++slab) {
    if (states_[static_cast<std::size_t>(slab)] != State::kHome) return false;
  }
  return true;
}

}  // namespace tl
