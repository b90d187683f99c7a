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
// prepares every kChunkSlots-th chunk; so the updates of a chunk are a product, too. The other warps multiply. All
// warps compete for the same schedulers, so two blocks of a head form a cluster: each loads the rows of all chunks, but
// prepares only half of them, and sends what it has prepared to the other block's slot.
#pragma once

#include "cuda/replay_chunk_slot.cuh"
#include "cuda/replay_operands.cuh"

namespace tl {

// What two warps with the same columns tell each other of a chunk, in turns of two.
struct FoundParts {
  float4 parts[2][kColumnWarps][3][32];
};
constexpr int kFoundBytes = 32 * 16, kTurn = kColumnWarps * 3 * kFoundBytes;  // from one turn to the other

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
  // Addresses of what the lane reads in the first slot: rows of fragments, and numbers of tokens and of pairs of
  // tokens.
  u32 found_keys, found_queries, values, added_keys, decay, of_tokens, of_pairs;
  u32 of_query, seen;  // of the tokens whose results the warp computes
  u32 given, taken;    // in turns of even chunks
  float tiles[kKeyTiles][4];
  // A pair of tiles, of the rows that find() multiplies next, and the keys and queries that these are multiplied by.
  LeftOperand left;
  u32 key[4], query[4];

  __device__ __forceinline__ ChunkColumns(const Operands& from, const ReplayState& state, FoundParts& found_parts,
                                          const ChunkSlot& slot, int first_column, int warp, int lane)
      : from(from), state(state), group(warp / kHalves), half(warp % kHalves), lane(lane) {
    const int token = lane % 8 + lane / 16 * 8, piece = lane / 8 % 2 * 8, pair = lane % 4 * 2;
    column = first_column + group * 16 + lane / 4;
    found_keys = place(&slot.keys[0][token][first_key() + piece]);
    // The warp's own results come first.
    found_queries = place(&slot.queries[token ^ token_tile(0) * 8][first_key() + piece]);
    values = place(&slot.values[token][group * 16 + piece]);
    added_keys = place(&slot.keys[0][lane % 8 + piece][first_key() + lane / 16 * 8]);
    of_tokens = place(&slot.of_tokens[0][pair]);
    of_query = place(&slot.of_tokens[kOfQuery][token_tile(0) * 8 + pair]);
    of_pairs = place(&slot.inverse[lane / 4][pair]);
    seen = place(&slot.seen[token_tile(0) * 8 + lane / 4][pair]);
    decay = place(&slot.decay), given = place(&found_parts.parts[0][warp][0][lane]);
    taken = place(&found_parts.parts[0][warp ^ kHalves - 1][0][lane]);
  }
  // An address, in a way that does not tell the compiler how it is computed: it would compute it for each chunk.
  __device__ __forceinline__ u32 place(const void* x) const {
    return __shfl_sync(0xffffffffu, shared_address(x), lane);
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
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) store_shared(given + turn + n * kFoundBytes, keys[n]);
      }
      store_shared(given + turn + 2 * kFoundBytes, queries[1]);
    }
  }
  // Adds what is found in the other half.
  __device__ __forceinline__ void take(int turn, float (&keys)[2][4], float (&queries)[2][4]) const {
    if constexpr (kHalves == 2) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + group) : "memory");
      // The order of a sum of two numbers does not matter: both warps get the same bits.
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) add(keys[n], taken + turn + n * kFoundBytes);
      }
      add(queries[0], taken + turn + 2 * kFoundBytes);
    }
  }
  static __device__ __forceinline__ void add(float (&sums)[4], u32 address) {
    float others[4];
    load_shared(others, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += others[i];
  }
  // Multiplies by a number for each token.
  static __device__ __forceinline__ void scale(float (&of_tile)[4], float2 factors) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of_tile[i] *= i % 2 == 0 ? factors.x : factors.y;
  }
  // A number of the lane's two tokens of tile n.
  __device__ __forceinline__ float2 of_tile(int number, u32 slot, int n) const {
    return load_shared_two(of_tokens + slot + (number * kChunk + n * 8) * 4);
  }
  // The elements of a right operand that are weights of the tokens of tile k for those of tile n.
  static __device__ __forceinline__ Tf32Pair weights(u32 place, u32 slot, int n, int k) {
    return Tf32Pair(load_shared_two(place + slot + (n * 8 * kWeightPitch + k * 8) * 4));
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
  // Stores results of new tokens from position `base` on, which are sums of two parts; the lane's first goes to `to`.
  __device__ __forceinline__ void store_results(u16* to, int base, const float (&results)[kTokenTiles][4],
                                                const float (&late)[kTokenTiles][4], const u32 (&values)[4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int position = base + token_tile(n) * 8 + lane / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float2 sums = make_float2(results[n][i * 2] + late[n][i * 2], results[n][i * 2 + 1] + late[n][i * 2 + 1]);
        if constexpr (Operands::kAddsValue) {
          const float2 value = unpack2(token_tile(n) == 0 ? values[i] : values[2 + i]);
          sums.x = fmaf(from.of_value(), value.x, sums.x), sums.y = fmaf(from.of_value(), value.y, sums.y);
        }
        // A lane gets two columns of a token, instead of two tokens of a column.
        const u32 pair = transpose_matrix(pack2(sums.x, sums.y));
        if (position < state.past || position >= state.end) continue;
        *reinterpret_cast<u32*>(to + n * 8 * result_pitch() + i * 8) = pair;
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
  // What is loaded for the updates of a chunk, before what the keys find is known.
  struct OwnParts {
    u32 values[4];    // pairs of tokens
    float own[2][4];  // what the updates have of the values
    float2 of_found[2], of_update[2];
    Tf32Pair inverse[3];  // of the pairs of tiles (0, 0), (1, 0) and (1, 1)
    float decay;
  };
  __device__ __forceinline__ OwnParts load_own(u32 slot) const {
    OwnParts parts;
    load_matrix_x4_transposed(parts.values, values + slot);
    parts.decay = load_shared_float(decay + slot);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 value = unpack2(parts.values[n * 2 + i]);
        parts.own[n][i * 2] = value.x, parts.own[n][i * 2 + 1] = value.y;
      }
      scale(parts.own[n], of_tile(kOfValue, slot, n));
      parts.of_found[n] = of_tile(kOfFound, slot, n), parts.of_update[n] = of_tile(kOfUpdate, slot, n);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) parts.inverse[i] = weights(of_pairs, slot, (i + 1) / 2, i / 2);
    return parts;
  }
  // Subtracts what the keys find.
  __device__ __forceinline__ void subtract_found(const float (&keys)[2][4], OwnParts& parts) const {
    if constexpr (Operands::kCorrects) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 factors = parts.of_found[n];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          parts.own[n][i] = fmaf(i % 2 == 0 ? -factors.x : -factors.y, keys[n][i], parts.own[n][i]);
        }
      }
    }
  }
  // Computes the updates of the chunk from what is the tokens' own, which is also `left_own`.
  __device__ __forceinline__ void correct(const Tf32Operand (&left_own)[2], const OwnParts& parts,
                                          float (&updates)[2][4]) const {
    float sums[3][4] = {};
    if constexpr (Operands::kCorrects) {
#pragma unroll
      for (int product = 0; product < Tf32Operand::kProducts; ++product) {
        left_own[0].multiply(sums[1], parts.inverse[1], product);
        left_own[1].multiply(sums[2], parts.inverse[2], product);
        left_own[0].multiply(sums[0], parts.inverse[0], product);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      updates[0][i] = parts.own[0][i] + sums[0][i];
      updates[1][i] = parts.own[1][i] + (sums[1][i] + sums[2][i]);
    }
  }
  // Computes results from what queries find and what they see of updates; `late` is a part to be added.
  __device__ __forceinline__ void see(u32 slot, const Tf32Operand (&left_own)[2], const float (&queries)[2][4],
                                      float (&results)[kTokenTiles][4], float (&late)[kTokenTiles][4]) const {
    Tf32Pair of_own[kTokenTiles][2];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) results[n][i] = queries[n][i];
      scale(results[n], load_shared_two(of_query + slot + n * 8 * 4));
#pragma unroll
      for (int k = 0; k < 2; ++k) of_own[n][k] = weights(seen, slot, n, k);
    }
