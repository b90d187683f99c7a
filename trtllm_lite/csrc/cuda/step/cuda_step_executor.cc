#include "cuda/step/cuda_step_executor.h"

#include <chrono>
#include <thread>
#include <utility>

#include "cuda/step/rank_part.h"
#include "ranks/failed_rank.h"
#include "sample/slot.cuh"

namespace tl::cuda {

namespace {

using namespace std::chrono_literals;

// A wait for a step polls for this long, which keeps its core busy. After that, it sleeps between polls, at almost no
// cost.
constexpr auto kTimeOfBusyWait = 100ms;
constexpr auto kNap = 100us;

constexpr const char* kTakesTooLong =
    " takes longer than twice the time by which a rank may be late: a GPU of the engine has failed, load it again";

}  // namespace

CudaStepExecutor::CudaStepExecutor(std::span<CudaExecutor* const> ranks, std::int64_t num_host_blocks,
                                   RankWatchdog* watchdog, RankCommunicators* communicators, EarlierStages* earlier)
    : num_stages_(static_cast<int>(ranks.front()->engine().manifest().mapping.pp_size)),
      tp_size_(static_cast<std::size_t>(ranks.front()->engine().manifest().mapping.tp_size)),
      executor_(*ranks[ranks.size() - tp_size_]),
      earlier_(earlier),
      vocab_size_(static_cast<std::size_t>(executor_.engine().manifest().model.vocab_size)),
      host_(executor_),
      masks_(executor_, host_.rows()),
      packer_(executor_, host_),
      tables_(executor_.num_slots(), executor_.num_cache_groups()),
      watchdog_(watchdog),
      communicators_(communicators),
      flights_(static_cast<std::size_t>(num_stages_) + 1) {
  link_stages(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    CudaExecutor& executor = *ranks[rank];
    executor.device().make_current();
    RowSink* const to = rank + tp_size_ < ranks.size() ? links_[rank].get() : nullptr;
    ranks_.push_back({&executor, make_host_cache(executor, num_host_blocks), source_of(rank), to});
  }
  if (tp_size_ > 1) threads_.reset(new ThreadPool(static_cast<int>(tp_size_)));
  executor_.device().make_current();
  for (int stage = 0; stage < num_stages_; ++stage) drawn_.push_back(make_event());
  for (Flight& flight : flights_) {
    flight.inputs = PinnedBuffer(executor_.max_input_bytes(), "inputs of a step",
                                 "build the engine with a smaller --max_num_tokens");
    const std::size_t num_logits = static_cast<std::size_t>(executor_.max_logits());
    flight.tokens = PinnedBuffer(num_logits * sizeof(std::int32_t), "sampled tokens", "free host memory");
    flight.logprobs = PinnedBuffer(num_logits * sizeof(DrawnLogprobs), "log probabilities", "free host memory");
    flight.records = PinnedBuffer(host_.records().num_bytes(), "sampling parameters", "free host memory");
    flight.started = make_event();
    flight.has_logits = make_event();
    flight.copied = make_event();
    flight.ended = make_event();
  }
}

// Each rank sends its rows to the rank of the same part in the next stage.
void CudaStepExecutor::link_stages(std::span<CudaExecutor* const> ranks) {
  for (std::size_t rank = tp_size_; rank < ranks.size(); ++rank) {
    links_.push_back(std::make_unique<StageLink>(*ranks[rank - tp_size_], *ranks[rank]));
  }
}

// The source of a rank's rows; null in the first stage.
RowSource* CudaStepExecutor::source_of(std::size_t rank) const {
  if (rank >= tp_size_) return links_[rank - tp_size_].get();
  return earlier_ == nullptr ? nullptr : earlier_->rows_of(rank);
}

CudaStepExecutor::~CudaStepExecutor() {
  if (earlier_ != nullptr) earlier_->abort();
  if (is_stalled() && communicators_ == nullptr) return;  // only waits in NCCL can be ended
  synchronize();
}

std::unique_ptr<StepExecutor> CudaExecutor::make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) {
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
                            .num_decode_tokens = rows,
                            .num_logits = rows,
                            .decode_only = true,
                            .adapters = adapters};
      packer_.pack(StepBatch(), shape, tables_, {}, flight.inputs.data(), flight.written);  // padding alone
      capture(shape, flight.inputs.data());
      if (!adapters && max_draft_len() > 0 && num_stages_ == 1) decode_seconds_.push_back(time_alone(shape, flight));
    }
    if (rows >= max_batch_size * (1 + max_draft_len())) return;
  }
}

