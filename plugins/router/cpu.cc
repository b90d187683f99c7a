// Router on a CPU: scores in float32, summed in order of in_features; then the largest are taken one by one, and the
// experts that all rows share are added.
#include <string.h>

#include <limits>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "groups.h"
#include "host/thread_pool.h"
#include "router_schema.h"
#include "tally.cuh"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kExpertsPerTask = 4 * kLanes;

// Scores of up to kExpertsPerTask columns of the weight from `first` on, the first `experts` of which have a `bias`.
void score(const float* x, const float* weight, const float* bias, std::int64_t depth, std::int64_t columns,
           std::int64_t experts, std::int64_t first, float* to) {
  for (std::int64_t e = first; e < min(first + kExpertsPerTask, columns); e += kLanes) {
    const std::int64_t count = columns - e;
    Vec sum = bias && e < experts ? load_first(bias + e, experts - e) : zero();
    if (count >= kLanes) {
      for (std::int64_t k = 0; k < depth; ++k) sum = fma(broadcast(x[k]), load(weight + k * columns + e), sum);
      store(to + e, sum);
    } else {
      for (std::int64_t k = 0; k < depth; ++k) {
        sum = fma(broadcast(x[k]), load_first(weight + k * columns + e, count), sum);
      }
      store_first(to + e, sum, count);
    }
  }
}

float sum_of(const float* values, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

void softmax(float* values, std::int64_t count) {
  float largest = values[0];
  for (std::int64_t i = 1; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store_first(values + i, exp(load_first(values + i, count - i) - broadcast(largest)), count - i);
  }
  const float sum = sum_of(values, count);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= sum;
}

void sigmoid(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec power = exp(zero() - load_first(values + i, count - i));
    store_first(values + i, broadcast(1.0f) / (broadcast(1.0f) + power), count - i);
  }
}

// Takes the largest value that is not taken yet, and returns its index. NaN is greater than no value but can be taken,
// so that there is always a result.
std::int64_t take_largest(const float* values, std::int64_t count, char* taken) {
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  taken[best] = 1;
  return best;
}

constexpr std::int64_t kMaxExperts = 65536;

// One row's choice, in a thread's scratch memory.
struct Choice {
  float by[kMaxExperts];  // values by which experts are chosen
  float totals[router::kMaxGroups];
  char taken[kMaxExperts], kept[router::kMaxGroups];
};
static_assert(sizeof(Choice) <= kScratchBytesPerThread);

// Marks the experts of all groups but the top ones as taken.
void leave_groups_out(Choice* choice, std::int64_t experts, const router::Attributes& attributes) {
  const std::int64_t size = experts / attributes.num_groups;
  for (std::int64_t group = 0; group < attributes.num_groups; ++group) {
    const float* own = choice->by + group * size;
    char* taken = choice->taken + group * size;
    float total = 0.0f;
    for (std::int64_t i = 0; i < attributes.num_best; ++i) total += own[take_largest(own, size, taken)];
    choice->totals[group] = total;
    memset(taken, 1, static_cast<std::size_t>(size));
  }
  memset(choice->kept, 0, static_cast<std::size_t>(attributes.num_groups));
  for (std::int64_t i = 0; i < attributes.top_groups; ++i) {
    const std::int64_t group = take_largest(choice->totals, attributes.num_groups, choice->kept);
    memset(choice->taken + group * size, 0, static_cast<std::size_t>(size));
  }
}

void choose(const float* scores, const float* correction, std::int64_t experts, const router::Attributes& attributes,
            Choice* choice, std::int32_t* ids, float* shares) {
  for (std::int64_t e = 0; e < experts; ++e) choice->by[e] = scores[e] + (correction ? correction[e] : 0.0f);
  memset(choice->taken, 0, static_cast<std::size_t>(experts));
  if (attributes.num_groups > 1) leave_groups_out(choice, experts, attributes);
  for (std::int64_t slot = 0; slot < attributes.top_k; ++slot) {
    const std::int64_t best = take_largest(choice->by, experts, choice->taken);
    ids[slot] = static_cast<std::int32_t>(best);
    shares[slot] = scores[best];
  }
}

void apply(router::Scoring scoring, float* scores, std::int64_t count) {
  const bool is_sigmoid = scoring == router::Scoring::kSigmoid || scoring == router::Scoring::kNormalizedSigmoid ||
                          scoring == router::Scoring::kSigmoidOfChosen;
  is_sigmoid ? sigmoid(scores, count) : softmax(scores, count);
}

// Whether experts are chosen by their scores, to which functions are applied later.
bool chooses_by_scores(router::Scoring scoring) {
  return scoring == router::Scoring::kSoftmaxOfChosen || scoring == router::Scoring::kSigmoidOfChosen ||
         scoring == router::Scoring::kSparseMixer;
}

// Replaces the scores in `shares` by SparseMixer's shares: those of a softmax over the experts that are not chosen
// before and not far from the chosen one.
void mix(const float* scores, std::int64_t experts, const router::Attributes& attributes, Choice* choice,
         const std::int32_t* ids, float* shares) {
  const auto threshold = static_cast<float>(attributes.threshold);
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  memset(choice->taken, 0, static_cast<std::size_t>(experts));
  for (std::int64_t slot = 0; slot < attributes.top_k; ++slot) {
    const float best = shares[slot];
    for (std::int64_t e = 0; e < experts; ++e) {
      const float size = scores[e] < 0.0f ? -scores[e] : scores[e];
      const bool is_far = best - scores[e] > threshold * (size > best ? size : best);
      choice->by[e] = is_far || choice->taken[e] ? kNothing : scores[e];
    }
    softmax(choice->by, experts);
    shares[slot] = choice->by[ids[slot]];
    choice->taken[ids[slot]] = 1;
  }
}

