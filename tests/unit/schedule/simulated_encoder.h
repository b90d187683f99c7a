// A GPU with modelled times of an encoder's steps, and its planner driven by clients in virtual time.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "executor/embedding.h"
#include "schedule/encoder/encoder_planner.h"

// Times in milliseconds, of an encoder of 150 million parameters in bfloat16 on an H200. A step beside another takes
// longer than alone, and the other one is held up meanwhile.
struct EncoderTimes {
  double base = 0.8, per_token = 1e-3;
  double beside_factor = 2.5;
  double held_up = 0.5;     // the part of the time of a step beside it that a step loses
  double per_launch = 0.1;  // of the host

  double of(const tl::StepBatch& batch) const { return base + per_token * static_cast<double>(batch.token_ids.size()); }
};

class SimulatedEncoder : public tl::StepExecutor {
 public:
  // `beside`: empty if steps are never paused.
  SimulatedEncoder(const EncoderTimes& times, const tl::StepBounds& beside) : times_(times), beside_(beside) {}

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const tl::SlotParams>, std::span<const std::int32_t>, int) override {}
  tl::StepBounds beside_paused() const override { return beside_; }
  bool runs_while_paused() const override { return true; }
  void wake() override { has_mail_ = true; }

  void launch(const tl::StepBatch& batch) override {
    now += times_.per_launch;
    has_mail_ = has_mail_ || batch.turn != tl::StepTurn::kGoOn;
    if (batch.turn == tl::StepTurn::kBeside) {
      const bool is_alone = now >= last_.end;
      const double end = now + (is_alone ? 1 : times_.beside_factor) * times_.of(batch);
      if (!is_alone) last_.end += times_.held_up * (end - now);
      flights_.push_back({&batch, now, end});
      return;
    }
    if (batch.turn == tl::StepTurn::kAnew) {
      last_.begin = std::max(now, last_.end);
      last_.end = last_.begin + times_.of(batch);
    }
    flights_.push_back({&batch, last_.begin, last_.end});
  }

  void wait(tl::StepResult& result) override {
    const Flight flight = flights_.front();
    flights_.pop_front();
    result.rows.resize(flight.batch->rows.size());
    const bool is_over = now >= flight.end;
    result.paused = false;
    if (flight.batch->pause_after > 0 && !is_over) {
      const double mail = has_mail_ ? now : std::max(now, next_arrival());
      has_mail_ = false;
      result.paused = mail < flight.end;
      now = std::min(mail, flight.end);
      if (result.paused) last_pause = now;
    }
    if (!result.paused) now = std::max(now, flight.end);
    result.compute_seconds = result.paused ? 0 : (flight.end - flight.begin) / 1e3;
    for (tl::RowResult& row : result.rows) tl::set_embedding(row, std::array{1.0f}, 1);
  }

  double now = 0, last_pause = 0;
  std::function<double()> next_arrival;

 private:
  struct Flight {
    const tl::StepBatch* batch = nullptr;
    double begin = 0, end = 0;
  };

  const EncoderTimes times_;
  const tl::StepBounds beside_;
  Flight last_;  // the last step that does not run beside another
  bool has_mail_ = false;
  std::deque<Flight> flights_;
};

// Clients that each have one text outstanding at a time, of at least `shortest` and at most `longest` tokens, and take
// up to `most_pause` milliseconds to send the next.
struct EncoderClients {
  int count;
  int shortest, longest;
  double most_pause;
};

// Drives the planner as the event loop does.
class EncoderSimulation {
 public:
  EncoderSimulation(const tl::EncoderConfig& config, const EncoderTimes& times, const tl::StepBounds& beside,
                    const std::vector<EncoderClients>& clients)
      : executor_(times, beside), planner_(config, executor_) {
    executor_.next_arrival = [this] { return arrivals_.empty() ? 1e300 : arrivals_.begin()->first; };
    for (const EncoderClients& group : clients) {
      for (int i = 0; i < group.count; ++i) {
        groups_.push_back(group);
        send_next(std::ssize(groups_) - 1);
      }
    }
    latencies.resize(groups_.size());
    num_tokens.resize(groups_.size());
  }

  void run(double milliseconds) {
    while (executor_.now < milliseconds) iterate();
  }

  double now() const { return executor_.now; }
  std::vector<std::vector<double>> latencies;  // by client
  std::vector<std::int64_t> num_tokens;        // embedded, by client

 private:
  struct Sent {
    std::int64_t client;
    double at;
    int num_tokens;
  };

  void send_next(std::int64_t client) {
    const EncoderClients& group = groups_[static_cast<std::size_t>(client)];
    arrivals_.emplace(executor_.now + std::uniform_real_distribution(0.0, group.most_pause)(random_), client);
  }

  void take_arrivals() {
    while (!arrivals_.empty() && arrivals_.begin()->first <= executor_.now) {
      const auto [at, client] = *arrivals_.begin();
      arrivals_.erase(arrivals_.begin());
      if (at > executor_.last_pause) executor_.wake();
      const EncoderClients& group = groups_[static_cast<std::size_t>(client)];
      const int length = std::uniform_int_distribution(group.shortest, group.longest)(random_);
      tl::RequestSpec spec;
      spec.prompt.assign(static_cast<std::size_t>(length), 1);
      spec.max_new_tokens = 0;
      spec.flow = static_cast<std::uint64_t>(client);
      sent_[++last_id_] = {client, at, length};
      planner_.add(std::make_unique<tl::Request>(last_id_, std::move(spec), tl::Clock::time_point{}));
    }
  }

  void iterate() {
    take_arrivals();
    tl::StepBatch& batch = batches_[(oldest_ + in_flight_) % 2];
    const bool waits = in_flight_ == 1 && batches_[oldest_].awaited;
    const bool launched = !waits && planner_.prepare(batch, {}, events_);
    if (launched) {
      planner_.launched(batch);
      ++in_flight_;
      executor_.launch(batch);
    }
    if (in_flight_ == 2 || (in_flight_ > 0 && !launched)) {
      collect();
    } else if (in_flight_ == 0) {
      executor_.now = std::max(executor_.now, executor_.next_arrival());
    }
  }

  void collect() {
    executor_.wait(result_);
    planner_.complete(batches_[oldest_], result_, {}, events_);
    oldest_ = 1 - oldest_;
    --in_flight_;
    for (const tl::RequestEnd& end : events_.ends) {
      const Sent& sent = sent_.at(end.id);
      latencies[static_cast<std::size_t>(sent.client)].push_back(executor_.now - sent.at);
      num_tokens[static_cast<std::size_t>(sent.client)] += sent.num_tokens;
      send_next(sent.client);
      sent_.erase(end.id);
    }
    events_.clear();
  }

  SimulatedEncoder executor_;
  tl::EncoderPlanner planner_;
  std::vector<EncoderClients> groups_;  // by client
  std::multimap<double, std::int64_t> arrivals_;
  std::map<tl::RequestId, Sent> sent_;
  tl::RequestId last_id_ = 0;
  std::mt19937_64 random_{1};
  std::array<tl::StepBatch, 2> batches_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  tl::StepResult result_;
  tl::EventBatch events_;
};
