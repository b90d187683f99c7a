// What a sequence does to its logits before a token is drawn, as in csrc/sampling/logit_processors.h: bias, repetition,
// presence and frequency penalties, then tokens that are banned. The row is changed in place, and restored after the
// draw.
#pragma once

#include "sample/row.cuh"
#include "sample/slot.cuh"

namespace tl {

struct Sequence {
  SamplingSlot* slot;
  LogitEdit* edits;
  int num_edits;      // at the start of this step
  int num_generated;  // before this step
  int max_edits;      // the number of edits that there is room for
  const u32* mask;    // a bit for each token, 1 if it may be drawn from this row; null: all may be
};

// The logit after an edit. Sums and products are rounded one by one, as on the host.
__device__ __forceinline__ float changed(const SamplingSlot& slot, const LogitEdit& edit, int num_generated,
                                         float logit) {
  const bool stops = (edit.token & LogitEdit::kStop) != 0 && num_generated < slot.min_tokens;
  if (stops || (edit.token & LogitEdit::kBanned) != 0) return __int_as_float(0xff800000);
  logit = __fadd_rn(logit, edit.bias);
  if (edit.num_generated == LogitEdit::kNotSeen) return logit;
  logit = logit < 0.0f ? __fmul_rn(logit, slot.repetition_penalty) : __fdiv_rn(logit, slot.repetition_penalty);
  if (edit.num_generated == 0) return logit;
  const float frequent = __fmul_rn(slot.frequency_penalty, static_cast<float>(edit.num_generated));
  return __fsub_rn(logit, __fadd_rn(slot.presence_penalty, frequent));
}

// Calls f(edit) for every edit that belongs to this thread of the cluster. An edit belongs to the same thread in every
// call.
template <class Visit>
__device__ __forceinline__ void visit_edits(const Sequence& sequence, const Visit& f) {
  for (int i = cluster_rank() * kThreads + threadIdx.x; i < sequence.num_edits; i += kBlocks * kThreads) {
    f(sequence.edits[i]);
  }
}

// Applies the edits to the row. All threads of the cluster see the changed row afterwards.
__device__ __forceinline__ void change_row(const Sequence& sequence, float* logits) {
  visit_edits(sequence, [&](LogitEdit& edit) {
    float* logit = logits + (edit.token & LogitEdit::kTokenMask);
    edit.raw = __ldcg(logit);
    *logit = changed(*sequence.slot, edit, sequence.num_generated, edit.raw);
  });
  cluster_sync();
}

// Restores the model's logits in the row. All threads of the cluster see them afterwards.
__device__ __forceinline__ void mend_row(const Sequence& sequence, float* logits) {
  cluster_sync();  // no thread reads the changed row any more
  visit_edits(sequence, [&](LogitEdit& edit) { logits[edit.token & LogitEdit::kTokenMask] = edit.raw; });
  cluster_sync();
}

// Counts a drawn token among the edits; one block does it.
__device__ __forceinline__ void count_token(const Sequence& sequence, int token) {
  __shared__ bool found;
  if (threadIdx.x == 0) found = false;
  __syncthreads();
  for (int i = threadIdx.x; i < sequence.num_edits; i += kThreads) {
    LogitEdit& edit = sequence.edits[i];
    if ((edit.token & LogitEdit::kTokenMask) != static_cast<unsigned>(token)) continue;
    edit.num_generated = max_of(edit.num_generated, 0) + 1;
    found = true;
  }
  __syncthreads();
  if (threadIdx.x > 0 || found || sequence.num_edits >= sequence.max_edits) return;
  sequence.edits[sequence.num_edits] = {static_cast<unsigned>(token), 1, 0.0f, 0.0f};
  sequence.slot->num_edits = sequence.num_edits + 1;
}

}  // namespace tl
