#include "cuda/cuda_step_executor.h"

#include <utility>

#include "ranks/failed_rank.h"
#include "sample/slot.cuh"

namespace tl::cuda {

namespace {

std::byte* host_block(const PinnedBuffer& cache, std::int32_t index, const CudaExecutor& executor) {
  return cache.data() + static_cast<std::size_t>(index) * executor.block_bytes();
}

}  // namespace

CudaStepExecutor::CudaStepExecutor(std::span<CudaExecutor* const> ranks, std::int64_t num_host_blocks,
                                   const RankWatchdog* watchdog)
    : executor_(*ranks.front()),
      vocab_size_(static_cast<std::size_t>(executor_.engine().manifest().model.vocab_size)),
      host_(executor_),
      masks_(executor_, host_.rows()),
      packer_(executor_, host_),
      tables_(executor_.num_slots(), executor_.num_cache_groups()),
      watchdog_(watchdog) {
  CudaExecutor& executor = executor_;
  const auto host_cache = [num_host_blocks](const CudaExecutor& rank) {
    rank.device().make_current();
    return PinnedBuffer(static_cast<std::size_t>(num_host_blocks) * rank.block_bytes(), "swapped KV cache",
                        "lower host_cache_size");
  };
  for (CudaExecutor* rank : ranks.subspan(1)) followers_.push_back({rank, host_cache(*rank)});
  host_cache_ = host_cache(executor_);
  drawn_ = make_event();
  for (Flight& flight : flights_) {
    flight.inputs = PinnedBuffer(executor.max_input_bytes(), "inputs of a step",
                                 "build the engine with a smaller --max_num_tokens");
    const std::size_t num_logits = static_cast<std::size_t>(executor.max_logits());
    flight.tokens = PinnedBuffer(num_logits * sizeof(std::int32_t), "sampled tokens", "free host memory");
    flight.logprobs = PinnedBuffer(num_logits * sizeof(DrawnLogprobs), "log probabilities", "free host memory");
    flight.records = PinnedBuffer(host_.records().num_bytes(), "sampling parameters", "free host memory");
    flight.started = make_event();
    flight.has_logits = make_event();
    flight.copied = make_event();
    flight.ended = make_event();
  }
}

CudaStepExecutor::~CudaStepExecutor() {
  for (const Follower& follower : followers_) {
    if (follower.executor->device().try_make_current()) driver().stream_synchronize(follower.executor->stream());
  }
  if (executor_.device().try_make_current()) driver().stream_synchronize(executor_.stream());
}

std::unique_ptr<StepExecutor> CudaExecutor::make_step_executor(std::int64_t num_host_blocks, int max_batch_size) {
  CudaExecutor* const only[] = {this};
  auto steps = std::make_unique<CudaStepExecutor>(only, num_host_blocks);
  steps->capture_decode_steps(max_batch_size);
  return steps;
}

void CudaStepExecutor::capture_decode_steps(int max_batch_size) {
  executor_.device().make_current();
  Flight& flight = flights_.front();
  for (const std::int64_t rows : executor_.plan().cuda->decode_batches) {
    for (const bool adapters : {false, true}) {
      if (adapters && executor_.num_loras() == 0) continue;
      const StepShape shape{.num_tokens = rows,
                            .num_seqs = rows,
                            .num_decode_seqs = rows,
                            .num_logits = rows,
                            .decode_only = true,
                            .adapters = adapters};
      packer_.pack(StepBatch(), shape, tables_, {}, flight.inputs.data(), flight.written);  // padding alone
      capture(shape, flight.inputs.data());
    }
    if (rows >= max_batch_size * (1 + max_draft_len())) return;
  }
}

template <typename Use>
void CudaStepExecutor::for_each_rank(const Use& use) {
  for (const Follower& follower : followers_) {
    follower.executor->device().make_current();
    use(*follower.executor);
  }
  executor_.device().make_current();
  use(executor_);
}

// A step is carried out first, so that nothing is left to be loaded while capturing. Ranks wait for each other in it:
// it is on the streams of all before any is waited for.
void CudaStepExecutor::capture(const StepShape& shape, const std::byte* inputs) {
  if (executor_.has_captured(shape)) return;
  for_each_rank([&](CudaExecutor& rank) { rank.enqueue_step(shape, inputs); });
  for_each_rank([](CudaExecutor& rank) { rank.synchronize(); });
  for_each_rank([&](CudaExecutor& rank) { rank.capture(shape); });
}

void CudaStepExecutor::set_slot(int slot, std::shared_ptr<const SlotParams> params,
                                std::span<const std::int32_t> tokens, int num_prompt) {
  host_.set_slot(slot, std::move(params), tokens, num_prompt);
  tables_.clear(slot);
  for (Flight& flight : flights_) {
    if (host_.guides(slot)) masks_.reserve(flight.masks);
  }
}

void CudaStepExecutor::launch(const StepBatch& batch) {
  if (watchdog_ != nullptr && watchdog_->is_raised()) throw DeviceError(kRankGivenUp);
  executor_.device().make_current();
  // This step may continue tokens that the host has still to draw.
  if (in_flight_ == 1) {
    Flight& before = flights_[static_cast<std::size_t>(oldest_)];
    if (!before.plan.host_rows.empty() && !before.finished) finish(before);
  }
  Flight& flight = flights_[static_cast<std::size_t>((oldest_ + in_flight_) % 2)];
  const bool all_known = in_flight_ == 0 || flights_[static_cast<std::size_t>(oldest_)].finished;
  or_synchronize([&] {
    enqueue(batch, flight);
    if (flight.awaits_masks && all_known) enqueue_guided(flight);
  });
  ++in_flight_;
}

// Carries out `call`; if it fails half-way, waits for what is on the streams, because the buffers are used again, and
// names the ranks whose GPUs have failed.
template <typename Fn>
void CudaStepExecutor::or_synchronize(const Fn& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    const std::string failed = synchronize();
    throw DeviceError(failed + (failed.empty() ? "" : ": ") + error.what());
  } catch (...) {
    synchronize();
    throw;
  }
}

