// The numbers that cut a draw, in the order of request_fields/draws.py: which tokens stay. The sets of top_k, top_p and
// min_p are those of transformers' TopKLogitsWarper, TopPLogitsWarper and MinPLogitsWarper, with sums in float64
// instead of float32.
//
// Ties. top_k keeps every token that ties with the k-th. top_p keeps the smallest set of most likely tokens whose mass
// reaches top_p, at least one; of tokens that tie at its border, those of lower id stay (transformers' sort leaves open
// which, but as many stay). min_p is a threshold and has no border.
#pragma once

#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_scan.h"
#include "sampling/sampling_params.h"

namespace tl {

// Whether all tokens of a vocabulary stay.
bool keeps_all(const SamplingNumbers& numbers, int vocab_size);

// Fills `out` with the tokens that stay. `scan` has a finite maximum, temperature is above 0, and not all are kept.
// O(vocabulary) once or twice in the common case of a nucleus of a few hundred tokens; expected O(vocabulary) always:
// nothing is sorted but fewer than 64 tokens around a border.
void truncate(const RowScan& scan, const SamplingNumbers& numbers, Candidates& out);

// Keeps the nucleus of `out` with the mass top_p * total_weight. top_p < 1.
void keep_nucleus(Candidates& out, double total_weight, float top_p);

}  // namespace tl
