// An executor that computes nothing but takes a given time for each step, to measure the serving code alone.
#include <nanobind/nanobind.h>

#include <chrono>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "bindings/testing/testing.h"
#include "executor/device_executor.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Clock = std::chrono::steady_clock;

// Every row that samples gets a random token of the vocabulary.
class PacedSteps : public StepExecutor {
 public:
  PacedSteps(int num_slots, int vocab_size, Clock::duration step)
      : num_slots_(num_slots), token_(0, vocab_size - 1), step_(step) {}

  int num_slots() const override { return num_slots_; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override {
    std::vector<bool>& samples = launched_.emplace_back();
    for (const StepRow& row : batch.rows) samples.push_back(row.sample);
  }
  void wait(StepResult& result) override {
    due_ = std::max(due_, Clock::now() - step_) + step_;
    std::this_thread::sleep_until(due_);
    result.compute_seconds = std::chrono::duration<double>(step_).count();
    const std::vector<bool>& samples = launched_.front();
    result.rows.resize(samples.size());
    for (std::size_t row = 0; row < samples.size(); ++row) {
      result.rows[row].tokens.clear();
      if (samples[row]) result.rows[row].tokens.push_back(token_(random_));
    }
    launched_.pop_front();
  }

 private:
  int num_slots_;
  std::mt19937 random_;
  std::uniform_int_distribution<std::int32_t> token_;
  Clock::duration step_;
  Clock::time_point due_;
  std::deque<std::vector<bool>> launched_;
};

class PacedExecutor : public DeviceExecutor {
 public:
  PacedExecutor(const Engine& engine, std::int64_t num_blocks, double step_seconds)
      : engine_(engine), num_blocks_(num_blocks), step_seconds_(step_seconds) {}

  const Engine& engine() const override { return engine_; }
  std::int64_t num_blocks() const override { return num_blocks_; }
  MemoryUse memory() const override { return {}; }
  StepOutput output(const std::string&, const RowSlice&) override { return {}; }

 private:
  std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t, int max_batch_size) override {
    const auto step = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step_seconds_));
    const int vocab_size = static_cast<int>(engine_.manifest().model.vocab_size);
    return std::make_unique<PacedSteps>(2 * max_batch_size, vocab_size, step);
  }

  const Engine& engine_;
  std::int64_t num_blocks_;
  double step_seconds_;
};

}  // namespace

void bind_paced_executor(nb::module_& module) {
  nb::class_<PacedExecutor, DeviceExecutor>(module, "PacedExecutor", R"(
      Computes nothing: each step takes ``step_seconds``, and each sampling row gets a random token.)")
      .def(nb::init<const Engine&, std::int64_t, double>(), nb::arg("engine"), nb::kw_only(), nb::arg("num_blocks"),
           nb::arg("step_seconds"), nb::keep_alive<1, 2>());
}

}  // namespace tl
