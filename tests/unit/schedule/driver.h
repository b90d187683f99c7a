// A scheduler and a fake device, driven step by step like the event loop does, with every invariant checked.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>

#include "check.h"
#include "fake_executor.h"
#include "schedule/scheduler.h"

inline Tokens random_tokens(std::mt19937_64& random, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(random() % kVocab));
  return tokens;
}

inline tl::RequestSpec spec_of(Tokens prompt, int max_new_tokens, std::uint64_t seed = 0) {
  tl::RequestSpec spec;
  spec.prompt = std::move(prompt);
  spec.max_new_tokens = max_new_tokens;
  auto params = std::make_shared<FakeParams>();
  params->seed = seed;
  spec.params = std::move(params);
  return spec;
}

// The spec of a request with a grammar, whose rows are late when their masks are.
inline tl::RequestSpec guided(tl::RequestSpec spec) {
  auto params = std::make_shared<FakeParams>(dynamic_cast<const FakeParams&>(*spec.params));
  params->guided = spec.guided = true;
  spec.params = std::move(params);
  return spec;
}

inline tl::RequestSpec search_of(Tokens prompt, int max_new_tokens, int num_beams, std::uint64_t seed = 0) {
  tl::RequestSpec spec = spec_of(std::move(prompt), max_new_tokens);
  spec.num_beams = num_beams;
  auto params = std::make_shared<FakeParams>();
  params->seed = seed;
  params->num_beams = num_beams;
  params->max_new_tokens = max_new_tokens;
  spec.params = std::move(params);
  return spec;
}

// The events that the consumer received for one request, and what they must be.
struct Heard {
  tl::RequestSpec spec;
  Tokens tokens;
  std::vector<Tokens> found;
  std::vector<int> prompt_positions;
  std::optional<tl::RequestEnd> end;
  std::int64_t admitted_step = -1;

  const FakeParams& params() const { return dynamic_cast<const FakeParams&>(*spec.params); }
  Tokens expected() const { return reference(spec.prompt, params().seed, spec.max_new_tokens); }
  bool ran_to_its_end() const {
    return end && (end->reason == tl::FinishReason::kLength || end->reason == tl::FinishReason::kEndId);
  }
  void take(tl::RowOutputs& outputs) {
    auto& taken = dynamic_cast<FakeOutputs&>(outputs);
    prompt_positions.insert(prompt_positions.end(), taken.positions.begin(), taken.positions.end());
    if (!taken.found.empty()) CHECK(found.empty());
    if (!taken.found.empty()) found = std::move(taken.found);
  }
  // Checks that every token so far is right and none is missing; a request that ran to its end has all of them.
  void check() const {
    if (spec.num_beams > 0) {
      CHECK(tokens.empty() && found.empty() != ran_to_its_end());
      if (ran_to_its_end()) CHECK(found == reference_search(spec.prompt, params()));
      return;
    }
    const Tokens all = expected();
    CHECK(tokens.size() <= all.size() && std::equal(tokens.begin(), tokens.end(), all.begin()));
    if (end && end->reason == tl::FinishReason::kLength) CHECK(tokens.size() == all.size());
  }
};

class Driver {
 public:
  Driver(tl::SchedulerConfig scheduler_config, tl::KvManagerConfig cache, int num_slots = 0, int num_stages = 1)
      : executor({.num_slots = num_slots > 0 ? num_slots : scheduler_config.max_batch_size + 2,
                  .num_blocks = cache.num_blocks,
                  .num_host_blocks = cache.num_host_blocks,
                  .tokens_per_block = cache.tokens_per_block,
                  .groups = cache.groups,
                  .num_stages = num_stages}),
        scheduler(scheduler_config, cache, executor),
        batches_(static_cast<std::size_t>(num_stages) + 1) {}

  tl::RequestId submit(tl::RequestSpec spec) {
    const tl::RequestId id = ++last_id_;
    heard[id].spec = spec;
    scheduler.add(std::make_unique<tl::Request>(id, std::move(spec), now));
    return id;
  }

  void end(tl::RequestId id, tl::FinishReason reason) {
    scheduler.end(id, reason, "", now, events_);
    hear();
  }

