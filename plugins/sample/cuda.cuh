// Sample: tokens[r] is drawn from logits[r] with the parameters of slot sample_slots[r]. The token also goes to
// last_tokens of that slot, where the next step's embedding finds it; if it ends the sequence, its complement does, and
// the next step skips attention for the sequence (cache_slots/cuda.cuh).
//
// The sequence's edits (sample/edits.cuh) are applied first. With temperature 0 the token has the largest logit, and
// the lowest id among equals; a sample_counter of -1 asks for that without reading the slot's record, which would come
// late. Otherwise softmax(logits / temperature) is truncated in the order of request_fields/draws.py, and the token is
// drawn by inverse transform in order of id with one Philox number: the token that csrc/sampling/sampler.h draws,
// except for rounding. A row may have a mask, which is applied after the edits: only tokens that it allows are drawn.
// The kernel restores the logits at its end. If the slot asks for log-probabilities, logprobs[r] has those of the
// token.
//
// A sequence with drafts has a row for each draft after its own row, with kDraftRow in place of a slot.
// sample_drafts[r] is the draft that follows row r. It is accepted if it was drawn from row r; only then row r + 1 is
// drawn from, by the same blocks, so that edits know the tokens before. After a rejected draft, the sequence's further
// rows leave tokens[] as it is. From sm_90 on, the largest logits of all rows of a sequence are found at the same time,
// and the blocks of the row that is done last draw.
//
// A row that holds NaN or plus infinity, has nothing finite that may be drawn, or overflows when divided by its
// temperature gives -1 and leaves last_tokens alone; so does a row with a negative slot.
//
// Bytes: 4 * vocab a row. FLOPs: a comparison per logit if greedy. Floor: bytes / bandwidth, latency below 10 MB (about
// 4 us). From sm_90 on, a cluster of TL_CLUSTER blocks handles a row: a pass for the largest logit and, unless greedy,
// another to draw and about six more, mostly cheap, to find a border. Below sm_90, several blocks share the first pass,
// and the last to arrive does the rest, and the sequence's draft rows. Edits, or a mask, cost another pass for the
// largest logit, log-probabilities three more. Of a mask only the words of tokens that are likely enough are read.
//
// Launch: grid (blocks, rows), 512 threads, TL_SHARED_BYTES (65536) of dynamic shared memory; from sm_90 on, blocks is
// a multiple of TL_CLUSTER, of which TL_CLUSTER work. `winners` has room for a u64 per row or, below sm_90, rows *
// blocks; `arrivals` has a zero per row, which the kernel restores. `slots` holds records of a SamplingSlot and
// `max_edits` edits, `masks` rows of a bit for each token, padded to words. Macros: TL_VOCAB, TL_CLUSTER,
// TL_SHARED_BYTES.
#include "sample/border.cuh"
#include "sample/edits.cuh"
#include "sample/logprobs.cuh"
#include "sample/philox.cuh"
#include "sample/sigma.cuh"

