#include "cpu/cpu_executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "caches/cached_inputs.h"
#include "caches/kv_cache_size.h"
#include "cpu/beside.h"
#include "cpu/kernel_registry.h"
#include "engine/checks/port_check.h"
#include "engine/module.h"
#include "errors.h"
#include "host/cpu_count.h"
#include "ranks/collectives.h"
#include "ranks/place.h"

namespace tl {
namespace {

void check_rendezvous(const RankMapping& mapping, const RankRendezvous* rendezvous) {
  const std::int64_t num_ranks = rendezvous == nullptr ? 1 : rendezvous->num_ranks();
  if (mapping.tp_size == num_ranks) return;
  throw EngineError("expected an engine of " + std::to_string(num_ranks) + " ranks, found rank " +
                    std::to_string(part_of(mapping)) + " of " + std::to_string(mapping.tp_size) +
                    ": load all ranks of the engine directory together");
}

}  // namespace

CpuExecutor::CpuExecutor(const Engine& engine, std::int64_t num_threads, std::int64_t num_blocks, std::string_view isa,
                         const CpuExecutor* features_of, RankRendezvous* rendezvous)
    : CpuExecutor(engine, {new ThreadPool(resolve_num_threads(num_threads)), DestroyAtHome()},
                  resolve_num_blocks(engine, num_blocks), resolve_isa(isa),
                  step_limits(engine, resolve_num_blocks(engine, num_blocks)), AnonymousMemory::Pages::kHuge,
                  features_of, rendezvous) {}

CpuExecutor::CpuExecutor(const Engine& engine, std::shared_ptr<ThreadPool> pool, std::int64_t num_blocks,
                         std::string_view isa, const StepLimits& limits, AnonymousMemory::Pages arena_pages,
                         const CpuExecutor* features_of, RankRendezvous* rendezvous)
    : engine_(engine),
      plan_(engine.plan_for(TargetKind::kCpu)),
      isa_(isa),
      num_blocks_(num_blocks),
      pool_(std::move(pool)),
      arena_(static_cast<std::size_t>(plan_.arena_bytes), arena_pages, "workspace",
             "build the engine with a smaller --max_num_tokens"),
      state_(static_cast<std::size_t>(plan_.state_bytes), AnonymousMemory::Pages::kDefault, "state",
             "build the engine with a smaller --max_batch_size"),
      // The cache has ordinary pages: with huge pages, even a short sequence would take one in every layer's cache.
      cache_(kv_cache_bytes(engine, num_blocks_), AnonymousMemory::Pages::kDefault, "KV cache", "reserve fewer blocks"),
      features_(borrowed_features(features_of)),
      inputs_(limits),
      rank_(part_of(engine.manifest().mapping)),
      rendezvous_(rendezvous) {
  check_rendezvous(engine.manifest().mapping, rendezvous);
  const std::vector<std::byte*> places = place_tensors();
  for (const Instruction& instruction : plan_.programs.front().instructions) add_call(instruction, places);
  for (const auto& [_, index] : plan_.inputs) received_.push_back(row_values(index, places));
  if (is_last_stage(engine.manifest().mapping)) {
    made_.push_back(row_values(plan_.outputs.at(only_module(engine.manifest()).outputs.front().name), places));
  } else {
    for (const auto& [_, index] : sent_by(plan_)) made_.push_back(row_values(index, places));
  }
}

CpuExecutor::Rows CpuExecutor::row_values(int index, const std::vector<std::byte*>& places) const {
  const PlanTensor& tensor = plan_.tensors[static_cast<std::size_t>(index)];
  const auto features = static_cast<std::size_t>(tensor.shape[1].value);
  return {reinterpret_cast<float*>(places[static_cast<std::size_t>(index)]), features, *tensor.shape[0].symbol};
}

std::byte* CpuExecutor::borrowed_features(const CpuExecutor* from) const {
  if (ports(only_module(engine_.manifest()).inputs, true).empty()) return nullptr;
  check_source(engine_, num_blocks_, from);
  return from->features_;
}

// The bytes from a block of a cache to the next.
std::int64_t CpuExecutor::block_distance(const PlanTensor& cache) const {
  if (cache.name == kFeatures) return max_bytes(plan_, cache);
  return static_cast<std::int64_t>(blocks_.front().block_bytes);
}

std::vector<std::byte*> CpuExecutor::place_tensors() {
  std::vector<std::byte*> places;
  blocks_.push_back({cache_.data(), layers_block_bytes(engine_)});
  if (const std::size_t of_features = features_block_bytes(engine_); of_features > 0) {
    features_ = blocks_.front().block(num_blocks_);
    blocks_.push_back({features_, of_features});
  }
  for (const PlanTensor& tensor : plan_.tensors) {
    switch (tensor.kind) {
      case TensorKind::kInput: {
        const auto input = static_cast<StepInputIndex>(step_input_index(tensor.name));
        places.push_back(input == kTokenRows ? inputs_.token_rows()
                                             : reinterpret_cast<std::byte*>(inputs_.data(input)));
        break;
      }
      case TensorKind::kArena:
        places.push_back(arena_.data() + tensor.offset);
        break;
      case TensorKind::kState:
        places.push_back(state_.data() + tensor.offset);
        break;
      case TensorKind::kWeight:
        // Inputs and outputs have the same operand type; check_plan has refused calls that write a weight.
        places.push_back(const_cast<std::byte*>(engine_.weight(tensor.name).data()));
        break;
      case TensorKind::kCache:
        places.push_back(tensor.name == kFeatures ? features_ : cache_.data() + tensor.offset);
        break;
      case TensorKind::kAdapter:
        break;  // check_plan refuses such tensors
    }
  }
  return places;
}

// The resolved call lives as long as the executor: kernels read its attributes.
void CpuExecutor::add_call(const Instruction& instruction, const std::vector<std::byte*>& places) {
  if (const auto* collective = std::get_if<CollectiveInstruction>(&instruction)) {
    const std::string& x = plan_.tensors[static_cast<std::size_t>(collective->x.tensor)].name;
    const std::string& name = names_.emplace_back(std::string(to_string(collective->op)) + " of " + x);
    Call call{&name, nullptr, collective, nullptr, operands_.size(), operands_.size() + 1, operands_.size() + 2};
    sites_.push_back({static_cast<int>(sites_.size()), name});
    add_operands({collective->x.tensor, collective->y.tensor}, places);
    calls_.push_back(call);
    return;
  }
  const ResolvedCall& resolved = resolved_.emplace_back(resolve(std::get<CallInstruction>(instruction)));
  const std::string& name = names_.emplace_back(resolved.schema->name);
  Call call{&name, find_kernel(name, isa_), nullptr, resolved.attributes.data(), operands_.size(), 0, 0};
  add_operands(resolved.inputs, places);
  call.first_output = operands_.size();
  add_operands(resolved.outputs, places);
  call.end = operands_.size();
  calls_.push_back(call);
}

void CpuExecutor::add_operands(const std::vector<int>& tensors, const std::vector<std::byte*>& places) {
  for (const int index : tensors) {
    Tensor operand;
    if (index != kAbsent) {
      const PlanTensor& tensor = plan_.tensors[static_cast<std::size_t>(index)];
      const int rank = static_cast<int>(tensor.shape.size());
      operand = {places[static_cast<std::size_t>(index)], tensor.dtype, tensor.layout, rank, {}};
      if (tensor.kind == TensorKind::kCache) operand.block_bytes = block_distance(tensor);
      for (int axis = 0; axis < rank; ++axis) {
        const Dim& dim = tensor.shape[static_cast<std::size_t>(axis)];
        operand.shape[axis] = dim.value;
        if (dim.symbol) varying_extents_.push_back({operands_.size(), axis, *dim.symbol});
      }
    }
    operands_.push_back(operand);
  }
}

// Whether a call has work. It has none if all its outputs are empty, as for the LM head of a step without wanted
// logits, or if it has no rows to put into a cache.
bool CpuExecutor::has_work(const Call& call) const {
  if (call.first_output == call.end) return operands_[call.first_input].shape[0] > 0;
  for (std::size_t i = call.first_output; i < call.end; ++i) {
    const Tensor& output = operands_[i];
    if (output.data != nullptr && std::count(output.shape, output.shape + output.rank, 0) == 0) return true;
  }
  return false;
}

void CpuExecutor::take_inputs(const StepRequest& request) {
  extents_ = inputs_.assign(request);
  receive(request.received);
  for (const VaryingExtent& varying : varying_extents_) {
    operands_[varying.operand].shape[varying.axis] = extents_[varying.symbol];
  }
  num_met_ = 0;
}

template <typename Run>
void CpuExecutor::for_each_call(const StepRequest& request, const Run& run) {
  take_inputs(request);
  for (const Call& call : calls_) {
    if (has_work(call)) run(call);
  }
}

void CpuExecutor::run_call(const Call& call, const StepRequest& request) {
  if (call.collective != nullptr) {
    run_collective(call);
    return;
  }
  const LowRankPart* const* adapters = request.adapters.empty() ? nullptr : request.adapters.data();
  call.kernel({&operands_[call.first_input], &operands_[call.first_output], call.attributes, pool_.get(),
               engine_.manifest().model.dtype, adapters, rank_});
}

void CpuExecutor::compute(const StepRequest& request, const LogitsUse& use) {
  const std::lock_guard lock(mutex_);
  for_each_call(request, [&](const Call& call) { run_call(call, request); });
  use(made(), *pool_);
}

std::vector<InstructionTime> CpuExecutor::time_step(const StepRequest& request, int repeats) {
  const std::lock_guard lock(mutex_);
  std::map<const Call*, std::vector<double>> times;
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first run warms up
    for_each_call(request, [&](const Call& call) {
      const auto begin = std::chrono::steady_clock::now();
      run_call(call, request);
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
      if (repeat >= 0) times[&call].push_back(time.count());
    });
  }
  std::vector<InstructionTime> result;
  for (auto& [call, found] : times) {
    std::ranges::sort(found);
    result.push_back({*call->name, found[found.size() / 2]});
  }
  return result;
}