#pragma unroll
    for (int product = 0; product < Tf32Operand::kProducts; ++product) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        left_own[0].multiply(results[n], of_own[n][0], product);
        left_own[1].multiply(late[n], of_own[n][1], product);
      }
    }
  }
  // Adds all tokens of the chunk, whose keys are `added`, to the matrix, which has decayed.
  __device__ __forceinline__ LeftOperand advance(const float (&updates)[2][4], const OwnParts& parts,
                                                 const u32 (&added)[kPairs][4]) {
    float scaled[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[n][i] = updates[n][i];
      scale(scaled[n], parts.of_update[n]);
    }
    const LeftOperand operand(scaled[0], scaled[1]);
    add_products(operand, added);
    return operand;
  }
  // Computes the tokens from position `base` on, whose results go to `to`, from what lies in a slot, and begins with
  // the next slot, of which there is one unless it is_last. Calls release(stage) once the slot has been read. kStored:
  // whether some of the tokens are in the state.
  template <bool kStored, typename Release>
  __device__ __forceinline__ void run(RingPlace<kChunkSlots>& place, int turn, int base, u16* to, bool is_last,
                                      const Release& release) {
    const int stage = place.stage;
    const u32 slot = stage * sizeof(ChunkSlot);
    OwnParts parts = load_own(slot);
    float keys[2][4] = {}, queries[2][4] = {};
    find(slot, keys, queries);
    if (!is_last) place.advance();
    const u32 next = place.base + place.stage * 16, parity = place.parity;
    const bool is_ready = __ballot_sync(0xffffffffu, barrier_test(next, parity)) == 0xffffffffu;
    give(turn, keys, queries);
    for_each([&](u64, float& x) { x *= parts.decay; });
    take(turn, keys, queries);
    subtract_found(keys, parts);
    if constexpr (kStored) load_updates(base, parts.own);
    if (!is_ready) barrier_wait(next, parity);

    const Tf32Operand left_own[2] = {Tf32Operand(parts.own[0]), Tf32Operand(parts.own[1])};
    float updates[2][4], results[kTokenTiles][4], late_results[kTokenTiles][4] = {};
    correct(left_own, parts, updates);
    u32 added[kPairs][4];
    load_added(slot, 0, added);
    see(slot, left_own, queries, results, late_results);
    load_pair(place.stage * sizeof(ChunkSlot), 0);
    if constexpr (!kStored) release(stage);
    const LeftOperand operand = advance(updates, parts, added);
    if constexpr (!kRounds) left = LeftOperand(tiles[0], tiles[1]);
    store_results(to, base, results, late_results, parts.values);

    if constexpr (kStored) {
      for (int part = 1; part < kParts; ++part) {
        load_added(slot, part, added);
        add_products(operand, added);
      }
      release(stage);
      if constexpr (!kRounds) left = LeftOperand(tiles[0], tiles[1]);
    }
    if (base + kChunk >= state.next_length) {
      if (half == 0) store_updates(base, updates);
      if (base + kChunk == state.next_length) store();
    }
    if constexpr (kRounds) {
      for_each([&](u64, float& x) { x = kept_element(x); });
      left = LeftOperand(tiles[0], tiles[1]);
    }
  }
  // Computes the chunks from number `begin` to `end` of all.
  template <bool kStored, typename Release>
  __device__ __forceinline__ void run_chunks(RingPlace<kChunkSlots>& place, int begin, int end, int num_chunks,
                                             int first_row, const Release& release) {
    int base = state.length + begin * kChunk, turn = begin % 2 * kTurn;
    u16* to = first_result(first_row, base);
    for (int number = begin; number < end; ++number) {
      run<kStored>(place, turn, base, to, number + 1 == num_chunks, release);
      base += kChunk, to += kChunk * result_pitch(), turn = kTurn - turn;
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
  state.past = uniform(state.past), state.end = uniform(state.end);
  state.length = uniform(state.length), state.next_length = uniform(state.next_length);
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
    const auto release = [&](int stage) {
      const u32 empty = barriers + stage * 16 + 8;
      release_stage(empty, lane);
#if TL_HAS_CLUSTERS
      if (rank != owner_of(stage) && releasing_lane(lane)) barrier_arrive_of_block(empty, rank ^ 1);
#endif
    };
    const int num_stored = min_of(num_chunks, ceil_div(state.past - state.length, kChunk));
    columns.template run_chunks<true>(place, 0, num_stored, num_chunks, span.first, release);
    columns.template run_chunks<false>(place, num_stored, num_chunks, num_chunks, span.first, release);
  }
  // Another block may still signal that it has read a slot.
  if constexpr (kSharers > 1) cluster_sync();
}

}  // namespace tl
