// The part of CUDA C++ that kernels use, for the host's compiler.
#pragma once

#include <version>
// Kernels call no special mathematical functions (Bessel's, Riemann's), whose header in libstdc++ takes longer to read
// than all others.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <bit>
#include <cmath>
#include <cstring>

#include "machine.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (emulated::here->thread)
#define blockIdx (emulated::here->block)
#define blockDim (emulated::here->block_size)
#define gridDim (emulated::here->grid_size)

struct int2 {
  int x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::isinf;

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline int __clz(unsigned bits) { return std::countl_zero(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __expf(float x) { return std::exp(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline unsigned long long __float2ull_rn(float x) { return static_cast<unsigned long long>(std::nearbyint(x)); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i) picked |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return picked;
}
inline unsigned long long __cvta_generic_to_global(const void* pointer) {
  return reinterpret_cast<unsigned long long>(pointer);
}
inline unsigned long long __cvta_generic_to_shared(const void* pointer) { return emulated::shared_address(pointer); }

// Blocks run one instruction at a time, so every access is atomic; other threads may run before it.
template <class T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  emulated::pause();
  const T before = *target;
  *target = before + value;
  return before;
}
inline unsigned atomicOr(unsigned* target, unsigned bits) {
  emulated::pause();
  const unsigned before = *target;
  *target = before | bits;
  return before;
}

namespace emulated {

// The variable of this block that one `__shared__ float name[n];` declares; each declaration has its own type `Tag`.
template <class Variable, class Tag>
Variable& static_shared(const Tag&) {
  static const char tag = 0;
  return *reinterpret_cast<Variable*>(static_shared(&tag, sizeof(Variable), alignof(Variable)));
}

}  // namespace emulated

inline void __threadfence() { emulated::pause(); }
inline void __threadfence_system() { emulated::pause(); }
inline void __syncthreads() { emulated::barrier_sync(0, emulated::here->block_size.x); }

namespace emulated {

template <class T>
struct Exchange {
  T value, result;
  unsigned source;
};

// Gives lane i the value of the lane that it reads; `Source` maps a lane and its argument to that lane.
template <class T, class Source>
T exchange(const char* what, unsigned mask, T value, unsigned argument, const Source&) {
  if (mask != kAllLanes) fail("%s of lanes 0x%x: only whole warps are supported", what, mask);
  Exchange<T> mine{value, {}, argument};
  meet(what, &mine, [](void* const* lanes) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      auto& to = *static_cast<Exchange<T>*>(lanes[lane]);
      const unsigned from = Source{}(lane, to.source);
      to.result = static_cast<Exchange<T>*>(lanes[from < kLanes ? from : lane])->value;
    }
  });
  return mine.result;
}

template <class Combine>
unsigned reduce(const char* what, unsigned mask, unsigned value, const Combine&) {
  if (mask != kAllLanes) fail("%s of lanes 0x%x: only whole warps are supported", what, mask);
  meet(what, &value, [](void* const* lanes) {
    unsigned all = *static_cast<unsigned*>(lanes[0]);
    for (unsigned lane = 1; lane < kLanes; ++lane) all = Combine{}(all, *static_cast<unsigned*>(lanes[lane]));
    for (unsigned lane = 0; lane < kLanes; ++lane) *static_cast<unsigned*>(lanes[lane]) = all;
  });
  return value;
}

inline unsigned ballot(const char* what, unsigned mask, bool value) {
  if (mask != kAllLanes) fail("%s of lanes 0x%x: only whole warps are supported", what, mask);
  unsigned mine = value;
  meet(what, &mine, [](void* const* lanes) {
    unsigned all = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) all |= *static_cast<unsigned*>(lanes[lane]) << lane;
    for (unsigned lane = 0; lane < kLanes; ++lane) *static_cast<unsigned*>(lanes[lane]) = all;
  });
  return mine;
}

}  // namespace emulated

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  const auto from = [](unsigned, unsigned argument) { return argument % emulated::kLanes; };
  return emulated::exchange("shfl.idx", mask, value, source, from);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  const auto from = [](unsigned lane, unsigned argument) { return lane ^ argument; };
  return emulated::exchange("shfl.bfly", mask, value, bits, from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  const auto from = [](unsigned lane, unsigned argument) { return lane - argument; };  // below 0: keeps its own value
  return emulated::exchange("shfl.up", mask, value, distance, from);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  const auto from = [](unsigned lane, unsigned argument) { return lane + argument; };
  return emulated::exchange("shfl.down", mask, value, distance, from);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  const auto larger = [](unsigned a, unsigned b) { return a > b ? a : b; };
  return emulated::reduce("redux.max", mask, value, larger);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  const auto smaller = [](unsigned a, unsigned b) { return a < b ? a : b; };
  return emulated::reduce("redux.min", mask, value, smaller);
}
// Returns the mask of the lanes that have the same value as this lane.
inline unsigned __match_any_sync(unsigned mask, int value) {
  if (mask != emulated::kAllLanes) emulated::fail("match.any of lanes 0x%x: only whole warps are supported", mask);
  struct Match {
    int value;
    unsigned lanes;
  } mine{value, 0};
  emulated::meet("match.any", &mine, [](void* const* lanes) {
    for (unsigned to = 0; to < emulated::kLanes; ++to) {
      for (unsigned lane = 0; lane < emulated::kLanes; ++lane) {
        const bool is_equal = static_cast<Match*>(lanes[to])->value == static_cast<Match*>(lanes[lane])->value;
        static_cast<Match*>(lanes[to])->lanes |= static_cast<unsigned>(is_equal) << lane;
      }
    }
  });
  return mine.lanes;
}
inline unsigned __ballot_sync(unsigned mask, bool value) { return emulated::ballot("vote.ballot", mask, value); }
inline bool __any_sync(unsigned mask, bool value) { return emulated::ballot("vote.any", mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) {
  return emulated::ballot("vote.all", mask, value) == emulated::kAllLanes;
}
inline void __syncwarp(unsigned mask = emulated::kAllLanes) { emulated::ballot("bar.warp", mask, false); }
