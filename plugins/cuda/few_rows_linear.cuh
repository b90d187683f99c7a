// few_rows_linear<kIn, kNorm>(x, norm_weight, epsilon, rows, op): a kernel of one product of at most 16 rows, for an Op
// as cuda/few_rows.cuh has it. With TL_SPLITS > 1 the blocks of a cluster share the depth of the rows.
#pragma once

#if TL_SPLITS > 1
#include "cuda/split_linear.cuh"
#else
#include "cuda/stream_linear.cuh"
#endif

#if TL_SPLITS > 1
#define TL_FEW_ROWS_CLUSTER TL_CLUSTER_DIMS(TL_SPLITS)
#else
#define TL_FEW_ROWS_CLUSTER
#endif
