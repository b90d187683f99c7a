// Log-probabilities of tokens: the log-softmax of the model's raw logits, before any processor, temperature or
// truncation. They are what transformers' log_softmax of the logits gives, whatever the request's sampling parameters.
#pragma once

#include <span>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_scan.h"

namespace tl {

struct TokenLogprob {
  TokenId token;
  float logprob;  // natural logarithm; -inf for a token the model itself masked
};

struct RowLogprobs {
  TokenLogprob chosen;
  int rank;                       // rank of the chosen token: 1 + the number of tokens with a larger logit
  std::vector<TokenLogprob> top;  // most likely first, ties by lower id
};

// log(sum(exp(logits))) of a scanned row with a finite maximum; sums in float64.
double log_sum_exp(const RowScan& scan);

// The chosen token's log-probability and those of the `num_top` most likely tokens (0 = none; at most the row's
// length). `out` keeps its memory.
void row_logprobs(const RowScan& scan, TokenId chosen, int num_top, Candidates& scratch, RowLogprobs& out);

}  // namespace tl