// Turns the row's chosen scores into shares, if experts are chosen by their scores.
void share_of_chosen(const float* scores, std::int64_t experts, const router::Attributes& attributes, Choice* choice,
                     const std::int32_t* ids, float* shares) {
  if (attributes.scoring == router::Scoring::kSparseMixer) {
    mix(scores, experts, attributes, choice, ids, shares);
  } else if (chooses_by_scores(attributes.scoring)) {
    apply(attributes.scoring, shares, attributes.top_k);
  }
}

// The sum by which the chosen scores are divided.
float divisor(router::Scoring scoring, const float* shares, std::int64_t count) {
  if (scoring == router::Scoring::kNormalizedSoftmax) return sum_of(shares, count);
  return scoring == router::Scoring::kNormalizedSigmoid ? sum_of(shares, count) + 1e-20f : 1.0f;
}

// Gives a row its shared experts, whose numbers begin with `first`. `gate`: its score in the column of these, or null.
void add_shared(std::int64_t first, std::int64_t count, const float* gate, std::int32_t* ids, float* shares) {
  float share = gate ? *gate : 1.0f;
  if (gate) sigmoid(&share, 1);
  for (std::int64_t i = 0; i < count; ++i) {
    ids[i] = static_cast<std::int32_t>(first + i);
    shares[i] = share;
  }
}

// Atomic, because other threads read the counts at any time.
void add(std::int64_t* count, std::int64_t more) { __atomic_fetch_add(count, more, __ATOMIC_RELAXED); }

// Adds the rows' choices to the rank's tally; `counts` has room for one number per expert.
void count_choices(const Tensor& ids, std::int64_t experts, std::int64_t local, std::int64_t run, std::int64_t* tally,
                   std::uint32_t* counts) {
  memset(counts, 0, static_cast<std::size_t>(experts) * sizeof *counts);
  const auto* chosen = ids.as<const std::int32_t>();
  for (std::int64_t i = 0; i < ids.shape[0] * ids.shape[1]; ++i) ++counts[chosen[i]];
  std::int64_t busiest = 0, read = 0;
  for (std::int64_t first = 0; first < experts; first += local) {
    std::int64_t total = 0;
    for (std::int64_t e = first; e < min(first + local, experts); ++e) total += counts[e];
    busiest = total > busiest ? total : busiest;
  }
  for (std::int64_t i = 0, e = run * local; i < local && e < experts; ++i, ++e) {
    add(tally + i, counts[e]);
    read += counts[e] > 0;
  }
  add(tally + local + kExpertsRead, read);
  add(tally + local + kSteps, 1);
  add(tally + local + kBusiestChoices, busiest);
}

}  // namespace

void router(const KernelArgs& args) {
  const Tensor& x = args.inputs[router::kX];
  const Tensor& ids = args.outputs[router::kIds];
  const auto attributes = router::attributes_of(args);
  const auto scoring = attributes.scoring;
  const std::int64_t top_k = attributes.top_k, chosen_by_row = top_k + attributes.num_shared;
  const auto* weight = args.inputs[router::kWeight].as<const float>();
  const auto* bias = args.inputs[router::kBias].as<const float>();
  const auto* correction = args.inputs[router::kCorrection].as<const float>();
  const auto* factors = args.inputs[router::kFactors].as<const float>();
  auto* scores = args.outputs[router::kScores].as<float>();
  auto* shares = args.outputs[router::kShares].as<float>();
  const std::int64_t rows = x.shape[0], depth = x.shape[1];
  if (rows == 0) return;  // without rows there is no step to count
  const std::int64_t columns = args.inputs[router::kWeight].shape[1], parts = ceil_div(columns, kExpertsPerTask);
  const std::int64_t experts = columns - attributes.shared_gate;  // among which rows choose
  args.pool->parallel_for(rows * parts, [&](std::int64_t task, int) {
    const std::int64_t row = task / parts, first = task % parts * kExpertsPerTask;
    const float* own = x.as<const float>() + row * depth;
    score(own, weight, bias, depth, columns, experts, first, scores + row * columns);
  });
  args.pool->parallel_for(rows, [&](std::int64_t row, int thread) {
    float *own = scores + row * columns, *chosen = shares + row * chosen_by_row;
    std::int32_t* to = ids.as<std::int32_t>() + row * chosen_by_row;
    auto* choice = static_cast<Choice*>(args.pool->scratch(thread));
    if (!chooses_by_scores(scoring)) apply(scoring, own, experts);
    choose(own, correction, experts, attributes, choice, to, chosen);
    share_of_chosen(own, experts, attributes, choice, to, chosen);
    const float total = divisor(scoring, chosen, top_k);
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      chosen[slot] = chosen[slot] / total * static_cast<float>(attributes.scale) * (factors ? factors[to[slot]] : 1.0f);
    }
    const float* gate = attributes.shared_gate ? own + experts : nullptr;
    add_shared(experts, attributes.num_shared, gate, to + top_k, chosen + top_k);
  });
  count_choices(ids, experts + attributes.num_shared, attributes.local_experts, args.rank / attributes.moe_tp_size,
                args.outputs[router::kTally].as<std::int64_t>(), static_cast<std::uint32_t*>(args.pool->scratch(0)));
}

}  // namespace tl::TL_ISA
