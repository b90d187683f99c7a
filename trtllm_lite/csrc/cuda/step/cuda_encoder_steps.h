// Runs the steps of an encoder on a GPU for its event loop.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda/cuda_executor.h"
#include "executor/step.h"

namespace tl::cuda {

// The rows of a step are whole texts. launch() enqueues a step behind the one that runs: it copies the packed inputs to
// the device, launches the program, and copies the embeddings back. wait() waits for that copy.
class CudaEncoderSteps final : public StepExecutor {
 public:
  // Borrows the executor, whose engine is an encoder.
  explicit CudaEncoderSteps(CudaExecutor& executor);
  ~CudaEncoderSteps() override;

  int num_slots() const override { return 0; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;

 private:
  // A step between launch() and wait().
  struct Flight {
    PinnedBuffer inputs, embeddings;
    OwnedEvent started, ended;
    std::size_t num_rows = 0;
  };

  void pack(const StepBatch& batch, const Extents& step, std::byte* out) const;
  void enqueue(const StepBatch& batch, Flight& flight);
  void record(const OwnedEvent& event) const;

  CudaExecutor& executor_;
  const std::size_t embedding_size_;
  std::array<Flight, 2> flights_;
  std::size_t oldest_ = 0, num_in_flight_ = 0;
};

}  // namespace tl::cuda