namespace tl {

static_assert(TL_SHARED_BYTES >= kBinBytes, "TL_SHARED_BYTES is too small");

struct SamplingInputs {  // one entry a row
  const int* sample_slots;
  const int*
      sample_counter;        // tokens that the sequence has generated before, or kGreedy (draft rows: of its first row)
  const int* sample_drafts;  // the draft that the next row is for, or kNoDraft
  const int* sample_masks;   // the row of the masks, or kNoMask
};

constexpr int kMaskWords = (TL_VOCAB + 31) / 32;

__device__ __forceinline__ const u32* mask_of(const u32* masks, int number) {
  return number == kNoMask ? nullptr : masks + static_cast<u64>(number) * kMaskWords;
}

__device__ __forceinline__ SamplingSlot* slot_of(char* slots, int max_edits, int number) {
  return reinterpret_cast<SamplingSlot*>(slots + number * (sizeof(SamplingSlot) + max_edits * sizeof(LogitEdit)));
}

__device__ __forceinline__ Sequence sequence_in(SamplingSlot* slot, int max_edits, int num_generated, const u32* mask) {
  return {slot, reinterpret_cast<LogitEdit*>(slot + 1), slot->num_edits, num_generated, max_edits, mask};
}

__device__ __forceinline__ int draw(const Row& row, float largest, const SamplingSlot& slot, int num_generated,
                                    u64* columns) {
  Border border = {sort_bits(row.max_scaled - kNegligible)};
  if (slot.top_n_sigma > 0.0f) {
    const u32 least = within_sigma(row, largest, slot.top_n_sigma);
    if (least > border.key) border.key = least;
  }
  if (slot.top_k > 0 && slot.top_k < TL_VOCAB) border = narrow(row, border, slot.top_k, 1.0f, columns);
  if (slot.top_p < 1.0f) border = narrow(row, border, 0, slot.top_p, columns);
  const double uniform = token_uniform(slot.seed_low, slot.seed_high, num_generated, slot.sequence_index);
  const float skip = row.surely_below(border);
  return find_by_sum(
      row.logits,
      [&](int id, float logit) -> u64 {
        return logit >= skip && row.allows(id) ? row.weight_within(border, id, logit) : 0;
      },
      [&](u64 total) {
        const u64 target = static_cast<u64>(uniform * static_cast<double>(total));
        return target < total ? target : total - 1;
      });
}

// The token of the largest logit, which has the key `best`; -1 if the row cannot be sampled.
__device__ __forceinline__ int largest(u64 best) {
  return best == kUnusable || isinf(logit_of(best)) ? -1 : id_of(best);
}

// The token of a row whose largest logit has the key `best`; -1 if none can be drawn.
__device__ __forceinline__ int choose(u64 best, const float* logits, const Sequence& sequence, u64* columns) {
  const float temperature = sequence.slot->temperature;
  const int likeliest = largest(best);
  if (likeliest < 0 || temperature == 0.0f) return likeliest;
  const Row row{logits, sequence.mask, temperature, logit_of(best) / temperature, sequence.slot->min_p};
  return isinf(row.max_scaled) ? -1 : draw(row, logit_of(best), *sequence.slot, sequence.num_generated, columns);
}

// Rows of a sequence: its own, and those of its drafts.
struct SequenceRows {
  int first, count;
};

// The rows of the sequence to which row r belongs. Without clusters, the blocks of its first row take all rows.
__device__ __forceinline__ SequenceRows rows_of(const int* sample_slots, int r) {
  if (!TL_HAS_CLUSTERS) return {r, 1};
  int first = r, end = r + 1;
  while (first > 0 && sample_slots[first] == kDraftRow) --first;
  while (end < static_cast<int>(gridDim.y) && sample_slots[end] == kDraftRow) ++end;
  return {first, end - first};
}

// Puts the best key of row blockIdx.y into `winners`. Returns, in all threads of its cluster, whether all other rows of
// the sequence have theirs there.
__device__ __forceinline__ bool arrives_last(u64 best, const SequenceRows& rows, u64* winners, u32* arrivals) {
  __shared__ u32 others;  // the number of rows that arrived before
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    winners[blockIdx.y] = best;
    __threadfence();
    others = atomicAdd(arrivals + rows.first, 1);
    if (static_cast<int>(others) == rows.count - 1) arrivals[rows.first] = 0;
    __threadfence();
  }
  cluster_sync();
  const bool is_last = static_cast<int>(load_of_block(&others, 0)) == rows.count - 1;
  cluster_sync();
  return is_last;
}

__device__ __forceinline__ u64 best_allowed(const float* logits, const u32* mask) {
  return row_max(best_allowed_key(logits, mask, cluster_rank() * kThreads + threadIdx.x, kBlocks * kThreads));
}

// Chooses a token as choose() does, after the sequence's edits and under its mask.
__device__ __forceinline__ int choose_edited(u64 best, float* logits, const Sequence& sequence, u64* columns) {
  const bool edited = sequence.num_edits > 0 && best != kUnusable;
  if (edited) change_row(sequence, logits);
  if (edited || (sequence.mask != nullptr && best != kUnusable)) best = best_allowed(logits, sequence.mask);
  const int token = choose(best, logits, sequence, columns);
  if (edited) mend_row(sequence, logits);
  return token;
}