  // Prepares and launches a step, then waits for the oldest step if the pipeline is full. Returns false when there is
  // nothing left to do.
  bool step() {
    now += std::chrono::milliseconds(1);
    tl::StepBatch& batch = in_flight(in_flight_);
    const bool has_to_wait = may_wait || executor.late_with_results;
    const bool waits = in_flight_ + 1 == batches_.size() && in_flight(0).awaited && has_to_wait;
    const bool launched = !waits && scheduler.prepare(batch, now, events_);
    for (const int slab : scheduler.take_lent()) {
      executor.take_away(scheduler.cache().lent().blocks_of(slab));
      lent.push_back(slab);
    }
    if (launched) {
      scheduler.launched(batch);
      ++in_flight_;
      ++num_steps;
      if (on_step) on_step(batch);
      executor.launch(batch);
      if (in_flight_ == 1) scheduler.sit_out(batch, executor.late_rows(), now, events_);
    }
    check();
    if (in_flight_ == batches_.size() || (in_flight_ > 0 && !launched)) collect();
    check();
    return launched || in_flight_ > 0;
  }

  void give_back(int slab) {
    executor.bring_back(scheduler.cache().lent().blocks_of(slab));
    scheduler.give_back(slab);
    std::erase(lent, slab);
  }

  void run() {
    for (int idle = 0; !scheduler.empty() || in_flight_ > 0; idle = step() ? 0 : idle + 1) CHECK(idle < 2);
  }

  // Fails all requests, like the event loop does after an internal error.
  void reset() {
    for (; in_flight_ > 0; --in_flight_) executor.wait(result_);
    scheduler.reset("internal error", now, events_);
    check();
  }

  // Checks, after the end of all requests, that all blocks and slots are free.
  void check_all_returned() {
    CHECK(scheduler.empty() && in_flight_ == 0);
    const tl::SchedulerStats stats = scheduler.stats();
    CHECK(stats.num_used_blocks == 0 && scheduler.cache().device().num_ready() == stats.num_blocks);
    CHECK(stats.num_free_host_blocks == scheduler.cache().config().num_host_blocks);
    for (const auto& [id, request] : heard) CHECK(request.end.has_value());
  }

  FakeExecutor executor;
  tl::Scheduler scheduler;
  std::map<tl::RequestId, Heard> heard;
  std::vector<int> lent;  // slabs of the cache's memory
  std::function<void(const tl::StepBatch&)> on_step;
  std::vector<tl::RequestId> end_order;
  int num_steps = 0;
  bool may_wait = true;  // wait for awaited steps; they are always waited for if only results say which rows are late
  tl::Clock::time_point now{};

 private:
  void collect() {
    const tl::StepBatch& batch = in_flight(0);
    try {
      executor.wait(result_);
      if (in_flight_ == 2) scheduler.sit_out(in_flight(1), executor.late_rows(), now, events_);
      scheduler.complete(batch, result_, now, events_);
      oldest_ = (oldest_ + 1) % batches_.size();
      --in_flight_;
    } catch (const tl::StepError& error) {
      executor.on_wait = [](const tl::StepBatch&) {};
      std::vector<const tl::StepBatch*> failed{&batch};
      while (failed.size() < in_flight_) {
        failed.push_back(&in_flight(failed.size()));
        CHECK_THROWS(tl::StepError, executor.wait(result_), "before");
      }
      scheduler.abandon(failed, error, now, events_);
      in_flight_ = 0;
    }
    hear();
  }

  void hear() {
    for (tl::TokenEvent& event : events_.tokens) {
      Heard& request = heard.at(event.id);
      CHECK(!request.end);
      if (event.outputs) request.take(*event.outputs);
      if (event.tokens.empty()) continue;
      CHECK(event.index == std::ssize(request.tokens));
      request.tokens.insert(request.tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    for (tl::RequestEnd& end : events_.ends) {
      Heard& request = heard.at(end.id);
      CHECK(!request.end);
      end_order.push_back(end.id);
      request.end = std::move(end);
      request.check();
    }
    events_.clear();
  }

  void check() {
    scheduler.check_integrity();
    hear();
  }

  tl::StepBatch& in_flight(std::size_t number) { return batches_[(oldest_ + number) % batches_.size()]; }

  std::vector<tl::StepBatch> batches_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  tl::StepResult result_;
  tl::EventBatch events_;
  tl::RequestId last_id_ = 0;
};
