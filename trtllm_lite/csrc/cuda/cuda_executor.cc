#include "cuda/cuda_executor.h"

#include <algorithm>
#include <iterator>

#include "caches/cached_inputs.h"
#include "caches/kv_cache_size.h"
#include "cuda/rank_table.cuh"
#include "engine/module.h"
#include "errors.h"
#include "ranks/place.h"

namespace tl::cuda {
namespace {

std::size_t input_bytes(const CudaExecutor& executor, int num_loras) {
  Extents bounds = executor.plan().symbols;
  bounds[Symbol::kNumLoras] = num_loras;
  return executor.input_layout(bounds).bytes;
}

void check_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw LimitError(std::string(name) + ": expected " + std::to_string(least) + " to " + std::to_string(most) +
                   ", found " + std::to_string(value));
}

// Returns `num_loras`, or 0 for engines that take no adapters. Throws LimitError.
int checked_num_loras(const Plan& plan, int num_loras) {
  if (!plan.cuda->adapted.empty()) {
    check_range("max_loras", num_loras, 0, kMaxLoras);
    return num_loras;
  }
  if (num_loras == 0) return 0;
  throw LimitError(
      "max_loras: expected an engine that takes adapters, found one without; build it with --max_lora_rank");
}

}  // namespace

CudaExecutor::CudaExecutor(const Engine& engine, int device, std::int64_t num_blocks,
                           std::vector<std::string> library_directories, const CudaExecutor* features_of, int num_loras,
                           std::size_t adapter_bytes)
    : engine_(engine),
      plan_(engine.plan_for(TargetKind::kCuda)),
      num_blocks_(resolve_num_blocks(engine, num_blocks)),
      token_row_bytes_(tl::token_row_bytes(only_module(engine.manifest()))),
      library_directories_(std::move(library_directories)),
      device_(device),
      stream_(make_stream()),
      reading_(make_stream()),
      programs_(device_, engine, library_directories_),
      weights_(device_, engine, stream_.get()),
      adapters_(device_, plan_, checked_num_loras(plan_, num_loras), adapter_bytes),
      timed_values_(device_, plan_),
      arena_(device_, static_cast<std::size_t>(plan_.arena_bytes), "workspace",
             "build the engine with a smaller --max_num_tokens"),
      state_(device_, static_cast<std::size_t>(plan_.state_bytes), "workspace",
             "build the engine with a smaller --max_batch_size"),
      inputs_(device_, input_bytes(*this, adapters_.num_slots()), "inputs of a step",
              "build the engine with a smaller --max_num_tokens"),
      cache_(device_, kv_cache_bytes(engine, num_blocks_ + spare_blocks(engine)), MappedMemory::Tail::kPages,
             "KV cache", "reserve fewer blocks (kv_cache_free_gpu_memory_fraction, max_tokens_in_paged_kv_cache)"),
      features_(borrowed_features(features_of)),
      knows_ranks_(num_ranks(engine.manifest().mapping) == 1) {
  cache_.map_all();
  place_tensors();
  const Stream stream = stream_.get();
  programs_.prepare(addresses_, stream);
  const auto clear = [&](const auto& memory) {
    if (memory.size() == 0) return;
    driver().check(driver().fill_bytes(memory.address(), 0, memory.size(), stream), "clearing memory");
  };
  clear(arena_);
  clear(state_);
  clear(cache_);
  driver().check(driver().stream_synchronize(stream), "clearing memory");
}

CudaExecutor::~CudaExecutor() {
  if (device_.try_make_current()) driver().stream_synchronize(stream_.get());
}

DevicePtr CudaExecutor::borrowed_features(const CudaExecutor* from) const {
  if (ports(only_module(engine_.manifest()).inputs, true).empty()) return 0;
  check_source(engine_, num_blocks_, from);
  return from->features_;
}

void CudaExecutor::place_tensors() {
  blocks_.push_back({cache_.address(), layers_block_bytes(engine_)});
  if (const std::size_t of_features = features_block_bytes(engine_); of_features > 0) {
    features_ = blocks_.front().block(num_blocks_ + spare_blocks(engine_));
    blocks_.push_back({features_, of_features});
  }
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const PlanTensor& tensor = plan_.tensors[i];
    const auto offset = static_cast<DevicePtr>(tensor.offset);
    switch (tensor.kind) {
      case TensorKind::kArena:
        addresses_.push_back(arena_.address() + offset);
        break;
      case TensorKind::kState:
        addresses_.push_back(state_.address() + offset);
        break;
      case TensorKind::kWeight:
        addresses_.push_back(weights_.address(i));
        break;
      case TensorKind::kCache:
        addresses_.push_back(tensor.name == kFeatures ? features_ : cache_.address() + offset);
        break;
      case TensorKind::kAdapter:
        addresses_.push_back(adapters_.address(i));
        break;
      case TensorKind::kInput:
        input_tensors_.emplace_back(i, static_cast<StepInputIndex>(step_input_index(tensor.name)));
        addresses_.push_back(0);  // set by place_inputs
        break;
    }
  }
  if (!plan_.outputs.contains("tokens")) return;  // only the last stage of a decoder draws tokens
  const auto output = [this](const char* name) { return address_of(plan_.outputs.at(name)); };
  logits_ = output("logits");
  tokens_ = output("tokens");
  logprobs_ = output("logprobs");
  sampling_slots_ = output("sampling_slots");
  token_masks_ = output("token_masks");
}

