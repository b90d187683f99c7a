// An executor whose stages run in other processes, which a Python object calls.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "bindings/python_calls.h"
#include "host/home_process.h"
#include "host/logits_executor.h"
#include "host/thread_pool.h"

namespace tl {

class PyStages : public nanobind::object {
  NB_OBJECT(PyStages, nanobind::object, "trtllm_lite.runtime.interfaces.Stages", is_any)
};

class RemoteStages final : public LogitsExecutor {
 public:
  // Borrows an engine of the first stage. `stages` implements the class Stages in trtllm_lite/runtime/interfaces.py.
  RemoteStages(const Engine& engine, PyStages stages);
  ~RemoteStages() override;

  int num_stages() const override { return num_stages_; }
  void begin(const StepRequest& request) override;
  void finish(const LogitsUse& use) override;
  std::size_t block_bytes() const override { return block_bytes_; }
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return num_blocks_; }
  const Engine& engine() const override { return engine_; }
  int num_threads() const override { return pool_->num_threads(); }
  MemoryUse memory() const override { return memory_; }
  // Throws ArgumentError: outputs remain in the processes of the stages.
  StepOutput output(const std::string& name, const RowSlice& slice) override;

 private:
  const Engine& engine_;
  PyStages stages_;
  const int num_stages_;
  const std::int64_t num_blocks_;
  const std::size_t block_bytes_;
  MemoryUse memory_;
  HomeBound<ThreadPool> pool_;  // the threads that sample
};

}  // namespace tl
