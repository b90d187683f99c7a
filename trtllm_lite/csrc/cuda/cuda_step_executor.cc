#include "cuda/cuda_step_executor.h"

#include <algorithm>
#include <utility>

#include "errors.h"
#include "sample/slot.cuh"

namespace tl::cuda {
namespace {

constexpr const char* kNotSampled =
    "the logits hold NaN or +infinity, or no finite value: the model's weights or its input are damaged";
constexpr const char* kNothingAllowed =
    "at least one token must be possible, but the request's constraints (bad_words, min_tokens, guided_decoding) ban "
    "all, or the logits hold NaN or +infinity; relax the constraints, or check the weights";
constexpr double kSecondsPerMillisecond = 1e-3;

double seconds_between(const OwnedEvent& first, const OwnedEvent& last) {
  float milliseconds = 0;
  driver().check(driver().event_elapsed(&milliseconds, first.get(), last.get()), "timing a step");
  return milliseconds * kSecondsPerMillisecond;
}

// Empties the result, and keeps its memory.
void clear(RowResult& result) {
  result.tokens.clear();
  result.moves.clear();
  result.outputs.reset();
  result.error.clear();
}

}  // namespace

CudaStepExecutor::CudaStepExecutor(CudaExecutor& executor, std::int64_t num_host_blocks)
    : executor_(executor),
      vocab_size_(static_cast<std::size_t>(executor.engine().manifest().model.vocab_size)),
      host_(executor),
      packer_(executor, host_),
      tables_(executor.num_slots(), executor.num_cache_groups()) {
  executor_.device().make_current();
  host_cache_ = PinnedBuffer(static_cast<std::size_t>(num_host_blocks) * executor.block_bytes(), "swapped KV cache",
                             "lower host_cache_size");
  for (Flight& flight : flights_) {
    flight.inputs = PinnedBuffer(executor.max_input_bytes(), "inputs of a step",
                                 "build the engine with a smaller --max_num_tokens");
    const std::size_t num_logits = static_cast<std::size_t>(executor.max_logits());
    flight.tokens = PinnedBuffer(num_logits * sizeof(std::int32_t), "sampled tokens", "free host memory");
    flight.logprobs = PinnedBuffer(num_logits * sizeof(DrawnLogprobs), "log probabilities", "free host memory");
    flight.records = PinnedBuffer(host_.records().num_bytes(), "sampling parameters", "free host memory");
    flight.started = make_event();
    flight.copied = make_event();
    flight.ended = make_event();
  }
}

CudaStepExecutor::~CudaStepExecutor() {
  if (executor_.device().try_make_current()) driver().stream_synchronize(executor_.stream());
}

std::unique_ptr<StepExecutor> CudaExecutor::make_step_executor(std::int64_t num_host_blocks, int max_batch_size) {
  auto steps = std::make_unique<CudaStepExecutor>(*this, num_host_blocks);
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
      executor_.capture(shape, flight.inputs.data());
    }
    if (rows >= max_batch_size * (1 + max_draft_len())) return;
  }
}

void CudaStepExecutor::set_slot(int slot, std::shared_ptr<const SlotParams> params,
                                std::span<const std::int32_t> tokens, int num_prompt) {
  host_.set_slot(slot, std::move(params), tokens, num_prompt);
  tables_.clear(slot);
  if (host_.guides(slot)) reserve_masks();
}

// Reserves room for masks when the first request needs some: most engines never do.
void CudaStepExecutor::reserve_masks() {
  const std::size_t num_words = static_cast<std::size_t>(executor_.max_masks()) * mask_words(vocab_size_);
  for (Flight& flight : flights_) {
    if (flight.masks.size() > 0) continue;
    executor_.device().make_current();
    flight.masks = PinnedBuffer(num_words * sizeof(std::uint32_t), "masks of tokens", "free host memory");
  }
}

