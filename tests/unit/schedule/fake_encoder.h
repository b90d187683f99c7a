// An encoder whose embedding of a text is a function of its tokens and their order.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "executor/embedding.h"
#include "executor/step.h"

using Embedding = std::vector<float>;

inline Embedding embedding_of(std::span<const std::int32_t> tokens) {
  std::uint32_t hash = 17;
  for (const std::int32_t token : tokens) hash = hash * 31 + static_cast<std::uint32_t>(token);
  return {static_cast<float>(hash % 65521), static_cast<float>(tokens.size())};
}

// A step is executed as late as the contract allows: when its results are awaited, after the launch of the next step.
// It pauses whenever it may, until it has run for as long as its tokens take. If steps run on while they are paused, it
// pauses if wake() was called, or a step launched, since it last did.
class FakeEncoder : public tl::StepExecutor {
 public:
  FakeEncoder(int max_batch_size, int max_num_tokens, const tl::StepBounds& beside = {}, bool runs_while_paused = false)
      : max_batch_size_(max_batch_size),
        max_num_tokens_(max_num_tokens),
        beside_(beside),
        runs_while_paused_(runs_while_paused) {}

  // Hooks that inject faults; any may throw. `row_error` may also return an error message for one row.
  std::function<void(const tl::StepBatch&)> on_launch = [](const tl::StepBatch&) {};
  std::function<void(const tl::StepBatch&)> on_wait = [](const tl::StepBatch&) {};
  std::function<std::string(const tl::StepRow&)> row_error = [](const tl::StepRow&) { return std::string(); };
  double seconds_per_token = 0;

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const tl::SlotParams>, std::span<const std::int32_t>, int) override {
    CHECK(false);  // texts have no slots
  }

  void launch(const tl::StepBatch& batch) override {
    CHECK(batch.step > last_step_ && !batch.rows.empty() && batch.copies.empty() && launched_.size() < 2);
    last_step_ = batch.step;
    CHECK(std::ssize(batch.rows) <= max_batch_size_ && std::ssize(batch.token_ids) <= max_num_tokens_);
    std::int32_t num_tokens = 0;
    for (const tl::StepRow& row : batch.rows) {  // whole texts, one after the other
      CHECK(row.first_token == num_tokens && row.num_tokens > 0 && row.past_len == 0 && !row.sample);
      num_tokens += row.num_tokens;
    }
    CHECK(num_tokens == std::ssize(batch.token_ids));
    check_turn(batch);
    on_launch(batch);
    launched_.push_back(&batch);
    if (batch.turn != tl::StepTurn::kGoOn) has_mail_ = true;
  }

  void wait(tl::StepResult& result) override {
    const tl::StepBatch& batch = *launched_.front();
    launched_.pop_front();
    std::optional<Paused> before;
    if (batch.turn != tl::StepTurn::kBeside) before = std::exchange(paused_, std::nullopt);
    on_wait(batch);
    result.rows.resize(batch.rows.size());
    const double all = seconds_per_token * static_cast<double>(batch.token_ids.size());
    const double left = batch.turn == tl::StepTurn::kGoOn ? before->seconds_left : all;
    result.paused = pauses(batch, left);
    if (result.paused) {
      result.compute_seconds = runs_while_paused_ ? 0 : batch.pause_after;
      paused_ = Paused{batch.token_ids, left - result.compute_seconds};
      return;
    }
    result.compute_seconds = runs_while_paused_ ? all : left;
    if (batch.turn == tl::StepTurn::kBeside && runs_while_paused_) paused_->seconds_left -= all;
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      const tl::StepRow& row = batch.rows[i];
      const auto embedding = embedding_of(tokens_of(batch, row));
      tl::set_embedding(result.rows[i], embedding, embedding.size());
      result.rows[i].error = row_error(row);
    }
  }
  tl::StepBounds beside_paused() const override { return beside_; }
  bool runs_while_paused() const override { return runs_while_paused_; }
  void wake() override { has_mail_ = true; }

  static std::span<const std::int32_t> tokens_of(const tl::StepBatch& batch, const tl::StepRow& row) {
    return std::span(batch.token_ids)
        .subspan(static_cast<std::size_t>(row.first_token), static_cast<std::size_t>(row.num_tokens));
  }

 private:
  struct Paused {
    std::vector<std::int32_t> token_ids;
    double seconds_left;
  };

  void check_turn(const tl::StepBatch& batch) const {
    const bool is_beside = batch.turn == tl::StepTurn::kBeside;
    CHECK(batch.pause_after == 0 || (beside_.max_rows > 0 && batch.awaited && !is_beside));
    if (batch.turn == tl::StepTurn::kAnew) {
      CHECK(!paused_ || !runs_while_paused_);
      return;
    }
    CHECK(paused_.has_value() && launched_.empty());
    if (!is_beside) CHECK(batch.token_ids == paused_->token_ids);
    if (is_beside) CHECK(std::ssize(batch.rows) <= beside_.max_rows);
    if (is_beside) CHECK(std::ssize(batch.token_ids) <= beside_.max_tokens);
  }

  bool pauses(const tl::StepBatch& batch, double seconds_left) {
    if (batch.pause_after == 0) return false;
    if (runs_while_paused_) return seconds_left > 0 && has_mail_.exchange(false);
    return seconds_left > batch.pause_after * 1.001;
  }

  int max_batch_size_, max_num_tokens_;
  tl::StepBounds beside_;
  bool runs_while_paused_;
  std::atomic<bool> has_mail_ = false;
  std::optional<Paused> paused_;
  std::deque<const tl::StepBatch*> launched_;
  std::uint64_t last_step_ = 0;
};