template <typename Use>
void CudaStepExecutor::for_each_rank(Order order, const Use& use) {
  const auto tp_size = static_cast<std::int64_t>(tp_size_);
  for (std::size_t first = 0; first < ranks_.size(); first += tp_size_) {
    const auto use_part = [&](std::int64_t part, int) { use(ranks_[first + static_cast<std::size_t>(part)]); };
    if (order == Order::kAtOnce && threads_ != nullptr) {
      threads_->parallel_for(tp_size, use_part);
    } else {
      for (std::int64_t part = 0; part < tp_size; ++part) use_part(part, 0);
    }
  }
  executor_.device().make_current();
}

// The step runs once first, so that no kernel is left to be loaded during capture. Ranks wait for each other in it, so
// it is enqueued on all streams before any stream is waited for.
void CudaStepExecutor::capture(const StepShape& shape, const std::byte* inputs) {
  if (executor_.has_captured(shape)) return;
  if (earlier_ != nullptr) earlier_->capture(shape, inputs);
  run_alone(shape, inputs);
  for_each_rank(Order::kOneByOne, [](const StageRank& rank) { rank.executor->synchronize(); });
  for_each_rank(Order::kAtOnce, [&](const StageRank& rank) {
    rank.executor->device().make_current();
    rank.executor->capture(shape, draws(rank));
  });
}

// Runs a step of padding alone, and waits for it.
void CudaStepExecutor::run_alone(const StepShape& shape, const std::byte* inputs) {
  or_give_up([&] {
    for_each_rank(Order::kAtOnce, [&](const StageRank& rank) {
      put_part(*rank.executor, watchdog_, [&] {
        draws(rank) ? rank.executor->enqueue_step(shape, inputs) : rank.executor->enqueue_forward(shape, inputs);
      });
    });
    record(flights_.front().ended);
    share_tokens();
    wait_for_end(flights_.front(), 0);
  });
}

// Seconds of a captured step of padding, the second time that it runs.
double CudaStepExecutor::time_alone(const StepShape& shape, Flight& flight) {
  packer_.vary_tokens(shape.num_tokens);
  run_alone(shape, flight.inputs.data());
  record(flight.started);
  run_alone(shape, flight.inputs.data());
  return seconds_between(flight.started, flights_.front().ended);
}

double CudaStepExecutor::decode_seconds(int num_tokens) const {
  if (decode_seconds_.empty()) return 0;
  const std::vector<std::int64_t>& batches = executor_.plan().cuda->decode_batches;
  const auto place = static_cast<std::size_t>(std::ranges::lower_bound(batches, num_tokens) - batches.begin());
  if (place < decode_seconds_.size()) return decode_seconds_[place];
  return decode_seconds_.back() * num_tokens / static_cast<double>(batches[decode_seconds_.size() - 1]);
}

void CudaStepExecutor::set_slot(int slot, std::shared_ptr<const SlotParams> params,
                                std::span<const std::int32_t> tokens, int num_prompt) {
  host_.set_slot(slot, std::move(params), tokens, num_prompt);
  tables_.clear(slot);
  for (Flight& flight : flights_) {
    if (host_.guides(slot)) masks_.reserve(flight.masks);
  }
}

// Records an event on the stream of the rank that draws tokens.
void CudaStepExecutor::record(const OwnedEvent& event) const {
  driver().check(driver().event_record(event.get(), executor_.stream()), "timing a step");
}

// Whether the tokens that the next step continues are known.
bool CudaStepExecutor::knows_predecessor() { return in_flight_ < num_stages_ || flight_at(0).finished; }

// The event recorded once the tokens that the next step continues are drawn, by the step num_stages() before it.
Event CudaStepExecutor::drawn_before() const { return drawn_[num_enqueued_ % drawn_.size()].get(); }

void CudaStepExecutor::launch(const StepBatch& batch) {
  if (is_given_up()) throw DeviceError(kRankGivenUp);
  executor_.device().make_current();
  // This step may continue tokens that the host has yet to draw. It also overwrites the logits that they are drawn
  // from.
  if (in_flight_ > 0 && !newest().plan.host_rows.empty()) or_synchronize([&] { finish_all(); });
  Flight& flight = flight_at(in_flight_);
  const bool all_known = knows_predecessor();
  or_synchronize([&] {
    enqueue(batch, flight);
    if (flight.awaits_masks && all_known) enqueue_guided(flight);
  });
  ++in_flight_;
}

// Calls `call`. If it throws, waits for the work on the streams, because buffers are used again, and names the ranks
// whose GPUs have failed.
template <typename Fn>
void CudaStepExecutor::or_synchronize(const Fn& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    if (earlier_ != nullptr) earlier_->fail(error.what());  // otherwise streams would wait forever
    give_up();
    // A stalled stream may never end, so it is not waited for; no later step is enqueued.
    const std::string failed = is_stalled() ? failed_ranks() : synchronize();
    const std::string reason = error.what();
    throw DeviceError(reason.starts_with(failed) ? reason : failed + ": " + reason);
  } catch (...) {
    if (earlier_ != nullptr) earlier_->fail("a step could not be carried out");
    synchronize();
    throw;
  }
}

