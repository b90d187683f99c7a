#include "cuda/device/program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda/device/tensor_map.h"
#include "engine/checks/launch_check.h"
#include "engine/checks/plan_check.h"
#include "errors.h"

namespace tl::cuda {
namespace {

constexpr std::int64_t kStaticSharedBytes = 48 * 1024;  // the most that a block may have without requesting it
constexpr std::int64_t kLargestAlignment = 16;          // alignment to which a struct parameter may be padded

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// sm_90a runs on 9.0 alone; sm_80 on every 8.x; sm_86 on 8.6 and above within 8.
bool fits(const std::string& arch, const Device& device) {
  if (arch == device.arch() || arch == device.arch() + "a") return true;
  constexpr std::size_t kPrefix = 3;  // "sm_"
  if (arch.size() < kPrefix + 2 || !std::isdigit(static_cast<unsigned char>(arch.back()))) return false;
  const std::string major = arch.substr(kPrefix, arch.size() - kPrefix - 1);
  return major == std::to_string(device.capability_major()) && arch.back() - '0' <= device.capability_minor();
}

// The parameters of a launch, packed one after the other.
class Parameters {
 public:
  template <typename T>
  void add(T value) {
    size_ = (size_ + alignof(T) - 1) / alignof(T) * alignof(T);
    std::memcpy(bytes_.data() + size_, &value, sizeof(T));
    each_[count_++] = bytes_.data() + size_;
    size_ += sizeof(T);
    has_map_ = has_map_ || std::is_same_v<T, TensorMap>;
  }
  // All parameters as one block of bytes, for kernels whose struct parameters are filled by several arguments.
  void** packed() { return has_map_ ? nullptr : packed_; }
  // Parameters one by one, because only the driver knows the place of a tensor map among the others.
  void** each() {
    each_[count_] = nullptr;
    return has_map_ ? each_.data() : nullptr;
  }

