// Computes chunks of tokens by tensor cores; see cuda/replay_rule.cuh.
//
// FLOPs of a token and head: about 6 * key_dim * value_dim, two or three times that on tensor cores. What bounds a long
// prompt is the latency of its chunks, which depend on each other through the matrix.
//
// Two warps have 16 columns of the matrix, half the rows each, as accumulators of tensor cores whose rows are the
// columns; so they are the left operand of the next product without being moved. The keys and queries of a chunk are
// the right operands, of 16 bits; norms and decays are applied to sums. Tokens behind the stored matrix have float32
// keys, which are the sum of three of 16 bits.
//
// A float32 left operand is multiplied in parts. Two of bfloat16 have 17 of its bits, where results keep 8: two
// products of m16n8k16 for 16 rows. Parts of float16, which has fewer exponents than float32, would need scales; so
// elements of float16, whose bits TF32 has, are multiplied by m16n8k8, the upper bits of the operand and then the rest:
// four products for 16 rows. If both operands are float32, that takes three products for 8 rows, because the one of
// both rests is left out.
//
// What does not depend on the matrix is prepared by warps of their own, each of which has a slot in shared memory and
// prepares every kChunkSlots-th chunk; so the updates of a chunk are a product, too. The other warps multiply.
#pragma once

#include "cuda/replay_chunk_slot.cuh"

namespace tl {

// A pair of successive elements of a float32 right operand, and what TF32 has of them.
struct Tf32Pair {
  u32 upper[2], rest[2];

  __device__ __forceinline__ explicit Tf32Pair(float2 elements) {
    const float given[2] = {elements.x, elements.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      upper[i] = __float_as_uint(given[i]) & kTf32Bits;
      rest[i] = __float_as_uint(given[i] - __uint_as_float(upper[i]));
    }
  }
};

// A float32 left operand of m16n8k8, which was the accumulators `sums`: its upper bits, which are TF32, and the rest.
struct Tf32Operand {
  static constexpr int kProducts = 3;  // with a float32 right operand

  u32 upper[4], rest[4];

  __device__ __forceinline__ explicit Tf32Operand(const float (&sums)[4]) {
    const float ordered[4] = {sums[0], sums[2], sums[1], sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upper[i] = __float_as_uint(ordered[i]) & kTf32Bits;
      rest[i] = __float_as_uint(ordered[i] - __uint_as_float(upper[i]));
    }
  }
  // Adds product number `product` of those with b, whose rows 2i and 2i + 1 follow each other, to c. Successive
  // products should have different sums: tensor cores take long for each.
  __device__ __forceinline__ void multiply(float (&c)[4], const Tf32Pair& b, int product) const {
    const u32(&right)[2] = product == 1 ? b.rest : b.upper;
    mma_tf32(c, product == 0 ? rest : upper, right[0], right[1]);
  }
};

// A float32 left operand for 16 rows of a right operand of 16 bits; it was the accumulators `low` and `high`.
#if TL_FP16
struct LeftOperand {
  static constexpr int kProducts = 4;

  Tf32Operand low, high;

  __device__ __forceinline__ LeftOperand(const float (&low)[4], const float (&high)[4]) : low(low), high(high) {}
  __device__ __forceinline__ void multiply(float (&c)[4], u32 b0, u32 b1, int product) const {
    const float2 b = unpack2(product % 2 == 0 ? b0 : b1);
    const Tf32Operand& left = product % 2 == 0 ? low : high;
    mma_tf32(c, product < 2 ? left.upper : left.rest, __float_as_uint(b.x), __float_as_uint(b.y));
  }
};
#else
struct LeftOperand {
  static constexpr int kProducts = 2;

  u32 parts[kProducts][4];

  __device__ __forceinline__ LeftOperand(const float (&low)[4], const float (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float (&sums)[4] = i < 2 ? low : high;
      float x = sums[i % 2 * 2], y = sums[i % 2 * 2 + 1];
#pragma unroll
      for (int part = 0; part < kProducts; ++part) {
        parts[part][i] = pack2(x, y);
        const float2 taken = unpack2(parts[part][i]);
        x -= taken.x, y -= taken.y;
      }
    }
  }
  // Adds product number `product` with b to c.
  __device__ __forceinline__ void multiply(float (&c)[4], u32 b0, u32 b1, int product) const {
    mma(c, parts[product], b0, b1);
  }
};
#endif

// What two warps with the same columns tell each other of a chunk, in turns of two.
struct FoundParts {
  float4 parts[2][kColumnWarps][3][32];
};

// A warp's part of the matrix: 16 columns and half the rows. A lane has columns lane / 4 and + 8, and of the tokens of
// a chunk 2 * (lane % 4) and + 1, and 8 more. Both warps compute the chunk's updates; each computes results of 8
// tokens.
template <typename Operands>
struct ChunkColumns {
  static constexpr int kTokenTiles = 2 / kHalves;  // of 8 tokens whose results the warp computes