void CudaExecutor::place_inputs(const InputLayout& layout) {
  for (const auto& [tensor, input] : input_tensors_) addresses_[tensor] = inputs_.address() + layout.offsets[input];
}

std::int64_t CudaExecutor::padded_rows(std::int64_t num_rows) const {
  return *std::ranges::lower_bound(plan_.cuda->decode_batches, num_rows);
}

Extents CudaExecutor::extents(const StepShape& shape) const {
  Extents extents = plan_.symbols;
  extents[Symbol::kNumTokens] = shape.num_tokens;
  extents[Symbol::kNumSeqs] = shape.num_seqs;
  extents[Symbol::kNumSeqsPlus1] = shape.num_seqs + 1;
  extents[Symbol::kNumDecodeSeqs] = shape.num_decode_seqs;
  extents[Symbol::kNumPrefillSeqs] = shape.num_seqs - shape.num_decode_seqs;
  extents[Symbol::kNumPrefillTokens] = shape.num_tokens - shape.num_decode_tokens;
  extents[Symbol::kNumLogits] = shape.num_logits;
  extents[Symbol::kNumTokenRows] = shape.num_token_rows;
  const std::int64_t tokens_per_row = only_module(engine_.manifest()).tokens_per_row;
  if (tokens_per_row > 0) extents[Symbol::kNumImageRows] = shape.num_tokens / tokens_per_row;
  extents[Symbol::kNumTables] = shape.num_seqs * num_cache_groups();
  extents[Symbol::kNumBlocks] = num_blocks_;
  extents[Symbol::kNumAdapterTokens] = shape.adapters ? shape.num_tokens : 0;
  extents[Symbol::kNumAdapterLogits] = shape.adapters ? shape.num_logits : 0;
  extents[Symbol::kNumLoras] = shape.adapters ? num_loras() : 0;
  extents[Symbol::kNumSms] = std::min<std::int64_t>(device_.num_sms(), plan_.symbols[Symbol::kNumSms]);
  return extents;
}

const Program& CudaExecutor::program_of(const StepShape& shape) const {
  return programs_.choose(shape.num_tokens, shape.decode_only, shape.adapters);
}

const CudaExecutor::DecodeGraphs* CudaExecutor::graphs_of(const StepShape& shape) const {
  const auto found = graphs_.find({shape.num_seqs, shape.adapters});
  return shape.decode_only && found != graphs_.end() ? &found->second : nullptr;
}

void CudaExecutor::enqueue_step(const StepShape& shape, const std::byte* inputs) {
  enqueue(shape, inputs, ProgramPart::kWhole);
}

void CudaExecutor::enqueue_beside(const StepShape& shape, const std::byte* inputs) {
  const Extents step = extents(shape);
  side_->enqueue(program_of(shape), step, input_layout(step), inputs);
}

void CudaExecutor::enqueue_forward(const StepShape& shape, const std::byte* inputs) {
  enqueue(shape, inputs, ProgramPart::kForward);
}

void CudaExecutor::enqueue_sampling(const StepShape& shape) {
  const Extents step = extents(shape);
  place_inputs(input_layout(step));
  programs_.enqueue(program_of(shape), ProgramPart::kSampling, step, addresses_, stream_.get());
}

void CudaExecutor::enqueue(const StepShape& shape, const std::byte* inputs, ProgramPart part) {
  if (!knows_ranks_) throw DeviceError("expected all ranks of the engine to be loaded before a step");
  const Extents step = last_step_ = extents(shape);
  const InputLayout layout = input_layout(step);
  const Stream stream = stream_.get();
  driver().check(driver().copy_to_device(inputs_.address(), inputs, layout.bytes, stream), "copying inputs");
  if (const DecodeGraphs* const graphs = graphs_of(shape)) {
    const OwnedGraphExec& exec = part == ProgramPart::kWhole ? graphs->whole : graphs->forward;
    driver().check(driver().graph_launch(exec.get(), stream), "launching a graph");
    return;
  }
  place_inputs(layout);
  programs_.enqueue(program_of(shape), part, step, addresses_, stream);
}