void CudaStepExecutor::launch(const StepBatch& batch) {
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

// Carries out `enqueue`; if it fails half-way, waits for what is on the stream, because the buffers are used again.
template <typename Fn>
void CudaStepExecutor::or_synchronize(const Fn& enqueue) {
  try {
    enqueue();
  } catch (...) {
    driver().stream_synchronize(executor_.stream());
    throw;
  }
}

void CudaStepExecutor::enqueue(const StepBatch& batch, Flight& flight) {
  const Stream stream = executor_.stream();
  flight.batch = &batch;
  flight.finished = flight.awaits_masks = false;
  flight.shape = {};
  flight.plan.clear();
  flight.is_timed = !batch.only_decodes() || max_draft_len() > 0;
  if (flight.is_timed) driver().check(driver().event_record(flight.started.get(), stream), "timing a step");
  copy_blocks(batch.copies, executor_, [this](std::int32_t index) { return host_block(index); });
  if (!batch.copies.empty()) driver().check(driver().event_record(flight.copied.get(), stream), "timing a step");
  tables_.update(batch.table_updates);
  if (!batch.rows.empty()) enqueue_rows(batch, flight);
  if (!flight.awaits_masks) enqueue_end(flight);
}

std::int64_t CudaStepExecutor::max_draft_len() const { return executor_.engine().manifest().limits.max_draft_len; }

std::byte* CudaStepExecutor::host_block(std::int32_t index) const {
  return host_cache_.data() + static_cast<std::size_t>(index) * executor_.block_bytes();
}

void CudaStepExecutor::enqueue_rows(const StepBatch& batch, Flight& flight) {
  flight.shape = packer_.plan(batch, flight.plan);
  packer_.pack(batch, flight.shape, tables_, flight.plan.rows, flight.inputs.data(), flight.written);
  host_.records().enqueue(flight.records);
  flight.awaits_masks = !flight.plan.guided.empty();
  if (flight.awaits_masks) {
    executor_.enqueue_forward(flight.shape, flight.inputs.data());
  } else {
    executor_.enqueue_step(flight.shape, flight.inputs.data());
  }
}

// The rest of a step with guided rows, for which the step before has been read. It is the last on the stream.
void CudaStepExecutor::enqueue_guided(Flight& flight) {
  flight.mask_errors.resize(flight.plan.guided.size());
  const std::span masks(reinterpret_cast<std::uint32_t*>(flight.masks.data()),
                        flight.masks.size() / sizeof(std::uint32_t));
  host_.fill_masks(*flight.batch, flight.plan.guided, masks, flight.mask_errors);
  copy_masks(flight);
  executor_.enqueue_sampling(flight.shape);
  flight.awaits_masks = false;
  enqueue_end(flight);
}

// One copy from the first mask of a guided row to the last, whatever lies between.
void CudaStepExecutor::copy_masks(Flight& flight) {
  const GuidedRow &first = flight.plan.guided.front(), &last = flight.plan.guided.back();
  const std::int64_t end = last.first_mask + 1 + flight.batch->rows[last.row].num_drafts;
  const std::size_t mask_bytes = mask_words(vocab_size_) * sizeof(std::uint32_t);
  const std::size_t begin_byte = static_cast<std::size_t>(first.first_mask) * mask_bytes;
  driver().check(driver().copy_to_device(executor_.token_masks() + begin_byte, flight.masks.data() + begin_byte,
                                         static_cast<std::size_t>(end) * mask_bytes - begin_byte, executor_.stream()),
                 "copying masks of tokens");
}

void CudaStepExecutor::enqueue_end(Flight& flight) {
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
  if (!flight.finished) finish(flight);
  Flight& next = flights_[static_cast<std::size_t>(oldest_)];
  if (in_flight_ == 1 && next.awaits_masks) or_synchronize([&] { enqueue_guided(next); });
  std::swap(result, flight.result);
}

void CudaStepExecutor::finish(Flight& flight) {
  if (flight.awaits_masks) enqueue_guided(flight);  // the step before it has failed
  driver().check(driver().event_synchronize(flight.ended.get()), "running a step");
  read_times(flight);
  read_tokens(flight);
  read_guided(flight);
  if (flight.plan.has_logprobs) read_logprobs(flight);
  host_.finish(*flight.batch, flight.plan.host_rows, flight.plan.rows, flight.result.rows);
  flight.finished = true;
}

void CudaStepExecutor::read_times(Flight& flight) {
  flight.result.copy_seconds = flight.result.compute_seconds = 0;
  if (!flight.is_timed) return;
  const bool has_copies = !flight.batch->copies.empty();
  if (has_copies) flight.result.copy_seconds = seconds_between(flight.started, flight.copied);
  flight.result.compute_seconds = seconds_between(has_copies ? flight.copied : flight.started, flight.ended);
}

void CudaStepExecutor::read_tokens(Flight& flight) {
  const auto* tokens = reinterpret_cast<const std::int32_t*>(flight.tokens.data());
  flight.result.rows.resize(flight.batch->rows.size());
  for (std::size_t i = 0; i < flight.batch->rows.size(); ++i) {
    const StepRow& row = flight.batch->rows[i];
    RowResult& result = flight.result.rows[i];
    clear(result);
    if (!row.sample || host_.takes(row)) continue;
    const RowLogits& at = flight.plan.rows[i];
    const auto end = static_cast<std::size_t>(row.first_token + row.num_tokens);
    for (int drawn = 0; drawn <= row.num_drafts; ++drawn) {
      const std::int32_t token = tokens[at.first + at.num_rows - 1 - row.num_drafts + drawn];
      if (token < 0) result.error = host_.guides(row) ? kNothingAllowed : kNotSampled;
      result.tokens.push_back(token);
      if (drawn < row.num_drafts && token != flight.batch->token_ids[end - row.num_drafts + drawn]) break;
    }
  }
}

// Continues the texts of guided rows.
void CudaStepExecutor::read_guided(Flight& flight) {
  for (std::size_t i = 0; i < flight.plan.guided.size(); ++i) {
    const std::size_t row = flight.plan.guided[i].row;
    RowResult& result = flight.result.rows[row];
    if (!flight.mask_errors[i].empty()) result.error = flight.mask_errors[i];
    if (result.error.empty()) host_.add_drawn(flight.batch->rows[row], {result.tokens.begin(), result.tokens.end()});
  }
}

void CudaStepExecutor::read_logprobs(Flight& flight) {
  const auto* logprobs = reinterpret_cast<const DrawnLogprobs*>(flight.logprobs.data());
  for (std::size_t i = 0; i < flight.batch->rows.size(); ++i) {
    const StepRow& row = flight.batch->rows[i];
    RowResult& result = flight.result.rows[i];
    if (!row.sample || !result.error.empty() || !host_.reports_logprobs(row)) continue;
    const RowLogits& at = flight.plan.rows[i];
    const DrawnLogprobs* drawn = logprobs + at.first + at.num_rows - 1 - row.num_drafts;
    for (const std::int32_t token : result.tokens) {
      RowLogprobs& out = outputs_of(result, vocab_size_).logprobs.emplace_back();
      out.chosen = {token, drawn->logprob};
      out.rank = drawn->rank;
      for (int k = 0; k < kMaxTopLogprobs && drawn->tokens[k] >= 0; ++k) {
        out.top.push_back({drawn->tokens[k], drawn->logprobs[k]});
      }
      ++drawn;
    }
  }
}

}  // namespace tl::cuda