// Calls `call`. If it throws, ends the waits of all ranks, because some were not given their part of the step.
template <typename Fn>
void CudaStepExecutor::or_give_up(const Fn& call) {
  try {
    call();
  } catch (...) {
    give_up();
    throw;
  }
}

// Waits for all work on the streams. Returns the names of the failed ranks, or nothing if there is only one rank.
std::string CudaStepExecutor::synchronize() {
  if (is_given_up() && communicators_ != nullptr) communicators_->finish_abort();
  for (const StageRank& rank : ranks_) {
    if (rank.executor->device().try_make_current()) driver().stream_synchronize(rank.executor->stream());
  }
  return failed_ranks();
}

// The names of ranks whose GPUs have failed, or nothing if there is only one rank. Does not wait.
std::string CudaStepExecutor::failed_ranks() const {
  std::string failed;
  for (const StageRank& rank : ranks_) {
    const CudaExecutor& executor = *rank.executor;
    if (executor.device().try_make_current()) {
      const Result state = driver().stream_query(executor.stream());
      if (state == 0 || state == kNotReady) continue;
    }
    failed += (failed.empty() ? "" : ", ") + name_of(executor);
  }
  static_cast<void>(executor_.device().try_make_current());
  return ranks_.size() == 1 ? "" : failed;
}

void CudaStepExecutor::enqueue(const StepBatch& batch, Flight& flight) {
  flight.batch = &batch;
  flight.finished = flight.awaits_masks = false;
  flight.late.clear();
  flight.shape = {};
  flight.plan.clear();
  flight.is_timed = !batch.only_decodes() || max_draft_len() > 0;
  tables_.update(batch.table_updates);
  if (!batch.rows.empty()) pack(batch, flight);
  if (earlier_ != nullptr) earlier_->step(batch.step, batch.copies, flight.shape, flight.inputs.data());
  or_give_up([&] {
    for_each_rank(order_of(flight), [&](const StageRank& rank) {
      put_part(*rank.executor, watchdog_, [&] { enqueue(batch, flight, rank); });
    });
  });
  if (!flight.awaits_masks) enqueue_end(flight);
}

// A rank that launches one graph, or only copies, cannot block on others, so a thread for it would only cost time.
CudaStepExecutor::Order CudaStepExecutor::order_of(const Flight& flight) const {
  const bool is_short = flight.batch->rows.empty() || executor_.has_captured(flight.shape);
  return is_short ? Order::kOneByOne : Order::kAtOnce;
}

// A rank's part of a step whose inputs have been packed. All ranks do this at once, each on its own stream.
void CudaStepExecutor::enqueue(const StepBatch& batch, const Flight& flight, const StageRank& rank) {
  if (!draws(rank)) {
    if (rank.from == nullptr) {
      driver().check(driver().stream_wait(rank.executor->stream(), drawn_before(), 0), "waiting for tokens");
    }
    rank.enqueue(batch.copies, flight.shape, flight.inputs.data());
    return;
  }
  if (flight.is_timed) record(flight.started);
  rank.enqueue_copies(batch.copies);
  if (!batch.copies.empty()) record(flight.copied);
  if (batch.rows.empty()) return;
  if (rank.from != nullptr) rank.from->receive(flight.shape.num_tokens);
  enqueue_drawing(flight);
}

std::int64_t CudaStepExecutor::max_draft_len() const { return executor_.engine().manifest().limits.max_draft_len; }

void CudaStepExecutor::pack(const StepBatch& batch, Flight& flight) {
  flight.shape = packer_.plan(batch, flight.plan);
  packer_.pack(batch, flight.shape, tables_, flight.plan.rows, flight.inputs.data(), flight.written);
  flight.awaits_masks = !flight.plan.guided.empty();
}

void CudaStepExecutor::enqueue_drawing(const Flight& flight) {
  host_.records().enqueue(flight.records);
  if (flight.awaits_masks) {
    executor_.enqueue_forward(flight.shape, flight.inputs.data());
    record(flight.has_logits);
  } else {
    executor_.enqueue_step(flight.shape, flight.inputs.data());
  }
}

// Enqueues the sampling part of a guided step after the step before it has been read. Nothing else follows it on the
// stream yet.
void CudaStepExecutor::enqueue_guided(Flight& flight) {
  const auto number = static_cast<std::size_t>(&flight - flights_.data());
  const Flight& before = flights_[(number + flights_.size() - 1) % flights_.size()];
  masks_.put(*flight.batch, flight.plan.guided, flight.masks, flight.has_logits, before.ended);
  for (const GuidedRow& guided : flight.plan.guided) {
    if (guided.is_late) flight.late.push_back(guided.row);
  }
  executor_.enqueue_sampling(flight.shape);
  flight.awaits_masks = false;
  enqueue_end(flight);
}