void CudaExecutor::capture(const StepShape& shape, bool draws) {
  const auto capture_part = [&](ProgramPart part) {
    return programs_.capture(program_of(shape), part, extents(shape), addresses_, stream_.get());
  };
  DecodeGraphs made{.whole = draws ? capture_part(ProgramPart::kWhole) : OwnedGraphExec(),
                    .forward = capture_part(ProgramPart::kForward)};
  graphs_.emplace(std::pair(shape.num_seqs, shape.adapters), std::move(made));
}

std::byte* CudaExecutor::pinned_inputs() {
  if (pinned_.size() == 0) pinned_ = PinnedBuffer(max_input_bytes(), "inputs of a step", "free host memory");
  return pinned_.data();
}

void CudaExecutor::synchronize() const { driver().check(driver().stream_synchronize(stream_.get()), "running a step"); }

void CudaExecutor::set_ranks(const RankPeers& peers, const RankWatchdog& watchdog) {
  const RankMapping& mapping = engine_.manifest().mapping;
  RankTable table{.rank = static_cast<unsigned long long>(part_of(mapping)),
                  .count = peers.stage.size(),
                  .first = static_cast<unsigned long long>(mapping.rank - part_of(mapping)),
                  .drawing = peers.drawing,
                  .arenas = {},
                  .states = {},
                  .alarm = watchdog.alarm(),
                  .timeout = watchdog.timeout(),
                  .is_over = 0};
  for (std::size_t rank = 0; rank < peers.stage.size(); ++rank) {
    table.arenas[rank] = peers.stage[rank].arena;
    table.states[rank] = peers.stage[rank].state;
  }
  knows_ranks_ = true;
  device_.make_current();
  driver().check(driver().copy_to_device(rank_table(), &table, sizeof table, stream_.get()),
                 "telling a rank of the others");
  synchronize();
}

std::vector<InstructionTime> CudaExecutor::time_step(const StepShape& shape, const std::byte* inputs, int repeats) {
  const Extents step = extents(shape);
  const InputLayout layout = input_layout(step);
  driver().check(driver().copy_to_device(inputs_.address(), inputs, layout.bytes, stream_.get()), "copying inputs");
  place_inputs(layout);
  return programs_.time(program_of(shape), step, addresses_, stream_.get(), repeats);
}

Extents CudaExecutor::timed_extents(std::int64_t num_tokens) const {
  return extents({.num_tokens = num_tokens, .num_seqs = 1, .num_logits = std::min(num_tokens, max_logits())});
}

void CudaExecutor::make_up_step(std::int64_t num_tokens, const TimingEffort& effort) {
  check_range("num_tokens", num_tokens, 1, plan_.symbols[Symbol::kNumTokens]);
  check_range("repeats", effort.repeats, 1, 1000);
  device_.make_current();
  timed_values_.fill(arena_, stream_.get());
  driver().check(driver().fill_bytes(inputs_.address(), 0, inputs_.size(), stream_.get()), "making up inputs");
  place_inputs(input_layout(timed_extents(num_tokens)));
}

std::vector<ProductTime> CudaExecutor::time_products(std::int64_t above, std::int64_t num_tokens, int num_candidates,
                                                     const TimingEffort& effort) {
  check_range("candidates", num_candidates, 1, 1000);
  make_up_step(num_tokens, effort);
  check_range("above", above, 0, num_tokens - 1);
  const TimedStep step{&programs_.choose(num_tokens, false, false), timed_extents(num_tokens), timed_extents(above)};
  return cuda::time_products(step, addresses_, programs_.matmuls(), stream_.get(), num_candidates, effort);
}

std::vector<std::optional<double>> CudaExecutor::time_programs(const std::vector<std::string>& names,
                                                               std::int64_t num_tokens, const TimingEffort& effort) {
  std::vector<std::function<void()>> candidates;
  make_up_step(num_tokens, effort);
  const Extents step = timed_extents(num_tokens);
  for (const std::string& name : names) {
    const Program& program = programs_.named(name);
    check_range("num_tokens", num_tokens, 1, program.max_tokens);
    timed_values_.fill_bytes(program, addresses_, stream_.get());
    candidates.emplace_back([&] { programs_.enqueue(program, ProgramPart::kWhole, step, addresses_, stream_.get()); });
  }
  return candidates.empty() ? std::vector<std::optional<double>>() : time_candidates(candidates, effort, stream_.get());
}

std::int64_t CudaExecutor::cublaslt_version() const {
  return static_cast<std::int64_t>(cublaslt(library_directories_).version());
}

std::size_t CudaExecutor::block_bytes() const {
  return static_cast<std::size_t>(engine_.manifest().kv_cache.bytes_per_block);
}

void CudaExecutor::copy_block(std::int32_t src, std::int32_t dst) {
  for (const BlockArray& array : blocks_) {
    driver().check(driver().copy_on_device(array.block(dst), array.block(src), array.block_bytes, stream_.get()),
                   "copying a KV block");
  }
}

