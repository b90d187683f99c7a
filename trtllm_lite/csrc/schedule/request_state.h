// The states of a living request. Each is a type that owns exactly the resources the state has, and each transition
// consumes one state and returns the next: a transition that is missing here cannot be written.
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

#include "caches/block_promise.h"
#include "caches/kv_cache_manager.h"
#include "schedule/beam_group.h"
#include "schedule/request.h"
#include "schedule/slot_pool.h"

namespace tl {

class Running;
class Swapped;

// The resources that admission gives to a request.
struct Grant {
  Slot slot;
  KvSequence kv;
  std::optional<Promise> promise;    // empty: it may be preempted for lack of blocks
  std::unique_ptr<BeamGroup> beams;  // null unless it is a beam search; on the heap, as few requests have one
};

class Waiting {
 public:
  explicit Waiting(std::unique_ptr<Request> request) : request_(std::move(request)) {}
  Request& request() const { return *request_; }

 private:
  friend Running start(Waiting waiting, Grant grant);
  friend std::unique_ptr<Request> finish(Waiting waiting);
  std::unique_ptr<Request> request_;
};

class Running {
 public:
  Request& request() const { return *request_; }
  const Slot& slot() const { return grant_.slot; }
  const KvSequence& kv() const { return grant_.kv; }  // in a beam search, the prompt's sequence
  const Promise* promise() const { return grant_.promise ? &*grant_.promise : nullptr; }
  const BeamGroup* beams() const { return grant_.beams.get(); }
  Promise* promise() { return grant_.promise ? &*grant_.promise : nullptr; }
  BeamGroup* beams() { return grant_.beams.get(); }

 private:
  friend Running start(Waiting waiting, Grant grant);
  friend Running resume(Swapped swapped, Grant grant);
  friend Waiting preempt(Running running);
  friend std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch);
  friend std::unique_ptr<Request> finish(Running running);
  Running(std::unique_ptr<Request> request, Grant grant) : request_(std::move(request)), grant_(std::move(grant)) {}

  std::unique_ptr<Request> request_;
  Grant grant_;
};

class Swapped {
 public:
  Request& request() const { return *request_; }
  std::uint64_t step() const { return step_; }  // the step that copied it to the host
  HostSequence& kv() { return kv_; }
  const HostSequence& kv() const { return kv_; }

 private:
  friend std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch);
  friend Running resume(Swapped swapped, Grant grant);
  friend Waiting drop_swapped(Swapped swapped);
  friend std::unique_ptr<Request> finish(Swapped swapped);
  Swapped(std::unique_ptr<Request> request, HostSequence kv, std::uint64_t step)
      : request_(std::move(request)), kv_(std::move(kv)), step_(step) {}

  std::unique_ptr<Request> request_;
  HostSequence kv_;
  std::uint64_t step_;
};

inline Running start(Waiting waiting, Grant grant) { return Running(std::move(waiting.request_), std::move(grant)); }

// `grant.kv` is the sequence that the caller has swapped in.
inline Running resume(Swapped swapped, Grant grant) { return Running(std::move(swapped.request_), std::move(grant)); }

// Keeps tokens and rank. The KV cache content is computed again (or found in the prefix cache). A beam search starts
// over.
inline Waiting preempt(Running running) { return Waiting(std::move(running.request_)); }

// Keeps tokens, rank and KV cache content. Consumes `running` unless the host has too few blocks.
inline std::optional<Swapped> swap_out(Running& running, KvCacheManager& cache, StepBatch& batch) {
  std::optional<HostSequence> kv = cache.swap_out(running.grant_.kv, batch.copies);
  if (!kv) return std::nullopt;
  const Slot released = std::move(running.grant_.slot);
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
