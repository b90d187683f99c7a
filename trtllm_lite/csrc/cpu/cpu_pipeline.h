// The stages of one engine on the CPU, each of which computes some layers: they take steps as one executor does.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/logits_executor.h"

namespace tl {

class CpuPipeline final : public LogitsExecutor {
 public:
  // `stages` are the executors of all stages (check_ranks), in order, with as many blocks each.
  explicit CpuPipeline(std::vector<std::unique_ptr<LogitsExecutor>> stages);

  using LogitsExecutor::step;
  // Throws what the stages throw.
  void step(const StepRequest& request, const LogitsUse& use) override;
  std::size_t block_bytes() const override;
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return stages_.front()->num_blocks(); }
  const Engine& engine() const override { return stages_.front()->engine(); }
  int num_threads() const override { return stages_.back()->num_threads(); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;

 private:
  std::vector<std::unique_ptr<LogitsExecutor>> stages_;
  std::mutex turn_;
};

}  // namespace tl
