#include "cuda/step/slot_records.h"

#include <algorithm>
#include <cstring>

namespace tl::cuda {
namespace {

static_assert(kMaxTopLogprobs == SamplingLimits::kMaxLogprobs);

bool has_long_bad_words(const SamplingParams& sampling) {
  return std::ranges::any_of(sampling.bad_words, [](const auto& word) { return word.size() > 1; });
}

LogitEdit& edit_of(std::vector<LogitEdit>& edits, TokenId token) {
  return edits.emplace_back(LogitEdit{static_cast<unsigned>(token), LogitEdit::kNotSeen, 0, 0});
}

// Merges a request's logit edits, so that each token has at most one.
void merge(std::vector<LogitEdit>& edits) {
  const auto token = [](const LogitEdit& edit) { return edit.token & LogitEdit::kTokenMask; };
  std::ranges::sort(edits, {}, token);
  std::size_t last = 0;
  for (std::size_t i = 1; i < edits.size(); ++i) {
    if (token(edits[i]) != token(edits[last])) {
      edits[++last] = edits[i];
      continue;
    }
    edits[last].token |= edits[i].token;
    edits[last].num_generated = std::max(edits[last].num_generated, edits[i].num_generated);
    edits[last].bias += edits[i].bias;
  }
  edits.resize(std::min(edits.size(), last + 1));
}

std::vector<LogitEdit> edits_of(const SamplingParams& sampling, const SlotState& sequence) {
  std::vector<LogitEdit> edits;
  if (sequence.counts() != nullptr) {
    for (const auto& [token, num_generated] : sequence.counts()->entries()) {
      edit_of(edits, token).num_generated = num_generated;
    }
  }
  for (const auto& [token, bias] : sampling.logit_bias) edit_of(edits, token).bias = bias;
  for (const auto& word : sampling.bad_words) edit_of(edits, word.back()).token |= LogitEdit::kBanned;
  if (sequence.suppresses_stops()) {
    for (const TokenId token : ending_tokens(sampling)) edit_of(edits, token).token |= LogitEdit::kStop;
  }
  merge(edits);
  return edits;
}

std::size_t words_of_slot(const CudaExecutor& executor) {
  const Plan& plan = executor.plan();
  return static_cast<std::size_t>(output_of(plan, "sampling_slots").shape[1].value);
}

}  // namespace

SlotRecords::SlotRecords(const CudaExecutor& executor)
    : executor_(executor),
      record_bytes_(words_of_slot(executor) * sizeof(std::int32_t)),
      max_edits_((record_bytes_ - sizeof(SamplingSlot)) / sizeof(LogitEdit)),
      is_greedy_(static_cast<std::size_t>(executor.num_slots())),
      records_(static_cast<std::size_t>(executor.num_slots())) {}

bool SlotRecords::set(int slot, const RequestParams& params, const SlotState& sequence) {
  const SamplingParams& sampling = params.sampling;
  if (sampling.allowed_token_ids || has_long_bad_words(sampling)) return false;
  const std::vector<LogitEdit> edits = edits_of(sampling, sequence);
  // Each token still to be generated may need an edit of its own, if it has not been counted yet.
  const int num_left = sequence.counts() != nullptr ? std::max(sampling.max_tokens - sequence.num_generated(), 0) : 0;
  const auto vocab_size = static_cast<std::size_t>(executor_.engine().manifest().model.vocab_size);
  if (std::min(edits.size() + static_cast<std::size_t>(num_left), vocab_size) > max_edits_) return false;
  const bool is_greedy = sampling.temperature == 0.0f && !sampling.logprobs && edits.empty() && !sequence.counts();
  is_greedy_[static_cast<std::size_t>(slot)] = is_greedy ? 1 : 0;
  SamplingSlot header{};
  static_cast<SamplingNumbers&>(header) = sampling;
  header.seed_low = static_cast<unsigned>(sampling.seed);
  header.seed_high = static_cast<unsigned>(sampling.seed >> 32);
  header.sequence_index = params.sequence_index;
  header.num_edits = static_cast<int>(edits.size());
  header.min_tokens = sampling.min_tokens;
  header.num_logprobs = sampling.logprobs ? 1 + *sampling.logprobs : 0;
  header.counts_tokens = sequence.counts() != nullptr ? 1 : 0;
  int num_stops = 0;
  for (const TokenId token : ending_tokens(sampling)) {
    if (num_stops < kMaxStops) header.stops[num_stops++] = ~token;
  }
  std::vector<std::byte>& record = records_[static_cast<std::size_t>(slot)];
  const std::span<const std::byte> head = std::as_bytes(std::span(&header, 1)), tail = std::as_bytes(std::span(edits));
  record.assign(head.begin(), head.end());
  record.insert(record.end(), tail.begin(), tail.end());
  pending_.push_back(slot);
  return true;
}

void SlotRecords::enqueue(const PinnedBuffer& staging) {
  for (auto first = pending_.begin(); first != pending_.end();) {
    const std::size_t num_bytes = record(*first).size();
    auto last = first;
    for (; last != pending_.end() && *last - *first == last - first && record(*last).size() == num_bytes; ++last) {
      std::ranges::copy(record(*last), staging.data() + static_cast<std::size_t>(*last) * record_bytes_);
    }
    copy_run(*first, last - first, staging);
    first = last;
  }
  pending_.clear();
}

// Copies the records of `count` neighbouring slots with one call; all are as long as the first. A draft model has new
// records for all its sequences in every round.
void SlotRecords::copy_run(int slot, std::ptrdiff_t count, const PinnedBuffer& staging) const {
  const std::size_t place = static_cast<std::size_t>(slot) * record_bytes_, height = static_cast<std::size_t>(count);
  const char* const what = "copying sampling parameters";
  const DevicePtr to = executor_.sampling_slots() + place;
  if (count == 1) {
    driver().check(driver().copy_to_device(to, staging.data() + place, record(slot).size(), executor_.stream()), what);
    return;
  }
  const Copy3d copy{
      .from = {.memory_type = kHostMemory, .host = staging.data() + place, .pitch = record_bytes_, .height = height},
      .to = {.memory_type = kDeviceMemory, .device = to, .pitch = record_bytes_, .height = height},
      .width = record(slot).size(),
      .height = height,
      .depth = 1};
  driver().check(driver().copy_slices(&copy, executor_.stream()), what);
}

}  // namespace tl::cuda
