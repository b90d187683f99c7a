// Runs the steps of an engine whose plan is a network. Each sequence has one KV block, which is a row of the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "host/home_process.h"
#include "host/logits_executor.h"
#include "host/step_inputs.h"
#include "host/thread_pool.h"
#include "network/network.h"

namespace tl {

class NetworkExecutor final : public OneStageExecutor {
 public:
  // Borrows the engine; the caches of `network` have `num_blocks` rows (0: the manifest's number). Throws LimitError.
  NetworkExecutor(const Engine& engine, std::int64_t num_blocks, std::unique_ptr<Network> network);

  std::size_t block_bytes() const override;
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return num_blocks_; }
  const Engine& engine() const override { return engine_; }
  int num_threads() const override { return pool_->num_threads(); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;

 private:
  // One sequence's part of a step: its row of the caches, its tokens, and its wanted logits.
  struct Part {
    std::int64_t row;
    std::int32_t past_len;
    std::span<const std::int32_t> tokens;
    std::vector<std::int32_t> positions;  // tokens of the part whose logits are wanted
    std::vector<std::int32_t> outputs;    // their rows in the logits of the step
  };

  void compute(const StepRequest& request, const LogitsUse& use) override;
  void split(std::int64_t num_seqs, std::int64_t num_logits);
  void run_context(const Part& part);
  void run_generation();
  std::int32_t idle_position(std::int64_t row) const;
  LogitsTable logits() const { return {logits_.get(), num_logits_, static_cast<std::size_t>(vocab_size())}; }

  const Engine& engine_;
  const std::int64_t num_blocks_;
  const std::unique_ptr<Network> network_;
  HomeBound<ThreadPool> pool_;
  StepInputs inputs_;
  const std::size_t num_logits_;  // the most rows of logits of a step
  const std::unique_ptr<float[]> logits_;
  std::vector<std::int32_t> lengths_;  // upper bounds of the tokens in each row of the caches
  Extents extents_;                    // extents of the last step
  std::vector<Part> parts_;
  std::vector<std::int32_t> past_lens_, token_ids_, logits_indices_, outputs_;  // inputs of a generation step
  std::mutex mutex_;
};

}  // namespace tl
