// Heads of rows of a QKV product in the registers of a warp: optional RMS norm of queries and keys, and RoPE as in
// heads.cuh.
//
// A lane holds both elements of each pair that RoPE turns. Rows are of the activations' type, results float32. Macros:
// those of heads.cuh and of output.cuh, TL_NORM (0 or 1: are queries and keys normalised?).
#pragma once

#include "paged_attention/heads.cuh"
#include "paged_attention/output.cuh"

namespace tl {

constexpr int kQuads = TL_HEAD_DIM / 4, kTurned = TL_ROTARY_DIM / 4;  // of a head, and those that are rotated
constexpr int kPairs = ceil_div(kQuads, 32);                          // quads of a lane
static_assert(TL_HEAD_DIM % 4 == 0);

// Two neighbouring elements of a head, and the two they are rotated with; or four neighbours that are not rotated.
struct Quad {
  float2 low, high;

  // By value: what is chosen by address does not stay in registers.
  __device__ __forceinline__ static Quad one_of(bool is_first, const Quad& a, const Quad& b) {
    return {make_float2(is_first ? a.low.x : b.low.x, is_first ? a.low.y : b.low.y),
            make_float2(is_first ? a.high.x : b.high.x, is_first ? a.high.y : b.high.y)};
  }
};

// Where a quad lies in a head, in words of two elements.
__device__ __forceinline__ int low_word(int quad) { return quad < kTurned ? quad : 2 * quad; }
__device__ __forceinline__ int high_word(int quad) { return quad < kTurned ? quad + kTurned : 2 * quad + 1; }

// A lane's elements of a head as they lie in a row.
struct HeadWords {
  uint2 words[kPairs] = {};

  __device__ __forceinline__ void load(const u16* from, int lane) {
    const u32* head = reinterpret_cast<const u32*>(from);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int quad = lane + i * 32;
      words[i] = quad < kQuads ? make_uint2(head[low_word(quad)], head[high_word(quad)]) : make_uint2(0, 0);
    }
  }
};

// The weight of an RMS norm of heads.
struct HeadNorm {
  Quad quads[kPairs] = {};

  __device__ __forceinline__ void load(const float* weight, int lane) {
    const float2* pairs = reinterpret_cast<const float2*>(weight);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int quad = lane + i * 32;
      if (quad < kQuads) quads[i] = {pairs[low_word(quad)], pairs[high_word(quad)]};
    }
  }
  __device__ __forceinline__ static HeadNorm one_of(bool is_first, const HeadNorm& first, const HeadNorm& second) {
    HeadNorm chosen;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) chosen.quads[i] = Quad::one_of(is_first, first.quads[i], second.quads[i]);
    return chosen;
  }
};

// Cosines and sines of a token.
struct HeadAngles {
  float2 cos[kPairs] = {}, sin[kPairs] = {};

  __device__ __forceinline__ void load(const float* cosines, const float* sines, int token, int lane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int quad = lane + i * 32;
      if (quad >= kTurned) break;
      cos[i] = reinterpret_cast<const float2*>(cosines + static_cast<u64>(token) * (TL_ROTARY_DIM / 2))[quad];
      sin[i] = reinterpret_cast<const float2*>(sines + static_cast<u64>(token) * (TL_ROTARY_DIM / 2))[quad];
    }
  }
};

// A head, of which a lane has some quads. Making one takes no branch, so that those of several heads may overlap: what
// they take is latency.
struct TurnedHead {
  Quad quads[kPairs];

  TurnedHead() = default;
  // Unless it is a value, it is normalised, if heads are, and turned.
  __device__ __forceinline__ TurnedHead(const HeadWords& head, bool is_value, const HeadNorm& norm, float epsilon,
                                        const HeadAngles& angles, int lane) {
    Quad plain[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      quads[i] = plain[i] = {unpack_y(head.words[i].x), unpack_y(head.words[i].y)};
    }
    if constexpr (TL_NORM) normalise(norm, epsilon);
    turn(angles, lane);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) quads[i] = Quad::one_of(is_value, plain[i], quads[i]);
  }
  __device__ __forceinline__ void normalise(const HeadNorm& norm, float epsilon) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      sum += quads[i].low.x * quads[i].low.x + quads[i].low.y * quads[i].low.y;
      sum += quads[i].high.x * quads[i].high.x + quads[i].high.y * quads[i].high.y;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const float inverse = rsqrtf(sum / TL_HEAD_DIM + epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      quads[i].low.x *= inverse * norm.quads[i].low.x;
      quads[i].low.y *= inverse * norm.quads[i].low.y;
      quads[i].high.x *= inverse * norm.quads[i].high.x;
      quads[i].high.y *= inverse * norm.quads[i].high.y;
    }
  }
  __device__ __forceinline__ void turn(const HeadAngles& angles, int lane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (i * 32 >= kTurned) break;
      const float2 low = quads[i].low, high = quads[i].high, c = angles.cos[i], s = angles.sin[i];
      const Turned x(low.x, high.x, c.x, s.x), y(low.y, high.y, c.y, s.y);
      const Quad turned{make_float2(x.low, y.low), make_float2(x.high, y.high)};
      quads[i] = Quad::one_of(lane + i * 32 < kTurned, turned, quads[i]);
    }
  }
  // put(d, two): elements d and d + 1 of the head.
  template <class Put>
  __device__ __forceinline__ void store(const Put& put, int lane) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int quad = lane + i * 32;
      if (quad >= kQuads) break;
      put(low_word(quad) * 2, quads[i].low);
      put(high_word(quad) * 2, quads[i].high);
    }
  }
};

}  // namespace tl
