// A RowSampler when memory is short: requests that ask for too much fail, and the others' results do not change. Run by
// test_row_sampler.py. Exits with 1 and a line on a wrong result.
#include <cstdio>
#include <cstdlib>
#include <new>

#include "sampling/row_sampler.h"

static std::size_t largest = SIZE_MAX;

void* operator new(std::size_t size) {
  if (size > largest) throw std::bad_alloc();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr int kVocab = 100, kPrompt = 200;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

std::shared_ptr<tl::RequestParams> params(bool context_logits, bool prompt_logprobs) {
  auto params = std::make_shared<tl::RequestParams>();
  params->sampling.temperature = 0;
  params->context_logits = context_logits;
  if (prompt_logprobs) params->sampling.prompt_logprobs = 1;
  return params;
}

}  // namespace

int main() {
  tl::RowSampler rows(3, kVocab);
  const std::vector<std::int32_t> prompt(kPrompt, 1);
  rows.set_slot(0, params(true, false), prompt, kPrompt);
  rows.set_slot(1, params(false, true), prompt, kPrompt);
  rows.set_slot(2, params(false, false), prompt, kPrompt);
  tl::StepBatch batch;
  std::vector<tl::RowLogits> at;
  std::int64_t num_logits = 0;
  for (int slot = 0; slot < 3; ++slot) {
    batch.rows.push_back({.slot = slot, .request_slot = slot, .num_tokens = kPrompt, .sample = true});
    at.push_back(rows.logits_of(batch.rows.back()));
    at.back().first = num_logits;
    num_logits += at.back().num_rows;
  }
  std::vector<float> logits(static_cast<std::size_t>(num_logits * kVocab), 0.0f);
  for (std::size_t i = 7; i < logits.size(); i += kVocab) logits[i] = 1;
  tl::SamplerWorkspace workspace;
  std::vector<tl::RowResult> results(3), again(3);
  largest = 4000;  // a row of logits takes less, and the outputs of a prompt take more
  for (std::size_t i = 0; i < 3; ++i) rows.finish_row(batch, at, i, logits, nullptr, workspace, results[i]);
  for (const std::size_t i : {0, 1}) {
    check(results[i].error.find("expected enough host memory") == 0, "too little memory is an error");
    check(results[i].outputs == nullptr && results[i].tokens.empty(), "an error comes without results");
  }
  check(results[2].error.empty() && results[2].tokens.back() == 7, "the other request is unaffected");
  largest = SIZE_MAX;
  for (std::size_t i = 0; i < 2; ++i) rows.finish_row(batch, at, i, logits, nullptr, workspace, again[i]);
  check(static_cast<tl::RequestOutputs&>(*again[0].outputs).context_logits.num_rows == kPrompt, "logits of all tokens");
  check(static_cast<tl::RequestOutputs&>(*again[1].outputs).prompt_logprobs.size() == kPrompt - 1,
        "logprobs of all but the first");
}
