// Handles of sequences. Only a handle holds KV blocks, and its destructor releases them.
#pragma once

#include <cstdint>
#include <utility>

namespace tl {

class KvCacheManager;

class SequenceHandle {
 public:
  SequenceHandle(SequenceHandle&& other) noexcept : manager_(std::exchange(other.manager_, nullptr)), id_(other.id_) {}
  SequenceHandle& operator=(SequenceHandle&& other) noexcept {
    std::swap(manager_, other.manager_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SequenceHandle();

 protected:
  friend class KvCacheManager;
  SequenceHandle(KvCacheManager* manager, std::uint32_t id) : manager_(manager), id_(id) {}

 private:
  KvCacheManager* manager_;  // null after a move
  std::uint32_t id_;
};

// A sequence in device blocks: it can be extended and read by steps.
class KvSequence : public SequenceHandle {
  using SequenceHandle::SequenceHandle;
  friend class KvCacheManager;
};

// A sequence swapped out to host blocks: it can only be swapped in again, or dropped.
class HostSequence : public SequenceHandle {
  using SequenceHandle::SequenceHandle;
  friend class KvCacheManager;
};

}  // namespace tl
