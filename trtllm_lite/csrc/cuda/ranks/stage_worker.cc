#include "cuda/ranks/stage_worker.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cuda/step/input_layout.h"
#include "cuda/step/rank_part.h"
#include "errors.h"
#include "ranks/place.h"

namespace tl::cuda {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeBetweenLooksAtStages = 100us;  // short enough: several steps may be under way

}  // namespace

StageWorker::StageWorker(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
                         std::int64_t num_host_blocks, const std::vector<std::string>& library_directories,
                         std::chrono::nanoseconds timeout)
    : timeout_(timeout),
      group_(engines, devices, num_blocks, library_directories, timeout),
      num_stages_(static_cast<std::size_t>(engines.front()->manifest().mapping.pp_size)),
      flights_(num_stages_ + 2) {
  for (CudaExecutor* const rank : group_.ranks()) {
    rank->device().make_current();
    ranks_.push_back({rank, make_host_cache(*rank, num_host_blocks), nullptr, nullptr});
    for (Flight& flight : flights_) flight.ended.push_back(make_event());
  }
  if (ranks_.size() > 1) threads_.reset(new ThreadPool(static_cast<int>(ranks_.size())));
  for (Flight& flight : flights_) {
    flight.inputs = PinnedBuffer(ranks_.front().executor->max_input_bytes(), "inputs of a step",
                                 "build the engine with a smaller --max_num_tokens");
  }
}

StageWorker::~StageWorker() {
  close();
  abort_all(pairs_, timeout_);  // otherwise the streams might never end
  for (const StageRank& rank : ranks_) {
    if (rank.executor->device().try_make_current()) driver().stream_synchronize(rank.executor->stream());
  }
}

// Processes connect in the order of the receivers' numbers, so that no two wait for each other.
void StageWorker::connect(const Nccl& nccl, std::span<const NcclId> ids) {
  const RankMapping& mapping = ranks_.front().executor->engine().manifest().mapping;
  const auto first = static_cast<std::size_t>(mapping.rank), tp_size = ranks_.size();
  for (std::size_t part = 0; part < tp_size; ++part) {
    const CudaExecutor& rank = *ranks_[part].executor;
    rank.device().make_current();
    const std::string what = is_first_stage(mapping) ? "receiving tokens" : "receiving rows of the previous stage";
    auto pair = std::make_unique<NcclPair>(nccl, ids[first + part], PairRole::kReceives, rank.device(), what);
    pairs_.push_back(pair.get());
    if (is_first_stage(mapping)) {
      tokens_.push_back(std::move(pair));
      continue;
    }
    sources_.push_back(std::make_unique<NcclRowSource>(rank, std::move(pair)));
    ranks_[part].from = sources_.back().get();
  }
  for (std::size_t part = 0; part < tp_size; ++part) {
    const CudaExecutor& rank = *ranks_[part].executor;
    rank.device().make_current();
    auto pair = std::make_unique<NcclPair>(nccl, ids[first + tp_size + part], PairRole::kSends, rank.device(),
                                           "sending rows to the next stage");
    pairs_.push_back(pair.get());
    sinks_.push_back(std::make_unique<NcclRowSink>(rank, std::move(pair)));
    ranks_[part].to = sinks_.back().get();
  }
}

void StageWorker::pack(Flight& flight, const StepShape& shape, std::span<const std::byte> inputs) const {
  const CudaExecutor& rank = *ranks_.front().executor;
  const InputLayout layout = rank.input_layout(rank.extents(shape));
  const std::size_t expected = shape.num_tokens == 0 ? 0 : layout.bytes;
  if (inputs.size() != expected || expected > flight.inputs.size()) {
    throw EngineError("step: inputs: expected " + std::to_string(expected) + " bytes, found " +
                      std::to_string(inputs.size()) + ": the last stage runs another engine");
  }
  std::ranges::copy(inputs, flight.inputs.data());
}

// See CudaStepExecutor::capture.
void StageWorker::capture(const StepShape& shape, std::span<const std::byte> inputs) {
  if (ranks_.front().executor->has_captured(shape)) return;
  Flight& flight = flights_.front();
  pack(flight, shape, inputs);
  for_each_rank([&](CudaExecutor& rank, std::size_t) {
    put_part(rank, &group_.watchdog(), [&] { rank.enqueue_forward(shape, flight.inputs.data()); });
  });
  for_each_rank([](CudaExecutor& rank, std::size_t) { rank.synchronize(); });
  group_.watchdog().check(0);
  for_each_rank([&](CudaExecutor& rank, std::size_t) { rank.capture(shape, false); });
}

// Calls `use` for each rank and its part concurrently, because a rank whose stream is full waits for others.
template <typename Use>
void StageWorker::for_each_rank(const Use& use) {
  const auto use_part = [&](std::int64_t part, int) {
    CudaExecutor& rank = *ranks_[static_cast<std::size_t>(part)].executor;
    rank.device().make_current();
    use(rank, static_cast<std::size_t>(part));
  };
  if (threads_ == nullptr) return use_part(0, 0);
  threads_->parallel_for(std::ssize(ranks_), use_part);
}

void StageWorker::step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
                       std::span<const std::byte> inputs) noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return num_begun_ - num_ended_ < flights_.size() || failure_ || is_closed_; });
  if (failure_ || is_closed_) return;
  Flight& next = flight(num_begun_);
  lock.unlock();
  try {
    next.number = number;
    pack(next, shape, inputs);
    for_each_rank([&](const CudaExecutor& rank, std::size_t part) {
      put_part(rank, &group_.watchdog(), [&] { enqueue(next, copies, shape, part); });
    });
    lock.lock();
    ++num_begun_;
  } catch (...) {
    lock.lock();
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

// The first stage continues the tokens that the step num_stages_ steps earlier has drawn.
void StageWorker::enqueue(const Flight& flight, std::span<const CopyOrder> copies, const StepShape& shape,
                          std::size_t part) {
  const CudaExecutor& rank = *ranks_[part].executor;
  if (!tokens_.empty() && num_begun_ >= num_stages_) {
    const Piece tokens = last_tokens(rank);
    tokens_[part]->transfer({&tokens, 1}, rank.stream());
  }
  ranks_[part].enqueue(copies, shape, flight.inputs.data());
  driver().check(driver().event_record(flight.ended[part].get(), rank.stream()), "running a step");
}

bool StageWorker::is_ended(const Flight& flight) const {
  for (std::size_t part = 0; part < ranks_.size(); ++part) {
    ranks_[part].executor->device().make_current();
    if (!driver().reached(flight.ended[part].get())) return false;
  }
  return true;
}

void StageWorker::wait_for_end(const Flight& flight) const {
  while (!is_ended(flight) && !group_.watchdog().is_raised()) {
    {
      const std::lock_guard lock(mutex_);
      if (is_closed_) return;
    }
    std::this_thread::sleep_for(kTimeBetweenLooksAtStages);
  }
  group_.watchdog().check(flight.number);
}

void StageWorker::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return num_ended_ < num_begun_ || failure_ || is_closed_; });
    if (failure_) std::rethrow_exception(failure_);
    if (is_closed_) return;
    const Flight& oldest = flight(num_ended_);
    lock.unlock();
    std::exception_ptr failure;
    try {
      wait_for_end(oldest);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) failure_ = failure;
    if (!failure && !is_closed_) {
      ++num_ended_;
      last_ended_ = oldest.number;
    }
    changed_.notify_all();
  }
}

bool StageWorker::has_ended(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return num_ended_ > 0 && last_ended_ >= number;
}

void StageWorker::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace tl::cuda
