// The states of a living request. Each is a type that owns exactly the resources the state has, and each transition
// consumes one state and returns the next: one that does not exist here cannot be written.
//
//            start                    swap_out
//   Waiting ------> Running <----> Swapped
//           <------         resume
//            preempt                         Swapped -> Waiting: drop_swapped (its copy was lost with a failed step)
//
// finish() ends a request from any state; what the state held goes back with it.
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include "batching/kv_cache_manager.h"
#include "batching/request.h"
#include "batching/slot_pool.h"

namespace tl {

class Running;
class Swapped;

class Waiting {
 public:
  explicit Waiting(std::unique_ptr<Request> request) : request_(std::move(request)) {}
  Request& request() const { return *request_; }

 private:
  friend Running start(Waiting waiting, Slot slot, KvSequence kv);
  friend std::unique_ptr<Request> finish(Waiting waiting);
  std::unique_ptr<Request> request_;
};

class Running {
 public:
  Request& request() const { return *request_; }
  const Slot& slot() const { return slot_; }
  const KvSequence& kv() const { return kv_; }

 private:
  friend Running start(Waiting waiting, Slot slot, KvSequence kv);
  friend Running resume(Swapped swapped, Slot slot, KvSequence kv);
  friend Waiting preempt(Running running);
  friend std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch);
  friend std::unique_ptr<Request> finish(Running running);
  Running(std::unique_ptr<Request> request, Slot slot, KvSequence kv)
      : request_(std::move(request)), slot_(std::move(slot)), kv_(std::move(kv)) {}

  std::unique_ptr<Request> request_;
  Slot slot_;
  KvSequence kv_;
};

class Swapped {
 public:
  Request& request() const { return *request_; }
  std::uint64_t step() const { return step_; }  // that copied it to the host
  HostSequence& kv() { return kv_; }

 private:
  friend std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch);
  friend Running resume(Swapped swapped, Slot slot, KvSequence kv);
  friend Waiting drop_swapped(Swapped swapped);
  friend std::unique_ptr<Request> finish(Swapped swapped);
  Swapped(std::unique_ptr<Request> request, HostSequence kv, std::uint64_t step)
      : request_(std::move(request)), kv_(std::move(kv)), step_(step) {}

  std::unique_ptr<Request> request_;
  HostSequence kv_;
  std::uint64_t step_;
};

inline Running start(Waiting waiting, Slot slot, KvSequence kv) {
  return Running(std::move(waiting.request_), std::move(slot), std::move(kv));
}

// The caller has swapped in what `swapped` holds: `kv`.
inline Running resume(Swapped swapped, Slot slot, KvSequence kv) {
  return Running(std::move(swapped.request_), std::move(slot), std::move(kv));
}

// Keeps tokens and rank; the KV cache content is computed again (or found in the prefix cache).
inline Waiting preempt(Running running) { return Waiting(std::move(running.request_)); }

// Keeps tokens, rank and KV cache content. Consumes `running`, unless the host has too few blocks.
inline std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch) {
  std::optional<HostSequence> kv = cache.swap_out(running.kv_, batch.copies);
  if (!kv) return std::nullopt;
  const Slot released = std::move(running.slot_);
  return Swapped(std::move(running.request_), std::move(*kv), batch.step);
}

inline Waiting drop_swapped(Swapped swapped) { return Waiting(std::move(swapped.request_)); }

inline std::unique_ptr<Request> finish(Waiting waiting) { return std::move(waiting.request_); }
inline std::unique_ptr<Request> finish(Running running) { return std::move(running.request_); }
inline std::unique_ptr<Request> finish(Swapped swapped) { return std::move(swapped.request_); }

using RequestState = std::variant<Waiting, Running, Swapped>;

inline Request& request_of(const RequestState& state) {
  return std::visit([](const auto& s) -> Request& { return s.request(); }, state);
}

}  // namespace tl
