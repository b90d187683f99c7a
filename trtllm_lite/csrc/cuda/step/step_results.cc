// The part of CudaStepExecutor that reads the results of a step.
#include "cuda/step/cuda_step_executor.h"
#include "sample/slot.cuh"

namespace tl::cuda {
namespace {

constexpr const char* kNotSampled =
    "the logits hold NaN or +infinity, or no finite value: the model's weights or its input are damaged";
constexpr const char* kNothingAllowed =
    "at least one token must be possible, but the request's constraints (bad_words, min_tokens, guided_decoding) ban "
    "all, or the logits hold NaN or +infinity; relax the constraints, or check the weights";

// Clears the result but keeps its memory.
void clear(RowResult& result) {
  result.tokens.clear();
  result.moves.clear();
  result.outputs.reset();
  result.error.clear();
  result.is_late = false;
}

}  // namespace

double CudaStepExecutor::seconds_between(const OwnedEvent& first, const OwnedEvent& last) {
  constexpr double kSecondsPerMillisecond = 1e-3;
  float milliseconds = 0;
  driver().check(driver().event_elapsed(&milliseconds, first.get(), last.get()), "timing a step");
  return milliseconds * kSecondsPerMillisecond;
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

// Continues the texts of guided rows. A late row has drawn no token.
void CudaStepExecutor::read_guided(Flight& flight) {
  for (const GuidedRow& guided : flight.plan.guided) {
    RowResult& result = flight.result.rows[guided.row];
    if (guided.is_late) {
      clear(result);
      result.is_late = true;
      continue;
    }
    if (!guided.error.empty()) result.error = guided.error;
    if (!result.error.empty()) continue;
    const std::int32_t slot = flight.batch->rows[guided.row].request_slot;
    host_.rows().text(slot)->add_drawn({result.tokens.begin(), result.tokens.end()});
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
