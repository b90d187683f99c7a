// A device with modelled step times, and the scheduler driven on it in virtual time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "schedule/scheduler.h"

// Times in milliseconds. The defaults fit a Llama-3.1-8B shape in bfloat16 on an H200 with blocks of 32 tokens: the
// simulated throughput is within 2 % of the measured one.
struct StepTimes {
  double base = 3.3;        // reading the weights
  double per_token = 0.02;  // matrix products and other work per row
  double decode_base = 0.3;
  double per_decode_row = 0.0011;
  double per_cached_token = 31.5e-6;  // read by a decode row
  double per_prefill_pair = 1e-6;     // a prompt token and a position that it attends to
  double per_copied_block = 0.1;      // in one direction
  int tile = 1;                       // tokens are computed in tiles of as many
  bool known = false;                 // whether the device knows what decode steps take

  double of_tokens(std::int64_t num_tokens) const {
    return base + per_token * static_cast<double>((num_tokens + tile - 1) / tile * tile);
  }
  double copying(const tl::StepBatch& batch) const {
    return per_copied_block * static_cast<double>(batch.copies.size());
  }
  double computing(const tl::StepBatch& batch) const {
    if (batch.rows.empty()) return 0;
    double ms = of_tokens(std::ssize(batch.token_ids));
    if (batch.num_decode_tokens > 0) ms += decode_base;
    for (const tl::StepRow& row : batch.rows) {
      ms += row.decodes() ? per_decode_row + per_cached_token * row.past_len
                          : per_prefill_pair * row.num_tokens * (row.past_len + row.num_tokens / 2.0);
    }
    return ms;
  }
};

class SimulatedDevice : public tl::StepExecutor {
 public:
  SimulatedDevice(int num_slots, const StepTimes& times)
      : num_slots_(num_slots), times_(times), request_of_(static_cast<std::size_t>(num_slots)) {}

  int num_slots() const override { return num_slots_; }
  double decode_seconds(int num_tokens) const override { return times_.known ? times_.of_tokens(num_tokens) / 1e3 : 0; }
  void set_slot(int slot, std::shared_ptr<const tl::SlotParams>, std::span<const std::int32_t> tokens, int) override {
    request_of_[static_cast<std::size_t>(slot)] = tokens[0];
  }
  void launch(const tl::StepBatch& batch) override {
    flights_[num_launched_++ % 2] = {&batch, times_.computing(batch) / 1e3, times_.copying(batch) / 1e3};
  }
  void wait(tl::StepResult& result) override {
    const Flight& flight = flights_[num_ended_++ % 2];
    seconds += flight.compute_seconds + flight.copy_seconds;
    result.rows.clear();
    result.rows.resize(flight.batch->rows.size());
    for (std::size_t i = 0; i < result.rows.size(); ++i) {
      const tl::StepRow& row = flight.batch->rows[i];
      result.rows[i].tokens.push_back(1);
      const double kept = keeps(request_of_[static_cast<std::size_t>(row.slot)]);
      for (int k = 0; k < row.num_drafts && uniform_(random_) < kept; ++k) result.rows[i].tokens.push_back(1);
    }
    result.compute_seconds = flight.compute_seconds;
    result.copy_seconds = flight.copy_seconds;
  }

  double seconds = 0;                                          // total time of all steps
  std::function<double(int)> keeps = [](int) { return 0.0; };  // probability that a draft token of a request is right

 private:
  struct Flight {
    const tl::StepBatch* batch = nullptr;
    double compute_seconds = 0, copy_seconds = 0;
  };
  int num_slots_;
  StepTimes times_;
  std::vector<int> request_of_;  // the first token of the prompt, by slot
  std::mt19937_64 random_{1};
  std::uniform_real_distribution<double> uniform_;
  std::array<Flight, 2> flights_;
  std::size_t num_launched_ = 0, num_ended_ = 0;
};

struct SimulatedRequest {
  int num_prompt, max_new_tokens;
  int num_generated;  // number of tokens after which the request ends, at most max_new_tokens
};