// Waits for all that is on the streams. Returns the names of ranks that have failed, if there are several ranks.
std::string CudaStepExecutor::synchronize() {
  std::string failed;
  const auto wait_for = [&](CudaExecutor& rank) {
    if (rank.device().try_make_current() && driver().stream_synchronize(rank.stream()) == 0) return;
    failed += (failed.empty() ? "rank " : ", rank ") + std::to_string(rank.engine().manifest().mapping.rank) +
              " on GPU " + std::to_string(rank.device().index());
  };
  for (const Follower& follower : followers_) wait_for(*follower.executor);
  wait_for(executor_);
  return followers_.empty() ? "" : failed;
}

void CudaStepExecutor::enqueue(const StepBatch& batch, Flight& flight) {
  const Stream stream = executor_.stream();
  flight.batch = &batch;
  flight.finished = flight.awaits_masks = false;
  flight.late.clear();
  flight.shape = {};
  flight.plan.clear();
  flight.is_timed = !batch.only_decodes() || max_draft_len() > 0;
  if (flight.is_timed) driver().check(driver().event_record(flight.started.get(), stream), "timing a step");
  copy_blocks(batch.copies, executor_,
              [this](std::int32_t index) { return host_block(host_cache_, index, executor_); });
  if (!batch.copies.empty()) driver().check(driver().event_record(flight.copied.get(), stream), "timing a step");
  tables_.update(batch.table_updates);
  if (!batch.rows.empty()) enqueue_rows(batch, flight);
  if (!followers_.empty()) follow(batch, flight);
  if (!flight.awaits_masks) enqueue_end(flight);
}

// The other ranks' part of a step, whose inputs have been packed. It begins when the tokens of the step before are
// drawn.
void CudaStepExecutor::follow(const StepBatch& batch, const Flight& flight) {
  for (const Follower& follower : followers_) {
    CudaExecutor& rank = *follower.executor;
    rank.device().make_current();
    driver().check(driver().stream_wait(rank.stream(), drawn_.get(), 0), "waiting for the first rank");
    copy_blocks(batch.copies, rank, [&](std::int32_t index) { return host_block(follower.host_cache, index, rank); });
    if (!batch.rows.empty()) rank.enqueue_forward(flight.shape, flight.inputs.data());
  }
  executor_.device().make_current();
}