// The token of the largest logit that a mask allows, of a row whose largest has the key `best`; -1 if there is none.
__device__ __forceinline__ int largest_allowed(u64 best, const float* logits, const u32* mask) {
  return largest(mask == nullptr || best == kUnusable ? best : best_allowed(logits, mask));
}

// Draws the token of a row whose largest logit has the key `best`, and describes it in `logprobs` if the sequence asks
// for that. Returns the token, or -1.
__device__ __forceinline__ int sample_row(u64 best, float* logits, const Sequence& sequence, u64* columns,
                                          DrawnLogprobs& logprobs) {
  const int token = choose_edited(best, logits, sequence, columns);
  if (token < 0) return token;
  const int num_logprobs = sequence.slot->num_logprobs;
  if (num_logprobs > 0) describe(logits, logit_of(best), token, num_logprobs - 1, logprobs);
  if (sequence.slot->counts_tokens != 0 && cluster_rank() == 0) count_token(sequence, token);
  return token;
}

}  // namespace tl

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kBlocks) __launch_bounds__(tl::kThreads, 2)
    sample(int* tokens, float* logits, tl::u64* winners, tl::u32* arrivals, int* last_tokens, char* slots,
           tl::DrawnLogprobs* logprobs, const tl::u32* masks, int max_edits,
           const __grid_constant__ tl::SamplingInputs in) {
  using namespace tl;
  extern __shared__ __align__(16) u64 columns[];
  const SequenceRows rows = rows_of(in.sample_slots, blockIdx.y);
  int r = rows.first;
  const int number = in.sample_slots[r], blocks = TL_HAS_CLUSTERS ? kBlocks : gridDim.x;
  int counter = in.sample_counter[r], draft = in.sample_drafts[r], mask_number = in.sample_masks[r];
  SamplingSlot* slot = slot_of(slots, max_edits, number);
  const int stop = number >= 0 && threadIdx.x < kMaxStops ? slot->stops[threadIdx.x] : 0;  // only the host writes them
  wait_for_previous_kernel();
  allow_next_kernel();
  if (static_cast<int>(blockIdx.x) >= blocks || number == kDraftRow) return;
  const float* own = logits + static_cast<u64>(blockIdx.y) * TL_VOCAB;
  const u64 first = best_key(own, blockIdx.x * kThreads + threadIdx.x, blocks * kThreads);
  float* row = logits + static_cast<u64>(r) * TL_VOCAB;
#if TL_HAS_CLUSTERS
  u64 best = row_max(first);
  if (rows.count > 1) {
    if (!arrives_last(best, rows, winners, arrivals)) return;
    best = __ldcg(winners + r);
  }
#else
  u64 best = last_max(first, r, winners, arrivals);
  if (best == 0) return;
#endif
  while (true) {
    int token = -1;
    if (number >= 0) {
      const u32* mask = mask_of(masks, mask_number);
      token = counter == kGreedy
                  ? largest_allowed(best, row, mask)
                  : sample_row(best, row, sequence_in(slot, max_edits, counter, mask), columns, logprobs[r]);
    }
    if (threadIdx.x < 32 && cluster_rank() == 0) {
      const bool ends = __any_sync(0xffffffffu, stop == ~token);
      if (threadIdx.x == 0) tokens[r] = token;
      if (threadIdx.x == 0 && token >= 0) last_tokens[number] = ends ? ~token : token;
    }
    if (token < 0 || token != draft) return;
    draft = in.sample_drafts[++r];
    mask_number = in.sample_masks[r];
    row += TL_VOCAB;
    if (counter != kGreedy) ++counter;
    cluster_sync();  // the token is among the edits, for all blocks
#if TL_HAS_CLUSTERS
    best = __ldcg(winners + r);
#else
    best = row_max(best_key(row, threadIdx.x, kThreads));
#endif
  }
}
