// The blocks of the KV cache, and which of them are promised to running requests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "caches/block_promise.h"
#include "caches/kv_cache_manager.h"
#include "schedule/request_state.h"
#include "schedule/scheduler_config.h"

namespace tl {

// A request's known tokens as the cache looks for them. The request must outlive the result.
inline TokenChain chain_of(Request& request) {
  return {request.tokens, request.hashes, request.spec.cache_salt, request.spec.rows.get()};
}

// Owns the cache's bookkeeping and the promises. Blocks change hands through it wherever a promise may be concerned: a
// request with a promise takes promised blocks, and others take only what is promised to none.
class KvBlocks {
 public:
  KvBlocks(const KvManagerConfig& config, CapacityPolicy policy) : policy_(policy), cache_(config) {}

  KvCacheManager& cache() { return cache_; }
  const KvCacheManager& cache() const { return cache_; }
  const KvGeometry& geometry() const { return cache_.geometry(); }
  const PromiseBook& promises() const { return promises_; }

  // The number of the request's known or pending tokens that are not in any step yet. The last of them yields the next
  // token.
  int remaining(const Running& running) const { return running.request().num_total() - cache_.length(running.kv()); }
  // The number of free blocks without those promised. If there are no promises, blocks shared in windowed groups count
  // once: a request that runs out of blocks later is preempted.
  int num_free(bool beside_promises) const;

  // Whether the request runs only with a promise of all blocks that it may still take.
  bool needs_promise(const Request& request) const {
    return policy_ == CapacityPolicy::kGuaranteedNoEvict || request.is_search();
  }
  // Promises a request that needs it what its sequence may still take.
  std::optional<Promise> promise(const Request& request, const KvSequence& kv);

  // Reserves blocks by KvCacheManager::reserve, but takes only those promised to `running` or to no request.
  bool reserve(Running& running, const KvSequence& kv, int num_tokens, std::vector<CopyOrder>& copies) {
    return cache_.is_writable(kv, num_tokens) || grow(running, kv, num_tokens, copies);
  }
  // Releases blocks by KvCacheManager::leave_behind; released blocks are promised to the request again.
  void leave_behind(Running& running, const KvSequence& kv, std::uint64_t last_step) {
    if (cache_.geometry().gives_back()) shrink(running, kv, last_step);
  }
  // Takes back the last `num_wrong` unsettled positions of the request and settles the others. A request that was
  // preempted since and must be computed again has none.
  void settle(RequestState& state, int num_wrong, std::uint64_t last_step);
  // Continues the beams of a search (BeamGroup::move).
  void move_beams(Running& running, std::span<const BeamMove> moves);

 private:
  bool grow(Running& running, const KvSequence& kv, int num_tokens, std::vector<CopyOrder>& copies);
  void shrink(Running& running, const KvSequence& kv, std::uint64_t last_step);

  const CapacityPolicy policy_;
  KvCacheManager cache_;
  PromiseBook promises_;
};

}  // namespace tl