void CudaExecutor::save_block(std::int32_t block, std::byte* out) {
  for (const BlockArray& array : blocks_) {
    driver().check(driver().copy_to_host(out, array.block(block), array.block_bytes, stream_.get()),
                   "saving a KV block");
    out += array.block_bytes;
  }
}

void CudaExecutor::load_block(std::int32_t block, const std::byte* data) {
  for (const BlockArray& array : blocks_) {
    driver().check(driver().copy_to_device(array.block(block), data, array.block_bytes, stream_.get()),
                   "loading a KV block");
    data += array.block_bytes;
  }
}

StepOutput CudaExecutor::output(const std::string& name, const RowSlice& slice) {
  const std::lock_guard lock(turn_);
  device_.make_current();
  const OutputPlace place = find_output(plan_, last_step_, name, slice);
  StepOutput result{std::make_unique_for_overwrite<std::uint8_t[]>(place.bytes()), place.rows, place.row_bytes};
  if (place.rows == 0) return result;
  driver().check(driver().copy_to_host(result.bytes.get(), address_of(place), place.bytes(), stream_.get()),
                 "copying output " + name);
  driver().check(driver().stream_synchronize(stream_.get()), "running a step");
  return result;
}

std::vector<ExpertCounts> CudaExecutor::expert_counts() {
  device_.make_current();
  std::vector<std::vector<std::int64_t>> tallies;
  for (const int index : plan_.tallies) {
    const PlanTensor& tensor = plan_.tensors[static_cast<std::size_t>(index)];
    std::vector<std::int64_t>& tally = tallies.emplace_back(static_cast<std::size_t>(tensor.shape[0].value));
    driver().check(
        driver().copy_to_host(tally.data(), address_of(index), std::span(tally).size_bytes(), reading_.get()),
        "copying the choices of routers");
  }
  driver().check(driver().stream_synchronize(reading_.get()), "copying the choices of routers");
  std::vector<ExpertCounts> found;
  for (const std::vector<std::int64_t>& tally : tallies) found.push_back(read_tally(tally));
  return found;
}

void CudaExecutor::place_adapter(Adapter& adapter, int slot) {
  adapters_.fill(slot, adapter);
  adapter.set_slot(slot);
}

SlabLayout CudaExecutor::lendable_slabs() const {
  if (adapters_.max_borrowed() == 0) return {};
  return {.block_bytes = static_cast<std::int64_t>(layers_block_bytes(engine_)),
          .slab_bytes = static_cast<std::int64_t>(cache_.slab_bytes()),
          .max_lent = adapters_.max_borrowed()};
}

void CudaExecutor::give_to_adapters(std::span<const int> slabs) {
  device_.make_current();
  lent_slabs_.insert(slabs.begin(), slabs.end());
  for (const int slab : slabs) adapters_.add(cache_.unmap(slab));
}

void CudaExecutor::empty_adapter_slot(int slot) {
  device_.make_current();
  // The last step of a request that has ended may still be in flight.
  const OwnedEvent launched = make_event();
  driver().check(driver().event_record(launched.get(), stream_.get()), "waiting for steps");
  driver().check(driver().event_synchronize(launched.get()), "waiting for steps");
  adapters_.empty(slot);
}

std::vector<int> CudaExecutor::take_from_adapters() {
  device_.make_current();
  for (const int slab : lent_slabs_) {
    if (!cache_.is_mapped(slab) && !map_unused(slab)) break;
  }
  // If mapping one fails, the next call returns those before it.
  std::vector<int> returned;
  std::ranges::copy_if(lent_slabs_, std::back_inserter(returned), [&](int slab) { return cache_.is_mapped(slab); });
  for (const int slab : returned) lent_slabs_.erase(slab);
  return returned;
}

// Maps memory that no adapter uses to a slab of the cache. Returns false if there is none.
bool CudaExecutor::map_unused(int slab) {
  std::optional<Slab> memory = adapters_.take_unused();
  if (!memory) return false;
  try {
    cache_.map(slab, *memory);
  } catch (...) {
    adapters_.add(std::move(*memory));
    throw;
  }
  adapters_.clear(cache_.address_of(slab), cache_.slab_bytes());
  return true;
}

MemoryUse CudaExecutor::memory() const {
  return {.weights = weights_.num_bytes(),
          .kv_cache = cache_.num_mapped_bytes(),
          .workspace = arena_.size() + state_.size() + inputs_.size() +
                       static_cast<std::size_t>(plan_.cuda->workspace_bytes) +
                       (side_ == nullptr ? 0 : side_->num_bytes()),
          .adapters = adapters_.num_bytes()};
}

}  // namespace tl::cuda