  const Operands& from;
  const ReplayState& state;
  FoundParts& found_parts;
  int first_row, column, group, half, lane;  // `column`: the lane's first
  float tiles[kKeyTiles][4];

  __device__ __forceinline__ int first_key() const { return half * kKeyTiles * 8; }
  __device__ __forceinline__ int token_tile(int n) const { return half * kTokenTiles + n; }
  // Calls use(i, element) for each element that the lane has, number i of the matrix.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
    const u64 first = (first_key() + lane % 4 * 2) * TL_VALUE_DIM + column;  // others lie at constant distances
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) use(first + (tile * 8 + i % 2) * TL_VALUE_DIM + i / 2 * 8, tiles[tile][i]);
    }
  }
  __device__ __forceinline__ void load() {
    const bool stored = state.length > 0;
    for_each([&](u64 i, float& x) { x = stored ? state.element(i) : 0.0f; });
  }
  __device__ __forceinline__ void store() {
    for_each([&](u64 i, float& x) { state.store_element(i, x); });
  }
  // What keys and queries find in the warp's part of the matrix.
  __device__ __forceinline__ void find(const ChunkSlot& slot, float (&keys)[2][4], float (&queries)[2][4]) const {
    const int token = lane % 8 + lane / 16 * 8;
    LeftOperand next(tiles[0], tiles[1]);  // is made while products with the one before it are under way
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      const int at = first_key() + pair * 16 + lane / 8 % 2 * 8;
      u32 key[4], query[4];
      if constexpr (Operands::kCorrects) load_matrix_x4(key, shared_address(&slot.keys[0][token][at]));
      load_matrix_x4(query, shared_address(&slot.queries[token][at]));
      const LeftOperand left = next;
      if (pair + 1 < kKeyTiles / 2) next = LeftOperand(tiles[pair * 2 + 2], tiles[pair * 2 + 3]);
#pragma unroll
      for (int product = 0; product < LeftOperand::kProducts; ++product) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (Operands::kCorrects) left.multiply(keys[n], key[n * 2], key[n * 2 + 1], product);
          left.multiply(queries[n], query[n * 2], query[n * 2 + 1], product);
        }
      }
    }
  }
  // Shares what is found in the warp's half: for all keys, and for the queries whose results the other warp computes.
  __device__ __forceinline__ void give(int number, const float (&keys)[2][4], const float (&queries)[2][4]) const {
    if constexpr (kHalves == 2) {
      float4(&mine)[3][32] = found_parts.parts[number % 2][group * 2 + half];
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) mine[n][lane] = make_float4(keys[n][0], keys[n][1], keys[n][2], keys[n][3]);
      }
      float others[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) others[i] = half == 0 ? queries[1][i] : queries[0][i];
      mine[2][lane] = make_float4(others[0], others[1], others[2], others[3]);
    }
  }
  // Adds what is found in the other half.
  __device__ __forceinline__ void take(int number, float (&keys)[2][4], const float (&queries)[2][4],
                                       float (&results)[kTokenTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      results[0][i] = half == 0 ? queries[0][i] : queries[1][i];
      if constexpr (kHalves == 1) results[1][i] = queries[1][i];
    }
    if constexpr (kHalves == 2) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + group) : "memory");
      // The order of a sum of two numbers does not matter: both warps get the same bits.
      const float4(&others)[3][32] = found_parts.parts[number % 2][group * 2 + (half ^ 1)];
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) add(keys[n], others[n][lane]);
      }
      add(results[0], others[2][lane]);
    }
  }
  static __device__ __forceinline__ void add(float (&sums)[4], float4 b) {
    sums[0] += b.x, sums[1] += b.y, sums[2] += b.z, sums[3] += b.w;
  }
  // Multiplies by a number for each token.
  __device__ __forceinline__ void scale(float (&of_tile)[4], float2 factors) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) of_tile[i] *= i % 2 == 0 ? factors.x : factors.y;
  }
  // Loads the values of the chunk's tokens, and what is the tokens' own of them.
  __device__ __forceinline__ void load_values(const ChunkSlot& slot, float2 (&values)[2][2], float (&own)[2][4]) const {
    u32 pairs[4];
    load_matrix_x4_transposed(pairs,
                              shared_address(&slot.values[lane % 8 + lane / 16 * 8][group * 16 + lane / 8 % 2 * 8]));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        values[n][part] = unpack2(pairs[n * 2 + part]);
        own[n][part * 2] = values[n][part].x, own[n][part * 2 + 1] = values[n][part].y;
      }
      scale(own[n], of_tokens(slot.of_value, n));
    }
  }
  __device__ __forceinline__ void subtract_found(const ChunkSlot& slot, float (&keys)[2][4], float (&own)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      scale(keys[n], of_tokens(slot.of_found, n));
#pragma unroll
      for (int i = 0; i < 4; ++i) own[n][i] -= keys[n][i];
    }
  }
  // Computes the updates of the chunk from what is the tokens' own. Completes the results by what tokens see of that.
  __device__ __forceinline__ void solve(const ChunkSlot& slot, const float (&own)[2][4], float (&updates)[2][4],
                                        float (&results)[kTokenTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) scale(results[n], of_tokens(slot.of_query, token_tile(n)));
    const Tf32Operand left[2] = {Tf32Operand(own[0]), Tf32Operand(own[1])};
    float late_update[4] = {}, late_results[kTokenTiles][4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) updates[i / 4][i % 4] = own[i / 4][i % 4];
#pragma unroll
    for (int product = 0; product < Tf32Operand::kProducts; ++product) {
      if constexpr (Operands::kCorrects) {
        left[0].multiply(updates[0], weights(slot.inverse, 0, 0), product);
        left[0].multiply(updates[1], weights(slot.inverse, 1, 0), product);
        left[1].multiply(late_update, weights(slot.inverse, 1, 1), product);
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        left[0].multiply(results[n], weights(slot.seen, token_tile(n), 0), product);
        left[1].multiply(late_results[n], weights(slot.seen, token_tile(n), 1), product);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      updates[1][i] += late_update[i];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) results[n][i] += late_results[n][i];
    }
  }
  // The numbers of the lane's two tokens of tile n.
  __device__ __forceinline__ float2 of_tokens(const float (&numbers)[kChunk], int n) const {
    return *reinterpret_cast<const float2*>(&numbers[n * 8 + lane % 4 * 2]);
  }
  // The elements of a right operand that are weights of the tokens of tile k for those of tile n.
  __device__ __forceinline__ Tf32Pair weights(const float (&of_pairs)[kChunk][kWeightPitch], int n, int k) const {
    return Tf32Pair(*reinterpret_cast<const float2*>(&of_pairs[n * 8 + lane / 4][k * 8 + lane % 4 * 2]));
  }
  // Calls use(n, i, token, column) for each update that the lane has.
  template <typename Use>
  __device__ __forceinline__ void for_each_update(const Use& use) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) use(n, i, n * 8 + lane % 4 * 2 + i % 2, column + i / 2 * 8);
    }
  }
  __device__ __forceinline__ void load_updates(int base, int first, float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      if (token < first) updates[n][i] = state.update(base + token)[at];
    });
  }
  // Stores the updates that stay behind the matrix.
  __device__ __forceinline__ void store_updates(int base, int first, int count, const float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      const bool is_new = token >= first && token < count;
      if (is_new && state.keeps(base + token)) state.update(base + token)[at] = updates[n][i];
    });
  }
  // Stores the results of new tokens.
  __device__ __forceinline__ void store_results(const float2 (&values)[2][2], int base, int first, int count,
                                                const float (&results)[kTokenTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      // A lane gets two columns of a token, instead of two tokens of a column.
      const int tile = token_tile(n), token = tile * 8 + lane / 4;
      const u64 row = static_cast<u64>(first_row + base + token - state.past);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        float2 sums = make_float2(results[n][part * 2], results[n][part * 2 + 1]);
        if constexpr (Operands::kAddsValue) {
          const float2 value = tile == 0 ? values[0][part] : values[1][part];
          sums.x = fmaf(from.of_value(), value.x, sums.x), sums.y = fmaf(from.of_value(), value.y, sums.y);
        }
        const u32 pair = transpose_matrix(pack2(sums.x, sums.y));
        if (token < first || token >= count) continue;
        *reinterpret_cast<u32*>(from.result(row, column - lane / 4 + part * 8 + lane % 4 * 2)) = pair;
      }
    }
  }
  // Adds all tokens of the chunk to the matrix, which has decayed.
  __device__ __forceinline__ void advance(const ChunkSlot& slot, float (&updates)[2][4], int parts) {
#pragma unroll
    for (int n = 0; n < 2; ++n) scale(updates[n], of_tokens(slot.of_update, n));
    const LeftOperand left(updates[0], updates[1]);
    add_products(left, slot.keys[0]);
    for (int part = 1; part < parts; ++part) add_products(left, slot.keys[part]);
  }
  __device__ __forceinline__ void add_products(const LeftOperand& left, const u16 (&of_tokens)[kChunk][kKeyPitch]) {
    const int token = lane % 8 + lane / 8 % 2 * 8;
    u32 keys[kKeyTiles / 2][4];
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      const int at = first_key() + pair * 16 + lane / 16 * 8;
      load_matrix_x4_transposed(keys[pair], shared_address(&of_tokens[token][at]));
    }
