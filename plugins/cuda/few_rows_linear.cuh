// few_rows_linear<kIn, kNorm>(x, norm_weight, epsilon, rows, op): a kernel for one product of at most 16 rows;
// cuda/few_rows.cuh describes the Op. With TL_SPLITS > 1, the blocks of a cluster split the depth (split-K).
#pragma once

#if TL_SPLITS > 1
#include "cuda/split_k_linear.cuh"
#else
#include "cuda/gemv_linear.cuh"
#endif

#if TL_SPLITS > 1
#define TL_FEW_ROWS_CLUSTER TL_CLUSTER_DIMS(TL_SPLITS)
#else
#define TL_FEW_ROWS_CLUSTER
#endif