std::size_t CpuExecutor::size_of(const Rows& rows) const {
  return static_cast<std::size_t>(extents_[rows.count]) * rows.features;
}

void CpuExecutor::receive(std::span<const std::byte> received) {
  std::size_t expected = 0;
  for (const Rows& rows : received_) expected += size_of(rows) * sizeof(float);
  if (received.size() != expected) {
    throw LimitError("step: received: expected " + std::to_string(expected) +
                     " bytes, the previous stage's output for the tokens, found " + std::to_string(received.size()) +
                     "; pass what that stage has sent for the same step");
  }
  for (const Rows& rows : received_) {
    std::memcpy(rows.data, received.data(), size_of(rows) * sizeof(float));
    received = received.subspan(size_of(rows) * sizeof(float));
  }
}

// The rows for the next stage. A single value is returned in place; several are copied one after the other.
std::span<const float> CpuExecutor::made() {
  if (made_.size() == 1) return {made_.front().data, size_of(made_.front())};
  all_made_.clear();
  for (const Rows& rows : made_) all_made_.insert(all_made_.end(), rows.data, rows.data + size_of(rows));
  return all_made_;
}

// No rank reads others' results, or overwrites their operands, before all ranks have computed their parts.
void CpuExecutor::run_collective(const Call& call) {
  const Tensor &x = operands_[call.first_input], &y = operands_[call.first_output];
  const RankOperands own{x.as<const std::byte>(), y.as<std::byte>()};
  const CollectiveSite& site = sites_[num_met_++];
  const bool is_alone = rendezvous_ == nullptr;
  const std::span<const RankOperands> ranks = is_alone ? std::span(&own, 1) : rendezvous_->meet(rank(), own, site);
  if (call.collective->op == CollectiveOp::kAllReduce) {
    all_reduce(rank(), ranks, x.shape[0] * x.shape[1]);
  } else {
    all_gather(rank(), ranks, x.shape[0], x.shape[1], y.shape[1]);
  }
  if (!is_alone) rendezvous_->part(rank(), site);
}