#pragma unroll
    for (int product = 0; product < LeftOperand::kProducts; ++product) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const u32(&key)[4] = keys[tile / 2];
        left.multiply(tiles[tile], key[tile % 2 * 2], key[tile % 2 * 2 + 1], product);
      }
    }
  }
  // Computes the `count` tokens from position `base` on, of which the `first` are in the state.
  __device__ __forceinline__ void run(const ChunkSlot& slot, int number, int base, int first, int count) {
    float keys[2][4] = {}, queries[2][4] = {}, results[kTokenTiles][4], own[2][4], updates[2][4];
    find(slot, keys, queries);
    give(number, keys, queries);
    float2 values[2][2];
    load_values(slot, values, own);
    const float decay = slot.decay;
    for_each([&](u64, float& x) { x *= decay; });
    take(number, keys, queries, results);
    if constexpr (Operands::kCorrects) subtract_found(slot, keys, own);
    if (first > 0) load_updates(base, first, own);
    solve(slot, own, updates, results);
    if (half == 0 && base + kChunk > state.next_length) store_updates(base, first, count, updates);
    store_results(values, base, first, count, results);
    advance(slot, updates, first > 0 ? kParts : 1);
    for_each([&](u64, float& x) { x = kept_element(x); });
    if (base + kChunk == state.next_length) store();
  }
};