std::int64_t CudaStepExecutor::max_draft_len() const { return executor_.engine().manifest().limits.max_draft_len; }

void CudaStepExecutor::enqueue_rows(const StepBatch& batch, Flight& flight) {
  flight.shape = packer_.plan(batch, flight.plan);
  packer_.pack(batch, flight.shape, tables_, flight.plan.rows, flight.inputs.data(), flight.written);
  host_.records().enqueue(flight.records);
  flight.awaits_masks = !flight.plan.guided.empty();
  if (flight.awaits_masks) {
    executor_.enqueue_forward(flight.shape, flight.inputs.data());
    driver().check(driver().event_record(flight.has_logits.get(), executor_.stream()), "running a step");
  } else {
    executor_.enqueue_step(flight.shape, flight.inputs.data());
  }
}

// The rest of a step with guided rows, for which the step before has been read. It is the last on the stream.
void CudaStepExecutor::enqueue_guided(Flight& flight) {
  masks_.put(*flight.batch, flight.plan.guided, flight.masks, flight.has_logits);
  for (const GuidedRow& guided : flight.plan.guided) {
    if (guided.is_late) flight.late.push_back(guided.row);
  }
  executor_.enqueue_sampling(flight.shape);
  flight.awaits_masks = false;
  enqueue_end(flight);
}

void CudaStepExecutor::enqueue_end(Flight& flight) {
  if (!followers_.empty()) driver().check(driver().event_record(drawn_.get(), executor_.stream()), "drawing tokens");
  if (flight.shape.num_logits > 0) copy_tokens(flight);
  driver().check(driver().event_record(flight.ended.get(), executor_.stream()), "timing a step");
}

void CudaStepExecutor::copy_tokens(Flight& flight) {
  const std::size_t num_bytes = static_cast<std::size_t>(flight.shape.num_logits) * sizeof(std::int32_t);
  driver().check(driver().copy_to_host(flight.tokens.data(), executor_.tokens(), num_bytes, executor_.stream()),
                 "copying tokens");
  if (flight.plan.has_logprobs) copy_logprobs(flight);
}

void CudaStepExecutor::copy_logprobs(Flight& flight) {
  const std::size_t num_bytes = static_cast<std::size_t>(flight.shape.num_logits) * sizeof(DrawnLogprobs);
  driver().check(driver().copy_to_host(flight.logprobs.data(), executor_.logprobs(), num_bytes, executor_.stream()),
                 "copying log probabilities");
}

void CudaStepExecutor::wait(StepResult& result) {
  Flight& flight = flights_[static_cast<std::size_t>(oldest_)];
  oldest_ ^= 1;
  --in_flight_;
  if (!flight.finished) or_synchronize([&] { finish(flight); });
  Flight& next = flights_[static_cast<std::size_t>(oldest_)];
  if (in_flight_ == 1 && next.awaits_masks) or_synchronize([&] { enqueue_guided(next); });
  std::swap(result, flight.result);
}

std::span<const std::size_t> CudaStepExecutor::late_rows() const {
  return flights_[static_cast<std::size_t>((oldest_ + in_flight_ - 1) % 2)].late;
}

void CudaStepExecutor::finish(Flight& flight) {
  if (flight.awaits_masks) enqueue_guided(flight);  // the step before it has failed
  driver().check(driver().event_synchronize(flight.ended.get()), "running a step");
  if (watchdog_ != nullptr) watchdog_->check(executor_.plan(), flight.batch->step);
  read_times(flight);
  read_tokens(flight);
  read_guided(flight);
  if (flight.plan.has_logprobs) read_logprobs(flight);
  host_.finish(*flight.batch, flight.plan.host_rows, flight.plan.rows, flight.result.rows);
  flight.finished = true;
}

}  // namespace tl::cuda