 private:
  alignas(TensorMap) std::array<std::byte, kMaxParameterBytes> bytes_;
  std::array<void*, kMaxParameterBytes / kScalarSize.bytes + 1> each_;
  std::size_t size_ = 0, count_ = 0;
  bool has_map_ = false;
  void* packed_[5] = {reinterpret_cast<void*>(kParamBufferPointer), bytes_.data(),
                      reinterpret_cast<void*>(kParamBufferSize), &size_, nullptr};
};

static_assert(kTensorMapSize.bytes == sizeof(TensorMap) && kTensorMapSize.alignment == alignof(TensorMap));

DevicePtr address_of(const TensorArgument& ref, const Extents& extents, const Addresses& addresses) {
  return addresses[static_cast<std::size_t>(ref.tensor)] + static_cast<DevicePtr>(ref.offset.at(extents));
}

void add_argument(const LaunchArgument& argument, const Extents& extents, const Addresses& addresses,
                  const TensorMaps& tensor_maps, Parameters& parameters) {
  if (const auto* pointer = std::get_if<TensorArgument>(&argument)) {
    parameters.add(address_of(*pointer, extents, addresses));
  } else if (const auto* map = std::get_if<TensorMapArgument>(&argument)) {
    parameters.add(tensor_maps.at(&map->tensor_map));
  } else if (const auto* integer = std::get_if<IntArgument>(&argument)) {
    parameters.add(static_cast<std::int32_t>(integer->value.at(extents)));
  } else if (const auto* real = std::get_if<FloatArgument>(&argument)) {
    parameters.add(real->value);
  } else {
    parameters.add(DevicePtr{0});
  }
}

// The rows of a tensor map that have memory where symbols are within `bounds`.
BoxedTensor within(BoxedTensor map, const PlanTensor& tensor, const Extents& bounds) {
  if (tensor.kind != TensorKind::kArena) return map;
  const std::int64_t row_bytes = map.columns * item_size(tensor.dtype);
  map.rows = std::min(map.rows, (max_bytes(bounds, tensor) - map.offset) / row_bytes);
  return map;
}

// Whether an instruction has nothing to do in a step of these extents. An empty grid is not launched.
bool is_empty(const Instruction& instruction, const Extents& extents) {
  const auto* launch = std::get_if<LaunchInstruction>(&instruction);
  return launch != nullptr &&
         std::ranges::any_of(launch->grid, [&](const auto& axis) { return axis.at(extents) == 0; });
}

// The number of instructions before the first that reads the masks; `masks` is the index of their tensor.
std::size_t num_forward(const Program& program, int masks) {
  const auto reads_masks = [masks](const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchInstruction>(&instruction);
    return launch != nullptr && std::ranges::any_of(launch->args, [masks](const LaunchArgument& argument) {
             const auto* pointer = std::get_if<TensorArgument>(&argument);
             return pointer != nullptr && pointer->tensor == masks;
           });
  };
  const auto found = std::ranges::find_if(program.instructions, reads_masks);
  return static_cast<std::size_t>(found - program.instructions.begin());
}

// The lowest supported major compute capability; builder/cuda/targets.py lists what engines can be built for.
constexpr int kLeastMajor = 8;

// The architecture among `archs` that was compiled for this device, or else the nearest that runs on it; empty if none
// does.
std::string best_arch(const std::set<std::string>& archs, const Device& device) {
  std::string best;
  for (const std::string& arch : archs) {  // ordered within a major version
    if (fits(arch, device)) best = arch;
  }
  return best;
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace

MatmulOperands operands_of(const MatmulInstruction& product, const Extents& extents, const Addresses& addresses) {
  const auto address = [&](const TensorArgument& ref) { return address_of(ref, extents, addresses); };
  return {.x = address(product.x),
          .weight = address(product.weight),
          .y = address(product.y),
          .bias = product.bias ? address(*product.bias) : 0,
          .residual = product.residual ? address(*product.residual) : 0};
}

ProgramSet::ProgramSet(const Device& device, const Engine& engine, std::vector<std::string> library_directories)
    : device_(device),
      engine_(engine),
      plan_(engine.plan_for(TargetKind::kCuda)),
      functions_(plan_.kernels.size()),
      matmuls_(device, plan_, std::move(library_directories)) {
  std::set<std::string> archs;
  for (const Program& program : plan_.programs) archs.insert(program.arch);
  const std::string best = best_arch(archs, device);
  const auto masks = plan_.outputs.find("token_masks");  // stages before the last draw no tokens
  for (const Program& program : plan_.programs) {
    if (program.arch != best) continue;
    programs_.push_back(&program);
    num_forward_[&program] = num_forward(program, masks == plan_.outputs.end() ? -1 : masks->second);
  }
  check_complete(archs);
  begin_products();
}

// Throws DeviceError unless there are programs for every step on this device.
void ProgramSet::check_complete(const std::set<std::string>& archs) const {
  const auto complete = [&](bool adapters) {
    return std::ranges::any_of(programs_, [&](const Program* program) {
      return !program->decode_only && program->adapters == adapters &&
             program->max_tokens >= plan_.symbols[Symbol::kNumTokens];
    });
  };
  if (complete(false) && (plan_.cuda->adapted.empty() || complete(true))) return;
  const std::string name = device_.name() + " (" + device_.arch() + ")";
  if (device_.capability_major() < kLeastMajor) {
    throw DeviceError("expected a GPU of sm_" + std::to_string(kLeastMajor) + "0 or later, found " + name +
                      ", which is not supported; choose another, or build an engine with --target cpu");
  }
  throw DeviceError("expected an engine for " + name + ", found one for " + join(archs) +
                    "; build it again with --target " + device_.arch());
}

void ProgramSet::prepare(const Addresses& addresses, Stream stream) {
  load_kernels();
  encode_tensor_maps(addresses, plan_.symbols, stream);
  if (products_) products_->finish();
}

std::size_t ProgramSet::add_stream(const Addresses& addresses, const Extents& bounds, Stream stream) {
  encode_tensor_maps(addresses, bounds, stream);
  return matmuls_.add_workspace(stream);
}

void ProgramSet::encode_tensor_maps(const Addresses& addresses, const Extents& bounds, Stream stream) {
  TensorMaps& tensor_maps = tensor_maps_[stream];
  for (const Program* program : programs_) {
    for (const Instruction& instruction : program->instructions) {
      const auto* launch = std::get_if<LaunchInstruction>(&instruction);
      if (launch == nullptr) continue;
      for (const LaunchArgument& argument : launch->args) {
        const auto* encoded = std::get_if<TensorMapArgument>(&argument);
        if (encoded == nullptr) continue;
        const auto index = static_cast<std::size_t>(encoded->tensor_map.tensor);
        const PlanTensor& tensor = plan_.tensors[index];
        const BoxedTensor map = within(encoded->tensor_map, tensor, bounds);
        tensor_maps.emplace(&encoded->tensor_map, encode(map, tensor.dtype, addresses[index]));
      }
    }
  }
}

void ProgramSet::begin_products() {
  std::map<Matmul*, std::int64_t> most;
  for (const Program* program : programs_) {
    for (const Instruction& instruction : program->instructions) {
      const auto* product = std::get_if<MatmulInstruction>(&instruction);
      if (product == nullptr) continue;
      Matmul* const matmul = matmul_of_[product] = &matmuls_.get(*product);
      most[matmul] = std::max(most[matmul], std::min(product->rows.at(plan_.symbols), program->max_tokens));
    }
  }
  std::vector<ProductUse> uses;
  for (const auto& [matmul, rows] : most) uses.push_back({matmul, rows});
  if (!uses.empty()) products_.emplace(device_, std::move(uses));
}

// Kernels of one cubin share one function handle, so the driver must allow the most shared memory of any.
std::int64_t ProgramSet::shared_bytes_of(const std::string& key, const std::string& arch) const {
  std::int64_t most = 0;
  for (const CompiledKernel& kernel : plan_.kernels) {
    const auto cubin = kernel.cubins.find(arch);
    if (cubin != kernel.cubins.end() && cubin->second == key) most = std::max(most, kernel.shared_bytes);
  }
  return most;
}

void ProgramSet::load_kernels() {
  for (const Program* program : programs_) {
    for (const Instruction& instruction : program->instructions) {
      const auto* launch = std::get_if<LaunchInstruction>(&instruction);
      if (launch == nullptr) continue;
      load_kernel(launch->kernel, program->arch);
      check_parameters(*launch);
    }
  }
}

void ProgramSet::load_kernel(int index, const std::string& arch) {
  Function& function = functions_[static_cast<std::size_t>(index)];
  if (function != nullptr) return;
  const CompiledKernel& kernel = plan_.kernels[static_cast<std::size_t>(index)];
  const std::string what = "loading kernel " + kernel.name + " for " + arch;
  if (kernel.shared_bytes > device_.max_shared_bytes()) {
    throw DeviceError("kernel " + kernel.name + " of this engine for " + arch + " has blocks with " +
                      std::to_string(kernel.shared_bytes) + " bytes of shared memory, and on " + device_.name() + " (" +
                      device_.arch() + ") they can have " + std::to_string(device_.max_shared_bytes()) +
                      "; build the engine again with --target " + device_.arch());
  }
  const std::string& key = kernel.cubins.at(arch);
  OwnedModule& module = modules_[key];
  if (module.get() == nullptr) {
    Module loaded = nullptr;
    const std::span<const std::byte> entry = engine_.cubin(key);
    std::vector<std::byte> image(entry.begin(), entry.end());  // copied to align it, as a file's entry may be unaligned
    image.push_back(std::byte{0});  // the driver takes an image that is no cubin for a zero-terminated text
    driver().check(driver().module_load(&loaded, image.data()), what);
    module = OwnedModule(loaded);
  }
  driver().check(driver().module_function(&function, module.get(), kernel.name.c_str()), what);
  const auto bytes = static_cast<int>(shared_bytes_of(key, arch));
  if (bytes <= kStaticSharedBytes) return;
  driver().check(driver().function_set(function, kMaxDynamicSharedBytes, bytes),
                 what + " with " + std::to_string(bytes) + " bytes of shared memory");
}

// The driver reads as many parameters as the kernel has, whatever it is given. (Drivers before CUDA 12.4 cannot tell
// their number.) Packed parameters are compared by their bytes, and parameters passed one by one (because of a
// tensor map) by their number.
void ProgramSet::check_parameters(const LaunchInstruction& launch) const {
  const auto index = static_cast<std::size_t>(launch.kernel);
  const auto parameter = driver().function_parameter;
  if (parameter == nullptr) return;
  std::size_t offset = 0, size = 0;
  std::int64_t count = 0;
  while (parameter(functions_[index], static_cast<std::size_t>(count), &offset, &size) == 0) ++count;
  const auto is_map = [](const LaunchArgument& argument) {
    return std::holds_alternative<TensorMapArgument>(argument);
  };
  const bool one_by_one = std::ranges::any_of(launch.args, is_map);
  const std::int64_t given = one_by_one ? std::ssize(launch.args) : parameter_bytes(launch);
  const std::int64_t end = count == 0 ? 0 : static_cast<std::int64_t>(offset + size);
  const std::int64_t needed = one_by_one ? count : end;
  if (needed <= (one_by_one ? given : round_up(given, kLargestAlignment))) return;
  throw EngineError("kernel " + plan_.kernels[index].name + ": expected " + std::to_string(given) +
                    (one_by_one ? " parameters" : " bytes of parameters") + ", as the plan passes, found " +
                    std::to_string(needed) + ": the engine contradicts itself, build it again");
}

const Program& ProgramSet::choose(std::int64_t num_tokens, bool decode_only, bool adapters) const {
  return **std::ranges::find_if(programs_, [&](const Program* program) {
    return program->adapters == adapters && program->max_tokens >= num_tokens && (decode_only || !program->decode_only);
  });
}

const Program& ProgramSet::named(const std::string& name) const {
  const auto found = std::ranges::find(programs_, name, &Program::name);
  if (found == programs_.end()) throw LimitError("expected the name of a program of this engine, found " + name);
  return **found;
}

std::span<const Instruction> ProgramSet::instructions(const Program& program, ProgramPart part) const {
  const std::span<const Instruction> all(program.instructions);
  if (part == ProgramPart::kWhole) return all;
  const std::size_t num_forward = num_forward_.at(&program);
  return part == ProgramPart::kForward ? all.first(num_forward) : all.subspan(num_forward);
}

void ProgramSet::enqueue(const Program& program, ProgramPart part, const Extents& extents, const Addresses& addresses,
                         Stream stream) {
  bool follows_kernel = false;
  for (const Instruction& instruction : instructions(program, part)) {
    enqueue(instruction, follows_kernel, extents, addresses, stream);
    // a collective's end is marked by an event
    follows_kernel = !std::holds_alternative<CollectiveInstruction>(instruction);
  }
}

void ProgramSet::enqueue(const Instruction& instruction, bool follows_kernel, const Extents& extents,
                         const Addresses& addresses, Stream stream) {
  if (is_empty(instruction, extents)) return;
  if (const auto* launch = std::get_if<LaunchInstruction>(&instruction)) {
    enqueue_launch(*launch, follows_kernel, extents, addresses, stream);
    return;
  }
  if (const auto* matmul = std::get_if<MatmulInstruction>(&instruction)) {
    matmul_of_.at(matmul)->enqueue(matmul->rows.at(extents), operands_of(*matmul, extents, addresses), stream);
    return;
  }
  enqueue_collective(std::get<CollectiveInstruction>(instruction), extents, addresses, stream);
}

void ProgramSet::set_communicator(const Nccl& library, NcclCommunicator communicator) {
  nccl_ = &library;
  communicator_ = communicator;
}

// Skips a collective of no elements, as every other rank does.
void ProgramSet::enqueue_collective(const CollectiveInstruction& collective, const Extents& extents,
                                    const Addresses& addresses, Stream stream) {
  const DevicePtr x = address_of(collective.x, extents, addresses), y = address_of(collective.y, extents, addresses);
  const auto count = static_cast<std::size_t>(collective.rows.at(extents) * collective.x_features);
  if (count == 0) return;
  if (nccl_ == nullptr) throw DeviceError("expected all ranks of the engine to be loaded before a step");
  const int type = nccl_type(collective.dtype);
  const int result = collective.op == CollectiveOp::kAllReduce
                         ? nccl_->all_reduce(x, y, count, type, kNcclSum, communicator_, stream)
                         : nccl_->all_gather(x, y, count, type, communicator_, stream);
  nccl_->check(result, std::string(to_string(collective.op)));
}

void ProgramSet::enqueue_launch(const LaunchInstruction& launch, bool follows_kernel, const Extents& extents,
                                const Addresses& addresses, Stream stream) {
  const auto index = static_cast<std::size_t>(launch.kernel);
  const CompiledKernel& kernel = plan_.kernels[index];
  LaunchAttribute attribute{.id = kProgrammaticStreamSerialization, .pad = {}, .value = {.programmatic_allowed = 1}};
  LaunchConfig config{.grid = {},
                      .block = {static_cast<unsigned>(kernel.threads), 1, 1},
                      .shared_bytes = static_cast<unsigned>(kernel.shared_bytes),
                      .stream = stream,
                      .attributes = &attribute,
                      .num_attributes = launch.programmatic && follows_kernel ? 1u : 0u};
  for (std::size_t axis = 0; axis < launch.grid.size(); ++axis) {
    config.grid[axis] = static_cast<unsigned>(launch.grid[axis].at(extents));
  }
  Parameters parameters;
  const TensorMaps& tensor_maps = tensor_maps_.at(stream);
  for (const LaunchArgument& argument : launch.args) {
    add_argument(argument, extents, addresses, tensor_maps, parameters);
  }
  const Result result = driver().launch(&config, functions_[index], parameters.each(), parameters.packed());
  driver().check(result, "launching ", kernel.name);
}

std::string ProgramSet::name_of(const Instruction& instruction) const {
  if (const auto* launch = std::get_if<LaunchInstruction>(&instruction)) {
    return plan_.kernels[static_cast<std::size_t>(launch->kernel)].name;
  }
  if (const auto* matmul = std::get_if<MatmulInstruction>(&instruction)) return describe(*matmul);
  return std::string(to_string(std::get<CollectiveInstruction>(instruction).op));
}

std::vector<InstructionTime> ProgramSet::time(const Program& program, const Extents& extents,
                                              const Addresses& addresses, Stream stream, int repeats) {
  std::vector<const Instruction*> timed;
  for (const Instruction& instruction : program.instructions) {
    if (!is_empty(instruction, extents)) timed.push_back(&instruction);
  }
  const std::size_t size = timed.size();
  std::vector<OwnedEvent> events(size + 1);
  std::ranges::generate(events, make_event);
  std::vector<std::vector<float>> times(size);
  // Warms up, and keeps the device busy while the timed runs are enqueued.
  enqueue(program, ProgramPart::kWhole, extents, addresses, stream);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    enqueue(program, ProgramPart::kWhole, extents, addresses, stream);
    driver().check(driver().event_record(events[0].get(), stream), "timing a program");
    for (std::size_t i = 0; i < size; ++i) {
      enqueue(*timed[i], true, extents, addresses, stream);
      driver().check(driver().event_record(events[i + 1].get(), stream), "timing a program");
    }
    driver().check(driver().stream_synchronize(stream), "timing a program");
    for (std::size_t i = 0; i < size; ++i) {
      float milliseconds = 0;
      driver().check(driver().event_elapsed(&milliseconds, events[i].get(), events[i + 1].get()), "timing a program");
      times[i].push_back(milliseconds);
    }
  }
  std::vector<InstructionTime> result;
  for (std::size_t i = 0; i < size; ++i) {
    const std::string name = name_of(*timed[i]);
    std::ranges::sort(times[i]);
    result.push_back({name, 1e3 * times[i][times[i].size() / 2]});
  }
  return result;
}

OwnedGraphExec ProgramSet::capture(const Program& program, ProgramPart part, const Extents& extents,
                                   const Addresses& addresses, Stream stream) {
  const std::string what = "capturing program " + program.name;
  const OwnedGraph graph = captured(stream, what, [&] { enqueue(program, part, extents, addresses, stream); });
  GraphExec exec = nullptr;
  const Result result = driver().graph_instantiate(&exec, graph.get(), 0);
  if (result == kOutOfMemory) {
    throw LimitError(what +
                     ": expected more free memory on the GPU, found too little; reserve fewer blocks "
                     "(kv_cache_free_gpu_memory_fraction, max_tokens_in_paged_kv_cache)");
  }
  driver().check(result, what);
  return OwnedGraphExec(exec);
}

}  // namespace tl::cuda
