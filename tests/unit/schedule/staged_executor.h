// An executor of several stages: a CpuExecutor behind a queue, on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/cpu_executor.h"

class StagedExecutor final : public tl::LogitsExecutor {
 public:
  StagedExecutor(tl::CpuExecutor& executor, int num_stages)
      : executor_(executor), num_stages_(num_stages), pool_(2), thread_([this] { work(); }) {}
  ~StagedExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int num_stages() const override { return num_stages_; }
  void begin(const tl::StepRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      CHECK(std::ssize(begun_) < num_stages_);
      begun_.push_back({request, {}});
      most_begun = std::max(most_begun, static_cast<int>(begun_.size()));
    }
    changed_.notify_all();
  }
  void finish(const LogitsUse& use) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_.front().logits != nullptr; });
    const std::size_t size = begun_.front().request.logits_indices.size() * static_cast<std::size_t>(vocab_size());
    const std::unique_ptr<float[]> logits = std::move(begun_.front().logits);
    lock.unlock();
    use({logits.get(), size}, pool_);
    lock.lock();
    begun_.pop_front();
    --num_computed_;
  }

  std::size_t block_bytes() const override { return executor_.block_bytes(); }
  void copy_block(std::int64_t src, std::int64_t dst) override { idle().copy_block(src, dst); }
  void save_block(std::int64_t block, std::span<std::byte> out) override { idle().save_block(block, out); }
  void load_block(std::int64_t block, std::span<const std::byte> data) override { idle().load_block(block, data); }
  int num_threads() const override { return pool_.num_threads(); }
  const tl::Engine& engine() const override { return executor_.engine(); }
  std::int64_t num_blocks() const override { return executor_.num_blocks(); }
  tl::MemoryUse memory() const override { return executor_.memory(); }
  tl::StepOutput output(const std::string& name, const tl::RowSlice& slice) override {
    return executor_.output(name, slice);
  }

  int most_begun = 0;

 private:
  struct Step {
    tl::StepRequest request;
    std::unique_ptr<float[]> logits;  // set once the step is computed
  };

  tl::CpuExecutor& idle() {
    const std::lock_guard lock(mutex_);
    CHECK(begun_.empty());
    return executor_;
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || num_computed_ < begun_.size(); });
      if (stopping_) return;
      Step& step = begun_[num_computed_];
      lock.unlock();
      std::unique_ptr<float[]> logits = executor_.step(step.request);
      lock.lock();
      step.logits = std::move(logits);
      ++num_computed_;
      changed_.notify_all();
    }
  }

  tl::CpuExecutor& executor_;
  const int num_stages_;
  tl::ThreadPool pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> begun_;
  std::size_t num_computed_ = 0;  // number of leading steps of begun_ that are computed
  bool stopping_ = false;
  std::thread thread_;
};
