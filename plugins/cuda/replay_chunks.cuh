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

// What TF32 leaves of a float32.
__device__ __forceinline__ u32 tf32_rest(u32 bits) {
  return __float_as_uint(__uint_as_float(bits) - __uint_as_float(bits & kTf32Bits));
}

// A pair of successive elements of a float32 right operand, and what TF32 leaves of them: tensor cores take the upper
// bits of the elements themselves.
struct Tf32Pair {
  u32 elements[2], rest[2];

  Tf32Pair() = default;
  __device__ __forceinline__ explicit Tf32Pair(float2 given) {
    elements[0] = __float_as_uint(given.x), elements[1] = __float_as_uint(given.y);
#pragma unroll
    for (int i = 0; i < 2; ++i) rest[i] = tf32_rest(elements[i]);
  }
};

// A float32 left operand of m16n8k8, which was the accumulators `sums`, and what TF32 leaves of it.
struct Tf32Operand {
  static constexpr int kProducts = 3;  // with a float32 right operand

  u32 elements[4], rest[4];

  Tf32Operand() = default;
  __device__ __forceinline__ explicit Tf32Operand(const float (&sums)[4]) {
    const float ordered[4] = {sums[0], sums[2], sums[1], sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      elements[i] = __float_as_uint(ordered[i]);
      rest[i] = tf32_rest(elements[i]);
    }
  }
  // Adds product number `product` of those with b, whose rows 2i and 2i + 1 follow each other, to c. Successive
  // products should have different sums: tensor cores take long for each.
  __device__ __forceinline__ void multiply(float (&c)[4], const Tf32Pair& b, int product) const {
    const u32(&right)[2] = product == 1 ? b.rest : b.elements;
    mma_tf32(c, product == 0 ? rest : elements, right[0], right[1]);
  }
};

// A float32 left operand for 16 rows of a right operand of 16 bits; it was the accumulators `low` and `high`.
#if TL_FP16
struct LeftOperand {
  static constexpr int kProducts = 4;

  Tf32Operand low, high;

  LeftOperand() = default;
  __device__ __forceinline__ LeftOperand(const float (&low)[4], const float (&high)[4]) : low(low), high(high) {}
  __device__ __forceinline__ void multiply(float (&c)[4], u32 b0, u32 b1, int product) const {
    const float2 b = unpack2(product % 2 == 0 ? b0 : b1);
    const Tf32Operand& left = product % 2 == 0 ? low : high;
    mma_tf32(c, product < 2 ? left.elements : left.rest, __float_as_uint(b.x), __float_as_uint(b.y));
  }
};
#else
struct LeftOperand {
  static constexpr int kProducts = 2;

  u32 parts[kProducts][4];

  LeftOperand() = default;
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
constexpr int kTurn = kColumnWarps * 3 * 32;  // numbers of a lane, from one turn to the other

// A warp's part of the matrix: 16 columns and half the rows. A lane has columns lane / 4 and + 8, and of the tokens of
// a chunk 2 * (lane % 4) and + 1, and 8 more. Both warps compute the chunk's updates; each computes results of 8
// tokens.
//
// A warp issues its instructions in order, and products of tensor cores follow each other in the order of the source.
// So whatever a step needs that does not depend on the step before it is loaded or computed while that is under way.
template <typename Operands>
struct ChunkColumns {
  static constexpr int kTokenTiles = 2 / kHalves;  // of 8 tokens whose results the warp computes
  static constexpr int kPairs = kKeyTiles / 2;
  static constexpr bool kRounds = TL_STATE_FORM != 0;  // the matrix, after each chunk

  const Operands& from;
  const ReplayState& state;
  int group, column, half, lane;  // `column`: the lane's first
  // Where the lane reads in the first slot: rows of fragments, and numbers of tokens and of pairs of tokens.
  u32 found_keys, found_queries, values, added_keys;
  const float *decay, *of_tokens, *of_pairs, *of_query, *seen;  // the latter two of the warp's results
  float4 *given, *taken;                                        // by the lane, in turns of even chunks
  float tiles[kKeyTiles][4];
  // What finding begins with, and then its next pair of tiles.
  LeftOperand left;
  u32 key[4], query[4];

