// Loads a plan's programs on a device and enqueues them, instruction by instruction or as graphs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/device/matmul.h"
#include "cuda/device/nccl.h"
#include "cuda/device/product_preparation.h"
#include "engine/engine.h"
#include "host/timed_step.h"

namespace tl::cuda {

// The address of each tensor of the plan. The addresses of the step's inputs change from step to step.
using Addresses = std::vector<DevicePtr>;
using TensorMaps = std::unordered_map<const BoxedTensor*, TensorMap>;

// The operands of a product in a step of these extents.
MatmulOperands operands_of(const MatmulInstruction& product, const Extents& extents, const Addresses& addresses);

// Parts of a program: kForward makes logits; kSampling draws tokens and begins with the first instruction that reads
// token_masks.
enum class ProgramPart : std::uint8_t { kWhole, kForward, kSampling };

class ProgramSet {
 public:
  // Takes the programs for this device's architecture, or for the nearest that runs on it, and begins to prepare their
  // products on threads. Borrows all its arguments. Throws DeviceError if no programs can run every step on this
  // device, or if its cuBLASLt is not the version that the plan's algorithms are for.
  ProgramSet(const Device& device, const Engine& engine, std::vector<std::string> library_directories);

  // The first program for a step of `num_tokens` tokens. `adapters`: whether a request of the step has one.
  const Program& choose(std::int64_t num_tokens, bool decode_only, bool adapters) const;
  // The program of this name. Throws LimitError if there is none.
  const Program& named(const std::string& name) const;
  void enqueue(const Program& program, ProgramPart part, const Extents& extents, const Addresses& addresses,
               Stream stream);
  // Called before anything is enqueued. Loads the kernels, encodes the tensor maps for these addresses, and waits until
  // every product is prepared in every size, so that no step waits for kernels to be loaded. Throws DeviceError, also
  // if the kernels cannot run on this device or cuBLASLt refuses an algorithm of the plan; EngineError.
  void prepare(const Addresses& addresses, Stream stream);
  // Lets programs run on another stream, beside those of the stream that prepare() was given. `addresses`: those of the
  // steps on it, whose symbols are within `bounds`. Returns the bytes of the workspace of their products. Throws
  // DeviceError, LimitError.
  std::size_t add_stream(const Addresses& addresses, const Extents& bounds, Stream stream);
  // Captures part of a program as a graph with fixed extents and addresses.
  OwnedGraphExec capture(const Program& program, ProgramPart part, const Extents& extents, const Addresses& addresses,
                         Stream stream);
  // Runs the program `repeats` times, one instruction after the other. Returns the median time of each instruction of
  // the step.
  std::vector<InstructionTime> time(const Program& program, const Extents& extents, const Addresses& addresses,
                                    Stream stream, int repeats);
  MatmulSet& matmuls() { return matmuls_; }
  // Sets the communicator of the plan's collectives. Called before any is enqueued.
  void set_communicator(const Nccl& library, NcclCommunicator communicator);

 private:
  std::span<const Instruction> instructions(const Program& program, ProgramPart part) const;
  // `follows_kernel`: whether the previous work on the stream is a kernel of this program, with which this one may
  // overlap.
  void enqueue(const Instruction& instruction, bool follows_kernel, const Extents& extents, const Addresses& addresses,
               Stream stream);
  void encode_tensor_maps(const Addresses& addresses, const Extents& bounds, Stream stream);
  void check_complete(const std::set<std::string>& archs) const;
  void begin_products();
  std::int64_t shared_bytes_of(const std::string& key, const std::string& arch) const;
  void load_kernels();
  void load_kernel(int index, const std::string& arch);
  void enqueue_collective(const CollectiveInstruction& collective, const Extents& extents, const Addresses& addresses,
                          Stream stream);
  std::string name_of(const Instruction& instruction) const;
  void check_parameters(const LaunchInstruction& launch) const;  // throws EngineError if the kernel has more
  void enqueue_launch(const LaunchInstruction& launch, bool follows_kernel, const Extents& extents,
                      const Addresses& addresses, Stream stream);

  const Device& device_;
  const Engine& engine_;
  const Plan& plan_;
  std::map<std::string, OwnedModule> modules_;  // keyed by the key of the cubin
  std::vector<Function> functions_;             // by kernel; null if not for this device
  std::vector<const Program*> programs_;
  MatmulSet matmuls_;
  const Nccl* nccl_ = nullptr;
  NcclCommunicator communicator_ = nullptr;
  std::map<const MatmulInstruction*, Matmul*> matmul_of_;
  std::optional<ProductPreparation> products_;  // empty without products
  std::map<Stream, TensorMaps> tensor_maps_;
  std::unordered_map<const Program*, std::size_t> num_forward_;  // instructions of kForward
};

}  // namespace tl::cuda