StepOutput CpuExecutor::output(const std::string& name, const RowSlice& slice) {
  const std::lock_guard lock(mutex_);
  const OutputPlace place = find_output(plan_, extents_, name, slice);
  StepOutput result{std::make_unique_for_overwrite<std::uint8_t[]>(place.bytes()), place.rows, place.row_bytes};
  std::memcpy(result.bytes.get(), arena_.data() + place.offset, place.bytes());
  return result;
}

std::vector<ExpertCounts> CpuExecutor::expert_counts() {
  std::vector<ExpertCounts> found;
  std::vector<std::int64_t> tally;
  for (const int index : plan_.tallies) {
    const PlanTensor& tensor = plan_.tensors[static_cast<std::size_t>(index)];
    auto* counts = reinterpret_cast<std::int64_t*>(state_.data() + tensor.offset);
    tally.resize(static_cast<std::size_t>(tensor.shape[0].value));
    for (std::int64_t& count : tally) count = std::atomic_ref(*counts++).load(std::memory_order_relaxed);
    found.push_back(read_tally(tally));
  }
  return found;
}

std::size_t CpuExecutor::block_bytes() const {
  std::size_t bytes = 0;
  for (const BlockArray& array : blocks_) bytes += array.block_bytes;
  return bytes;
}

void CpuExecutor::copy_block(std::int64_t src, std::int64_t dst) {
  const std::lock_guard lock(mutex_);
  for (const BlockArray& array : blocks_) std::memcpy(array.block(dst), array.block(src), array.block_bytes);
}

void CpuExecutor::save_block(std::int64_t block, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  for (const BlockArray& array : blocks_) {
    std::memcpy(out.data(), array.block(block), array.block_bytes);
    out = out.subspan(array.block_bytes);
  }
}

void CpuExecutor::load_block(std::int64_t block, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  for (const BlockArray& array : blocks_) {
    std::memcpy(array.block(block), data.data(), array.block_bytes);
    data = data.subspan(array.block_bytes);
  }
}

MemoryUse CpuExecutor::memory() const {
  return {engine_.weight_bytes(), cache_.size(),
          arena_.size() + inputs_.num_bytes() + kSharedScratchBytes +
              static_cast<std::size_t>(num_threads()) * kScratchBytesPerThread +
              (beside_ == nullptr ? 0 : beside_arena_bytes(plan_) + beside_->inputs_.num_bytes())};
}

}  // namespace tl