  __device__ __forceinline__ ChunkColumns(const Operands& from, const ReplayState& state, FoundParts& found_parts,
                                          const ChunkSlot& slot, int first_column, int warp, int lane)
      : from(from), state(state), group(warp / kHalves), half(warp % kHalves), lane(lane) {
    const int token = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2 * 8, pair = lane % 4 * 2;
    column = first_column + group * 16 + lane / 4;
    found_keys = shared_address(&slot.keys[0][token][first_key() + piece]);
    // The warp's own results come first.
    found_queries = shared_address(&slot.queries[token ^ token_tile(0) * 8][first_key() + piece]);
    values = shared_address(&slot.values[token][group * 16 + piece]);
    added_keys = shared_address(&slot.keys[0][lane % 8 + piece][first_key() + lane / 16 * 8]);
    decay = &slot.decay, of_tokens = &slot.of_value[pair], of_query = &slot.of_query[token_tile(0) * 8 + pair];
    of_pairs = &slot.inverse[lane / 4][pair], seen = &slot.seen[token_tile(0) * 8 + lane / 4][pair];
    given = &found_parts.parts[0][warp][0][lane], taken = &found_parts.parts[0][warp ^ kHalves - 1][0][lane];
  }
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
    left = LeftOperand(tiles[0], tiles[1]);
  }
  __device__ __forceinline__ void store() {
    for_each([&](u64 i, float& x) { state.store_element(i, x); });
  }
  // Loads the keys and queries that a pair of tiles is multiplied by.
  __device__ __forceinline__ void load_pair(u32 slot, int pair) {
    if constexpr (Operands::kCorrects) load_matrix_x4(key, found_keys + slot + pair * 32);
    load_matrix_x4(query, found_queries + slot + pair * 32);
  }
  // What keys and queries find in the warp's part of the matrix. `left` is the first pair of tiles.
  __device__ __forceinline__ void find(u32 slot, float (&keys)[2][4], float (&queries)[2][4]) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const LeftOperand now = left;
      const u32 key_now[4] = {key[0], key[1], key[2], key[3]};
      const u32 query_now[4] = {query[0], query[1], query[2], query[3]};
      if (pair + 1 < kPairs) {
        load_pair(slot, pair + 1);
        left = LeftOperand(tiles[pair * 2 + 2], tiles[pair * 2 + 3]);
      }
#pragma unroll
      for (int product = 0; product < LeftOperand::kProducts; ++product) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (Operands::kCorrects) now.multiply(keys[n], key_now[n * 2], key_now[n * 2 + 1], product);
          now.multiply(queries[n], query_now[n * 2], query_now[n * 2 + 1], product);
        }
      }
    }
  }
  // Shares what is found in the warp's half: for all keys, and for the queries whose results the other warp computes.
  __device__ __forceinline__ void give(int turn, const float (&keys)[2][4], const float (&queries)[2][4]) const {
    if constexpr (kHalves == 2) {
      float4* const to = given + turn;
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) to[n * 32] = make_float4(keys[n][0], keys[n][1], keys[n][2], keys[n][3]);
      }
      to[2 * 32] = make_float4(queries[1][0], queries[1][1], queries[1][2], queries[1][3]);
    }
  }
  // Adds what is found in the other half.
  __device__ __forceinline__ void take(int turn, float (&keys)[2][4], float (&queries)[2][4]) const {
    if constexpr (kHalves == 2) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + group) : "memory");
      // The order of a sum of two numbers does not matter: both warps get the same bits.
      const float4* const other = taken + turn;
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) add(keys[n], other[n * 32]);
      }
      add(queries[0], other[2 * 32]);
    }
  }
  static __device__ __forceinline__ void add(float (&sums)[4], float4 b) {
    sums[0] += b.x, sums[1] += b.y, sums[2] += b.z, sums[3] += b.w;
  }
  // Multiplies by a number for each token.
  static __device__ __forceinline__ void scale(float (&of_tile)[4], float2 factors) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of_tile[i] *= i % 2 == 0 ? factors.x : factors.y;
  }
  // Two numbers that follow each other in a slot, at a distance from a place in the first slot.
  static __device__ __forceinline__ float2 two_of(const float* place, u32 slot, int distance) {
    return *reinterpret_cast<const float2*>(reinterpret_cast<const char*>(place + distance) + slot);
  }
  // One of the arrays of numbers of tokens, number `array` from of_value on: what the lane's two tokens of tile n have.
  __device__ __forceinline__ float2 of_tile(int array, u32 slot, int n) const {
    return two_of(of_tokens, slot, array * kChunk + n * 8);
  }
  // The elements of a right operand that are weights of the tokens of tile k for those of tile n.
  static __device__ __forceinline__ Tf32Pair weights(const float* place, u32 slot, int n, int k) {
    return Tf32Pair(two_of(place, slot, n * 8 * kWeightPitch + k * 8));
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
  __device__ __forceinline__ void load_updates(int base, float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      if (base + token < state.past) updates[n][i] = state.update(base + token)[at];
    });
  }
  // Stores the updates that stay behind the matrix.
  __device__ __forceinline__ void store_updates(int base, const float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      const int position = base + token;
      if (position < state.end && state.keeps(position)) state.update(position)[at] = updates[n][i];
    });
  }
  // Stores results of new tokens, from `base` on; `to` is where the first token's first column of the block goes.
  __device__ __forceinline__ void store_results(u16* to, int base, const float (&results)[kTokenTiles][4],
                                                const u32 (&own)[kTokenTiles][2]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int position = base + token_tile(n) * 8 + lane / 4;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        float2 sums = make_float2(results[n][part * 2], results[n][part * 2 + 1]);
        if constexpr (Operands::kAddsValue) {
          const float2 value = unpack2(own[n][part]);
          sums.x = fmaf(from.of_value(), value.x, sums.x), sums.y = fmaf(from.of_value(), value.y, sums.y);
        }
        // A lane gets two columns of a token, instead of two tokens of a column.
        const u32 pair = transpose_matrix(pack2(sums.x, sums.y));
        if (position < state.past || position >= state.end) continue;
        *reinterpret_cast<u32*>(to + n * 8 * result_pitch() + part * 8) = pair;
      }
    }
  }
  // The results from a row to the next.
  __device__ __forceinline__ u64 result_pitch() const { return from.result(1, 0) - from.result(0, 0); }
  // Where the lane's first result of the chunk from position `base` on goes.
  __device__ __forceinline__ u16* first_result(int first_row, int base) const {
    const u64 row = static_cast<u64>(first_row + base + token_tile(0) * 8 + lane / 4 - state.past);
    return from.result(row, column - lane / 4 + lane % 4 * 2);
  }
  // Adds `updates`, multiplied by keys, to the matrix, which has decayed.
  __device__ __forceinline__ void add_products(const LeftOperand& updates, const u32 (&keys)[kPairs][4]) {
#pragma unroll
    for (int product = 0; product < LeftOperand::kProducts; ++product) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const u32(&pair)[4] = keys[tile / 2];
        updates.multiply(tiles[tile], pair[tile % 2 * 2], pair[tile % 2 * 2 + 1], product);
      }
    }
  }
  __device__ __forceinline__ void load_added(u32 slot, int part, u32 (&keys)[kPairs][4]) const {
    constexpr u32 kPart = sizeof(ChunkSlot::keys) / kParts;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      load_matrix_x4_transposed(keys[pair], added_keys + slot + part * kPart + pair * 32);
    }
  }
  // Computes the tokens from position `base` on, whose results go to `to`, from what lies in a slot, and begins with
  // the slot `next`, once `full` has completed the phase of that parity.
  __device__ __forceinline__ void run(u32 slot, int turn, int base, u16* to, u32 next, u32 full, u32 parity) {
    // What is the tokens' own of their values, and weights.
    u32 pairs[4];
    load_matrix_x4_transposed(pairs, values + slot);
    const float of_matrix = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(decay) + slot);
    float own[2][4];
    float2 of_found[2], of_update[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float2 value = unpack2(pairs[n * 2 + part]);
        own[n][part * 2] = value.x, own[n][part * 2 + 1] = value.y;
      }
      scale(own[n], of_tile(0, slot, n));
      of_found[n] = of_tile(1, slot, n), of_update[n] = of_tile(3, slot, n);
    }
    const Tf32Pair inverse[3] = {weights(of_pairs, slot, 0, 0), weights(of_pairs, slot, 1, 0),
                                 weights(of_pairs, slot, 1, 1)};

    float keys[2][4] = {}, queries[2][4] = {};
    find(slot, keys, queries);
    const bool is_ready = barrier_test(full, parity);
    give(turn, keys, queries);
    for_each([&](u64, float& x) { x *= of_matrix; });
    take(turn, keys, queries);
    if constexpr (Operands::kCorrects) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          own[n][i] = fmaf(i % 2 == 0 ? -of_found[n].x : -of_found[n].y, keys[n][i], own[n][i]);
      }
    }
    if (!is_ready || base < state.past) {
      if (base < state.past) load_updates(base, own);
      barrier_wait(full, parity);
    }

    // The updates, and then what the results have of them.
    const Tf32Operand left_own[2] = {Tf32Operand(own[0]), Tf32Operand(own[1])};
    float corrections[3][4] = {};
    if constexpr (Operands::kCorrects) {
#pragma unroll
      for (int product = 0; product < Tf32Operand::kProducts; ++product) {
        left_own[0].multiply(corrections[1], inverse[1], product);
        left_own[1].multiply(corrections[2], inverse[2], product);
        left_own[0].multiply(corrections[0], inverse[0], product);
      }
    }
    u32 added[kPairs][4];
    load_added(slot, 0, added);
    float results[kTokenTiles][4], late_results[kTokenTiles][4] = {};
    Tf32Pair of_results[kTokenTiles][2];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const float2 factors = two_of(of_query, slot, n * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) results[n][i] = queries[n][i] * (i % 2 == 0 ? factors.x : factors.y);