// Runs requests that have all arrived at the start.
class Simulation {
 public:
  Simulation(const tl::SchedulerConfig& config, const tl::KvManagerConfig& cache,
             const std::vector<SimulatedRequest>& requests, const StepTimes& times = {})
      : requests_(requests), device_(config.max_batch_size + 8, times), scheduler_(config, cache, device_) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      tl::RequestSpec spec;
      spec.prompt.assign(static_cast<std::size_t>(requests[i].num_prompt), static_cast<std::int32_t>(i));
      spec.max_new_tokens = requests[i].max_new_tokens;
      scheduler_.add(std::make_unique<tl::Request>(i + 1, std::move(spec), tl::Clock::time_point{}));
    }
  }

  void run() {
    while (!scheduler_.empty() || in_flight_ > 0) {
      const bool launched = launch();
      CHECK(launched || in_flight_ > 0);
      if (in_flight_ == 2 || !launched) collect();
    }
    CHECK(std::ssize(first_tokens) == std::ssize(requests_));
  }

  double seconds() const { return device_.seconds; }
  SimulatedDevice& device() { return device_; }
  double tokens_per_second = 0;  // while all requests ran: after each had its first token, until the first ended
  tl::SchedulerStats stats() const { return scheduler_.stats(); }
  std::int64_t num_preemptions() const { return stats().num_recompute_preemptions + stats().num_swap_preemptions; }
  // Mean share of blocks in use over the steps in which requests waited.
  double memory_use() const { return sum_of_use_ / std::max(num_full_steps_, 1); }

  std::vector<tl::RequestId> first_tokens;  // requests in the order of their first tokens
  int num_steps = 0;
  int most_preemptions = 0;  // most preemptions of a single request

 private:
  bool launch() {
    if (in_flight_ > 0 && batches_[(oldest_ + in_flight_ - 1) % 2].awaited) return false;
    tl::StepBatch& batch = batches_[(oldest_ + in_flight_) % 2];
    if (!scheduler_.prepare(batch, {}, events_)) return false;
    scheduler_.launched(batch);
    device_.launch(batch);
    ++in_flight_, ++num_steps;
    if (const tl::SchedulerStats now = stats(); now.num_waiting > 0) {
      ++num_full_steps_;
      sum_of_use_ += static_cast<double>(now.num_used_blocks) / now.num_blocks;
    }
    return true;
  }

  void collect() {
    device_.wait(result_);
    scheduler_.complete(batches_[oldest_], result_, {}, events_);
    oldest_ ^= 1, --in_flight_;
    std::vector<tl::RequestId> over;
    for (const tl::TokenEvent& token : events_.tokens) {
      num_tokens_ += token.tokens.size();
      const SimulatedRequest& request = requests_[token.id - 1];
      if (token.index == 0) first_tokens.push_back(token.id);
      const int num_generated = token.index + token.tokens.size();
      if (num_generated >= request.num_generated && request.num_generated < request.max_new_tokens) {
        over.push_back(token.id);
      }
    }
    if (first_tokens.size() < requests_.size()) num_tokens_ = 0, since_ = device_.seconds;
    for (const tl::RequestId id : over) scheduler_.end(id, tl::FinishReason::kEndId, "", {}, events_);
    for (const tl::RequestEnd& end : events_.ends) {
      most_preemptions = std::max(most_preemptions, end.timings.num_preemptions);
    }
    if (!events_.ends.empty() && tokens_per_second == 0) tokens_per_second = num_tokens_ / (device_.seconds - since_);
    events_.clear();
  }

  std::vector<SimulatedRequest> requests_;
  SimulatedDevice device_;
  tl::Scheduler scheduler_;
  std::array<tl::StepBatch, 2> batches_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  tl::StepResult result_;
  tl::EventBatch events_;
  double sum_of_use_ = 0, num_tokens_ = 0, since_ = 0;
  int num_full_steps_ = 0;
};