// The sequence that is number `number` of those with chunks, or one without new tokens, by a warp.
__device__ __forceinline__ StateSpan sequence_with_chunks(const StatePlaces& places, int num_seqs, int number) {
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < num_seqs; first += 32) {
    const int seq = first + lane;
    u32 found = __ballot_sync(0xffffffffu, seq < num_seqs && has_chunks(places.of(seq)));
    const int count = __popc(found);
    if (number < count) {
      for (; number > 0; --number) found &= found - 1;
      return places.of(first + __ffs(found) - 1);
    }
    number -= count;
  }
  return {0, 0, 0, -1};
}

// Computes columns of a head of a sequence, those of block number `block`: the elements `of_head` of its state, the new
// tokens in `span`.
template <typename Operands>
__device__ __forceinline__ void replay_chunks(const Operands& from, float* of_head, StateSpan span, int block) {
  extern __shared__ __align__(1024) char memory[];
  static_assert(sizeof(FoundParts) + (sizeof(ChunkSlot) + 16) * kChunkSlots == TL_SHARED_BYTES);
  FoundParts& found_parts = *reinterpret_cast<FoundParts*>(memory);
  ChunkSlot* const slots = reinterpret_cast<ChunkSlot*>(memory + sizeof(FoundParts));
  const u32 barriers = shared_address(slots + kChunkSlots);
  ReplayState state(of_head, span);
  state.settle(span);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_column = block * TL_COLUMNS;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kChunkSlots; ++slot) {
      barrier_init(barriers + slot * 16, kWarpReleases);
      barrier_init(barriers + slot * 16 + 8, kColumnWarps * kWarpReleases);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int num_chunks = ceil_div(state.end - state.length, kChunk);
  const auto first_of = [&](int base) { return min_of(kChunk, max_of(0, state.past - base)); };
  if (warp >= kColumnWarps) {
    const int slot = warp - kColumnWarps;
    const ChunkPreparer<Operands> preparer{from, state, slots[slot], span.first, first_column, lane};
    u32 parity = 1;
    GivenFactors next = preparer.load_factors(state.length + slot * kChunk);
    for (int number = slot; number < num_chunks; number += kChunkSlots, parity ^= 1) {
      const int base = state.length + number * kChunk;
      const GivenFactors given = next;
      next = preparer.load_factors(base + kChunkSlots * kChunk);
      barrier_wait(barriers + slot * 16 + 8, parity);
      preparer.prepare(base, first_of(base), min_of(kChunk, state.end - base), given);
      release_stage(barriers + slot * 16, lane);
    }
  } else {
    const int group = warp / kHalves, column = first_column + group * 16 + lane / 4;
    ChunkColumns<Operands> columns{from, state, found_parts, span.first, column, group, warp % kHalves, lane};
    columns.load();
    RingPlace<kChunkSlots> place{barriers};
    for (int number = 0; number < num_chunks; ++number, place.advance()) {
      const int base = state.length + number * kChunk;
      barrier_wait(barriers + place.stage * 16, place.parity);
      columns.run(slots[place.stage], number, base, first_of(base), min_of(kChunk, state.end - base));
      release_stage(barriers + place.stage * 16 + 8, lane);
    }
  }
}

}  // namespace tl