#pragma unroll
      for (int k = 0; k < 2; ++k) of_results[n][k] = weights(seen, slot, n, k);
    }
#pragma unroll
    for (int product = 0; product < Tf32Operand::kProducts; ++product) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        left_own[0].multiply(results[n], of_results[n][0], product);
        left_own[1].multiply(late_results[n], of_results[n][1], product);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own[1][i] += corrections[1][i] + corrections[2][i];
      own[0][i] += corrections[0][i];
    }
    load_pair(next, 0);

    // The matrix.
    float scaled[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[n][i] = own[n][i];
      scale(scaled[n], of_update[n]);
    }
    const LeftOperand updates(scaled[0], scaled[1]);
    add_products(updates, added);
    if constexpr (!kRounds) left = LeftOperand(tiles[0], tiles[1]);
    u32 own_values[kTokenTiles][2];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) results[n][i] += late_results[n][i];
#pragma unroll
      for (int part = 0; part < 2; ++part) own_values[n][part] = half == 0 ? pairs[n * 2 + part] : pairs[2 + part];
    }
    store_results(to, base, results, own_values);
    if (base < state.past || base + kChunk >= state.next_length) {
      if (base < state.past) {
        for (int part = 1; part < kParts; ++part) {
          load_added(slot, part, added);
          add_products(updates, added);
        }
      }
      if (half == 0) store_updates(base, own);
      if (base + kChunk == state.next_length) store();
      if constexpr (!kRounds) left = LeftOperand(tiles[0], tiles[1]);
    }
    if constexpr (kRounds) {
      for_each([&](u64, float& x) { x = kept_element(x); });
      left = LeftOperand(tiles[0], tiles[1]);
    }
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
  const int rank = kSharers > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kChunkSlots; ++slot) {
      barrier_init(barriers + slot * 16, kWarpReleases);
      barrier_init(barriers + slot * 16 + 8, (rank == owner_of(slot) ? kSharers : 1) * kColumnWarps * kWarpReleases);
    }
    barrier_init_fence();
  }
  cluster_sync();
  const int num_chunks = ceil_div(state.end - state.length, kChunk);
  const auto first_of = [&](int base) { return min_of(kChunk, max_of(0, state.past - base)); };
  if (warp >= kColumnWarps) {
    const int slot = warp - kColumnWarps;
    const ChunkPreparer<Operands> preparer{from, state, slots[slot], span.first, first_column, lane};
    const u32 full = barriers + slot * 16;
    const bool is_own = rank == owner_of(slot);
    u32 parity = 1;
    GivenFactors next = preparer.load_factors(state.length + slot * kChunk);
    for (int number = slot; number < num_chunks; number += kChunkSlots, parity ^= 1) {
      const int base = state.length + number * kChunk;
      const int first = first_of(base), count = min_of(kChunk, state.end - base);
      const GivenFactors given = next;
      if (is_own) next = preparer.load_factors(base + kChunkSlots * kChunk);
      barrier_wait(full + 8, parity);
      preparer.request_rows(base, first, count);
      if (is_own) {
        preparer.prepare(base, first, count, given);
        if constexpr (kSharers > 1) preparer.send(full, rank ^ 1);
        release_stage(full, lane);
      } else {
        preparer.receive_rows(base, first);
        if (lane == 0) {
          expect_bytes(full, preparer.kPreparedBytes);
        } else if (releasing_lane(lane)) {
          barrier_arrive(full);
        }
      }
    }
  } else {
    ChunkColumns<Operands> columns(from, state, found_parts, slots[0], first_column, warp, lane);
    columns.load();
    RingPlace<kChunkSlots> place{barriers};
    barrier_wait(barriers, 0);
    columns.load_pair(0, 0);
    u16* to = columns.first_result(span.first, state.length);
    int base = state.length, turn = 0;
    for (int number = 0; number < num_chunks; ++number) {
      const u32 slot = place.stage * sizeof(ChunkSlot), empty = barriers + place.stage * 16 + 8;
      const bool is_own = rank == owner_of(place.stage);
      if (number + 1 < num_chunks) place.advance();
      columns.run(slot, turn, base, to, place.stage * sizeof(ChunkSlot), barriers + place.stage * 16, place.parity);
      release_stage(empty, lane);
#if TL_HAS_CLUSTERS
      if (!is_own && releasing_lane(lane)) barrier_arrive_of_block(empty, rank ^ 1);
#endif
      base += kChunk, to += kChunk * columns.result_pitch(), turn = kTurn - turn;
    }
  }
  // Another block may still signal that it has read a slot.
  if constexpr (kSharers > 1) cluster_sync();
}

}  // namespace tl