void CudaStepExecutor::enqueue_end(Flight& flight) {
  if (ranks_.size() > 1) driver().check(driver().event_record(drawn_before(), executor_.stream()), "drawing tokens");
  if (earlier_ != nullptr) earlier_->send_tokens();
  ++num_enqueued_;
  if (flight.shape.num_logits > 0) copy_tokens(flight);
  record(flight.ended);
  if (flight.shape.num_logits > 0) share_tokens();
}

// Copies the drawn tokens to ranks that cannot read them in place.
void CudaStepExecutor::share_tokens() {
  if (communicators_ == nullptr) return;
  std::vector<RankCommunicators::Place> places;
  for (const StageRank& rank : ranks_) places.push_back({rank.executor->last_tokens(), rank.executor->stream()});
  communicators_->share(places, static_cast<std::size_t>(executor_.num_slots()) * sizeof(std::int32_t));
  executor_.device().make_current();
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
  Flight& flight = flight_at(0);
  oldest_ = (oldest_ + 1) % static_cast<int>(flights_.size());
  --in_flight_;
  if (!flight.finished) or_synchronize([&] { finish(flight); });
  // The tokens that the newest step continues are known, because at most num_stages() steps are in flight.
  if (in_flight_ > 0 && newest().awaits_masks) or_synchronize([&] { enqueue_guided(newest()); });
  std::swap(result, flight.result);
}

std::span<const std::size_t> CudaStepExecutor::late_rows() const {
  return flights_[static_cast<std::size_t>(oldest_ + in_flight_ - 1) % flights_.size()].late;
}

// With several ranks, one may stall forever. Ranks that wait for it in kernels raise the alarm; where the ranks are
// stages, the time limit of a step ends the wait.
void CudaStepExecutor::wait_for_end(const Flight& flight, std::uint64_t step) {
  if (watchdog_ == nullptr) {
    driver().check(driver().event_synchronize(flight.ended.get()), "running a step");
    return;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now(), end = begin + 2 * std::chrono::nanoseconds(watchdog_->timeout());
  while (!driver().reached(flight.ended.get()) && !watchdog_->is_raised()) {
    const Clock::time_point now = Clock::now();
    if (now > end) end_late(step);
    if (earlier_ != nullptr) earlier_->look_after(step);
    now - begin < kTimeOfBusyWait ? std::this_thread::yield() : std::this_thread::sleep_for(kNap);
  }
  watchdog_->check(step);
}

void CudaStepExecutor::end_late(std::uint64_t step) {
  if (earlier_ != nullptr) earlier_->check_ended(step);
  is_late_ = true;
  const std::string errors = communicators_ == nullptr ? "" : communicators_->errors();
  give_up();
  throw DeviceError("step " + std::to_string(step) + kTakesTooLong + (errors.empty() ? "" : " (" + errors + ")"));
}

// Whether a stream may never end. If so, no stream is waited for.
bool CudaStepExecutor::is_stalled() const { return is_late_ || (watchdog_ != nullptr && watchdog_->is_raised()); }

bool CudaStepExecutor::is_given_up() const {
  return is_stalled() || (communicators_ != nullptr && communicators_->is_aborted());
}

// Ends the waits of ranks in NCCL. Ranks that wait in kernels raise an alarm themselves after the timeout.
void CudaStepExecutor::give_up() {
  if (communicators_ == nullptr || communicators_->is_aborted()) return;
  for (const StageRank& rank : ranks_) {
    static_cast<void>(rank.executor->device().try_make_current());
    rank.executor->drop_graphs();
  }
  static_cast<void>(executor_.device().try_make_current());
  communicators_->abort();
}

void CudaStepExecutor::finish_all() {
  for (int place = 0; place < in_flight_; ++place) {
    if (!flight_at(place).finished) finish(flight_at(place));
  }
}

void CudaStepExecutor::finish(Flight& flight) {
  if (flight.awaits_masks) enqueue_guided(flight);  // the step before it has failed
  wait_for_end(flight, flight.batch->step);
  read_times(flight);
  read_tokens(flight);
  read_guided(flight);
  if (flight.plan.has_logprobs) read_logprobs(flight);
  host_.finish(*flight.batch, flight.plan.host_rows, flight.plan.rows, flight.result.rows);
  flight.result.woken_slots = masks_.take_woken();
  flight.finished = true;
}

}  // namespace tl::cuda
