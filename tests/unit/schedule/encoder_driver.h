// An encoder's planner and a fake device, driven step by step like the event loop does, with every invariant checked.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "fake_encoder.h"
#include "schedule/encoder/encoder_planner.h"

// What was asked for a text, and what came of it.
struct HeardText {
  tl::RequestSpec spec;
  std::optional<Embedding> embedding;
  std::optional<tl::RequestEnd> end;

  void check() const {
    CHECK(end.has_value() && embedding.has_value() == (end->reason == tl::FinishReason::kEndId));
    if (embedding) CHECK(*embedding == embedding_of(spec.prompt));
    CHECK(end->timings.num_prompt_tokens == std::ssize(spec.prompt) && end->timings.num_generated_tokens == 0);
  }
};

class EncoderDriver {
 public:
  explicit EncoderDriver(const tl::EncoderConfig& config, const tl::StepBounds& beside = {},
                         bool runs_while_paused = false)
      : executor(config.max_batch_size, config.max_num_tokens, beside, runs_while_paused), planner(config, executor) {}

  tl::RequestId submit(tl::RequestSpec spec) {
    const tl::RequestId id = ++last_id_;
    heard[id].spec = spec;
    planner.add(std::make_unique<tl::Request>(id, std::move(spec), now));
    executor.wake();
    return id;
  }
  // Submits a text of `length` tokens of which no other begins with the same.
  tl::RequestId submit(int length, std::uint64_t flow = 0, int priority = 0) {
    tl::RequestSpec spec;
    spec.prompt.assign(static_cast<std::size_t>(length), static_cast<std::int32_t>(last_id_ + 1));
    spec.max_new_tokens = 0;
    spec.flow = flow;
    spec.priority = priority;
    return submit(std::move(spec));
  }

  void end(tl::RequestId id, tl::FinishReason reason) {
    planner.end(id, reason, "", now, events_);
    hear();
  }

  // Prepares and launches a step, then waits for the oldest step if two are in flight. Returns false when there is
  // nothing left to do.
  bool step() {
    now += std::chrono::milliseconds(1);
    planner.expire(now, events_);
    tl::StepBatch& batch = batches_[(oldest_ + num_in_flight_) % 2];
    const bool waits = num_in_flight_ == 1 && batches_[oldest_].awaited;
    const bool launched = !waits && planner.prepare(batch, now, events_);
    if (launched) {
      planner.launched(batch);
      ++num_in_flight_;
      ++num_steps;
      if (on_step) on_step(batch);
      executor.launch(batch);
    }
    check();
    if (num_in_flight_ == 2 || (num_in_flight_ > 0 && !launched)) collect();
    check();
    return launched || num_in_flight_ > 0;
  }

  void run() {
    for (int idle = 0; !planner.empty() || num_in_flight_ > 0; idle = step() ? 0 : idle + 1) CHECK(idle < 2);
  }

  FakeEncoder executor;
  tl::EncoderPlanner planner;
  std::map<tl::RequestId, HeardText> heard;
  std::vector<tl::RequestId> end_order;
  std::function<void(const tl::StepBatch&)> on_step;
  int num_steps = 0;
  tl::Clock::time_point now{};

 private:
  void collect() {
    const tl::StepBatch& batch = batches_[oldest_];
    try {
      executor.wait(result_);
      planner.complete(batch, result_, now, events_);
      oldest_ = 1 - oldest_;
      --num_in_flight_;
    } catch (const tl::StepError& error) {
      executor.on_wait = [](const tl::StepBatch&) {};
      std::vector<const tl::StepBatch*> failed{&batch};
      if (num_in_flight_ == 2) {
        failed.push_back(&batches_[1 - oldest_]);
        executor.wait(result_);
      }
      num_in_flight_ = 0;
      planner.abandon(failed, error, now, events_);
    }
  }

  void check() {
    planner.check_integrity();
    hear();
    int num_alive = 0;
    for (const auto& [_, text] : heard) num_alive += !text.end;
    const tl::SchedulerStats stats = planner.stats();
    CHECK(stats.num_running + stats.num_waiting == num_alive);
  }

  void hear() {
    for (tl::TokenEvent& event : events_.tokens) {
      HeardText& text = heard.at(event.id);
      CHECK(!text.embedding && !text.end && event.tokens.empty());
      text.embedding = dynamic_cast<tl::EmbeddingOutputs&>(*event.outputs).values;
    }
    for (tl::RequestEnd& end : events_.ends) {
      CHECK(!heard.at(end.id).end);
      end_order.push_back(end.id);
      heard.at(end.id).end = std::move(end);
    }
    events_.clear();
  }

  std::array<tl::StepBatch, 2> batches_;
  std::size_t oldest_ = 0, num_in_flight_ = 0;
  tl::StepResult result_;
  tl::EventBatch events_;
  tl::RequestId last_id_ = 0;
};
