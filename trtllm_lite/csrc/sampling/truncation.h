// top_k, top_p and min_p: which tokens stay in the draw. The sets are those of transformers' TopKLogitsWarper,
// TopPLogitsWarper and MinPLogitsWarper in this order, with sums in float64 instead of float32.
//
// Ties. top_k keeps every token that ties with the k-th. top_p keeps the smallest set of most likely tokens whose mass
// reaches top_p, at least one; of tokens that tie at its border, those of lower id stay (transformers' sort leaves open
// which, but as many stay). min_p is a threshold and has no border.
#pragma once

#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_scan.h"

namespace tl {

struct Truncation {
  int top_k = 0;       // 0 = off
  float top_p = 1.0f;  // 1 = off
  float min_p = 0.0f;  // 0 = off

  bool is_off(int vocab_size) const { return (top_k == 0 || top_k >= vocab_size) && top_p >= 1.0f && min_p <= 0.0f; }
};

// Fills `out` with the tokens that stay. `scan` has a finite maximum and truncation is not off. O(vocabulary) once or
// twice in the common case of a nucleus of a few hundred tokens; expected O(vocabulary) always: nothing is sorted but
// fewer than 64 tokens around a border.
void truncate(const RowScan& scan, float temperature, const Truncation& truncation, Candidates& out);

// Keeps the nucleus of `out` with the mass top_p * total_weight. top_p < 1.
void keep_nucleus(Candidates& out, double total_weight, float top_p);

}  // namespace tl
