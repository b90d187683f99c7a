// Truncates the distribution of a draw: which tokens stay under the sampling parameters, in the order of
// request_fields/draws.py. The sets of top_k, top_p and min_p are those of transformers' TopKLogitsWarper,
// TopPLogitsWarper and MinPLogitsWarper, with sums in float64 instead of float32.
//
// Ties. top_k keeps every token that ties with the k-th. top_p keeps the smallest set of most likely tokens whose mass
// reaches top_p, at least one; of tokens that tie at its border, those of lower id stay (in transformers the
// same number stay, but its sort does not define which). min_p is a threshold, so ties need no rule.
#pragma once

#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_scan.h"
#include "sampling/sampling_params.h"

namespace tl {

// Whether all tokens of a vocabulary stay.
bool keeps_all(const SamplingNumbers& numbers, int vocab_size);

// Fills `out` with the tokens that stay. `scan` has a finite maximum, temperature is above 0, and not all are kept.
// Reads the vocabulary once or twice if the nucleus has a few hundred tokens, as is common. Expected O(vocabulary) in
// all cases: only fewer than 64 tokens around a border are sorted.
void truncate(const RowScan& scan, const SamplingNumbers& numbers, Candidates& out);

// Keeps the nucleus of `out` with the mass top_p * total_weight. top_p < 1.
void keep_nucleus(Candidates& out, double total_weight, float top_p);

}  // namespace tl
