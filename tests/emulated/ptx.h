// The PTX instructions that kernels use, as functions: ptx.py turns asm statements into calls of them. A function has
// the instruction's name with every dot and colon replaced by an underscore; operands come in PTX's order, {...} as a
// group, [...] as an address.
// Each kernel is compiled with this header, so it includes no header of the standard library that takes long to parse.
#pragma once

#include <array>

#include "cuda.h"
#include "matrices.h"

namespace emulated::ptx {

// An output operand of an asm statement, as a register of its constraint's type.
template <class Register, class T>
Register& written(T& operand) {
  static_assert(sizeof(Register) == sizeof(T));
  return reinterpret_cast<Register&>(operand);
}

template <std::size_t kCount, class T>
using Group = std::array<T*, kCount>;

template <class T, class... More>
auto group(T& first, More&... more) {
  return Group<1 + sizeof...(More), T>{&first, &more...};
}

template <class Operands>
void together(const char* what, Operands& mine, void (*act)(void* const*)) {
  meet(what, &mine, act);
}

// Checks that all lanes of the warp execute an instruction together, although each lane acts alone.
inline void all_lanes(const char* what) { ballot(what, kAllLanes, false); }

// ---- registers

inline void mov_b32(Group<2, u16> halves, u32 word) {
  *halves[0] = static_cast<u16>(word);
  *halves[1] = static_cast<u16>(word >> 16);
}
inline void cvt_rni_s32_f32(u32& to, float x) { to = static_cast<u32>(static_cast<int>(std::nearbyint(x))); }
inline u32 saturated_byte(u32 whole) {
  return static_cast<u32>(std::max(-128, std::min(static_cast<int>(whole), 127))) & 0xff;
}
inline void cvt_pack_sat_s8_s32_b32(u32& to, u32 second, u32 first, u32 above) {
  to = above << 16 | saturated_byte(second) << 8 | saturated_byte(first);
}
inline void mov_u32(u32& to, u32 from) { to = from; }
inline void mov_u64(u64& to, u64 from) { to = from; }
inline void setp_ne_b32(bool& to, u32 a, u32 b) { to = a != b; }
inline void selp_u32(u32& to, u32 a, u32 b, bool first) { to = first ? a : b; }
inline void cvt_f32_f16(float& to, u16 bits) { to = to_float<true>(bits); }
inline void cvt_rn_f16x2_f32(u32& to, float high, float low) {
  to = static_cast<u32>(from_float<true>(high)) << 16 | from_float<true>(low);
}
inline void cvt_rn_bf16x2_f32(u32& to, float high, float low) {
  to = static_cast<u32>(from_float<false>(high)) << 16 | from_float<false>(low);
}
inline u16 to_e4m3(float x) {
  const u16 sign = x < 0 ? 0x80 : 0;
  const float size = std::min(std::fabs(x), 448.0f);
  if (size < 0x1p-6f) return sign | static_cast<u16>(std::nearbyint(size * 512));
  const int exponent = std::ilogb(size);
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // 8 to 16
  return static_cast<u16>(sign | ((exponent + 7) * 8 + eighths - 8));
}
inline void cvt_rn_satfinite_e4m3x2_f32(u16& to, float high, float low) {
  to = static_cast<u16>(to_e4m3(high) << 8 | to_e4m3(low));
}
inline void cvt_rn_f16x2_e4m3x2(u32& to, u16 bytes) {
  to = static_cast<u32>(from_float<true>(from_e4m3(bytes >> 8))) << 16 | from_float<true>(from_e4m3(bytes & 0xff));
}
inline void prmt_b32(u32& to, u32 low, u32 high, u32 selector) {
  const u64 bytes = static_cast<u64>(high) << 32 | low;
  u32 picked = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 which = selector >> 4 * i & 0xf;
    if (which > 7) fail("prmt with the selector 0x%x: sign replication is not supported", selector);
    picked |= static_cast<u32>(bytes >> 8 * which & 0xff) << 8 * i;
  }
  to = picked;
}
// Converts two elements, each rounded once.
template <bool kHalf, class Function>
u32 for_each_half(const Function& function) {
  const u32 low = from_float<kHalf>(function(0)), high = from_float<kHalf>(function(16));
  return high << 16 | low;
}
template <bool kHalf>
float element(u32 pair, int shift) {
  return to_float<kHalf>(static_cast<u16>(pair >> shift));
}
inline void sub_f16x2(u32& to, u32 a, u32 b) {
  to = for_each_half<true>([=](int at) { return element<true>(a, at) - element<true>(b, at); });
}
template <bool kHalf>
u32 multiply_add(u32 a, u32 b, u32 c) {
  return for_each_half<kHalf>(
      [=](int at) { return std::fma(element<kHalf>(a, at), element<kHalf>(b, at), element<kHalf>(c, at)); });
}
inline void fma_rn_f16x2(u32& to, u32 a, u32 b, u32 c) { to = multiply_add<true>(a, b, c); }
inline void fma_rn_bf16x2(u32& to, u32 a, u32 b, u32 c) { to = multiply_add<false>(a, b, c); }
inline void ex2_approx_ftz_f32(float& to, float x) { to = std::exp2(x); }
inline void rcp_approx_ftz_f32(float& to, float x) { to = 1.0f / x; }
inline u32 cluster_ctarank() { return rank_in_cluster(); }
inline u64 globaltimer() { return turns_so_far(); }  // one nanosecond per turn

// ---- instructions without an effect here

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared_cta() {}
inline void createpolicy_fractional_L2_evict_first_b64(u64& to, double) { to = 0; }
inline void createpolicy_fractional_L2_evict_normal_b64(u64& to, double) { to = 0; }
inline void prefetch_tensormap(u64) {}
inline void prefetch_global_L1(u64) {}
inline void setmaxnreg_dec_sync_aligned_u32(u32) { all_lanes("setmaxnreg.dec"); }
inline void setmaxnreg_inc_sync_aligned_u32(u32) { all_lanes("setmaxnreg.inc"); }

// ---- barriers

inline void bar_sync(u32 id) { barrier_sync(id, here->block_size.x); }
inline void bar_sync(u32 id, u32 threads) { barrier_sync(id, threads); }
inline void bar_arrive(u32 id, u32 threads) { barrier_arrive(id, threads); }
inline void barrier_cluster_arrive_relaxed_aligned() { cluster_arrive(); }
inline void barrier_cluster_arrive_release_aligned() { cluster_arrive(); }
inline void barrier_cluster_wait_acquire_aligned() { cluster_wait(); }
inline void mbarrier_init_shared_cta_b64(u32 address, u32 arrivals) { mbarrier_init(address, arrivals); }
inline void mbarrier_arrive_shared_cta_b64(u64&, u32 address) { mbarrier_arrive(address, 0); }
inline u64 unused;  // stands for the operand _ of an instruction
inline void mbarrier_arrive_shared_cluster_b64(u64&, u32 address) { mbarrier_arrive(address, 0); }
inline void mbarrier_arrive_expect_tx_shared_cta_b64(u64&, u32 address, u32 bytes) { mbarrier_arrive(address, bytes); }
inline void mbarrier_try_wait_parity_shared_cta_b64(bool& done, u32 address, u32 parity) {
  done = mbarrier_wait(address, parity);
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& done, u32 address, u32 parity) {
  done = mbarrier_wait(address, parity);
}
inline void mbarrier_test_wait_parity_shared_cta_b64(bool& done, u32 address, u32 parity) {
  done = mbarrier_wait(address, parity);
}
inline void elect_sync(bool& elected, u32 mask) {
  if (mask != kAllLanes) fail("elect.sync of lanes 0x%x: only whole warps are supported", mask);
  all_lanes("elect.sync");
  elected = here->thread.x % kLanes == 0;
}

// ---- shared memory

template <std::size_t kCount, class T>
void store_shared(u32 address, Group<kCount, T> from) {
  if (address % (4 * kCount) != 0) {
    fail("st.shared.v%zu at 0x%x, expected a multiple of the vector's size", kCount, address);
  }
  char* to = shared(address, 4 * kCount, "st.shared");
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(to + 4 * i, from[i], 4);
}
template <std::size_t kCount, class T>
void load_shared(Group<kCount, T> to, u32 address) {
  if (address % (4 * kCount) != 0) {
    fail("ld.shared.v%zu at 0x%x, expected a multiple of the vector's size", kCount, address);
  }
  const char* from = shared(address, 4 * kCount, "ld.shared");
  for (std::size_t i = 0; i < kCount; ++i) std::memcpy(to[i], from + 4 * i, 4);
}
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_f32(u32 target, float value, u32 barrier) {
  store_async(target, &value, 4, barrier);
}
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_v2_f32(u32 target, Group<2, const float> from,
                                                                      u32 barrier) {
  const float values[2] = {*from[0], *from[1]};
  store_async(target, values, 8, barrier);
}
inline void st_shared_v4_b32(u32 address, Group<4, const u32> from) { store_shared(address, from); }
inline void st_shared_v4_f32(u32 address, Group<4, const float> from) { store_shared(address, from); }
inline void st_shared_v2_b32(u32 address, Group<2, const u32> from) { store_shared(address, from); }
inline void ld_shared_v4_b32(Group<4, u32> to, u32 address) { load_shared(to, address); }
inline void st_shared_cluster_v4_f32(u32 address, Group<4, const float> from) { store_shared(address, from); }
inline void ld_shared_v4_f32(Group<4, float> to, u32 address) { load_shared(to, address); }
inline void ld_shared_v2_f32(Group<2, float> to, u32 address) { load_shared(to, address); }
inline void ld_shared_v2_b32(Group<2, u32> to, u32 address) { load_shared(to, address); }
inline void mapa_shared_cluster_u32(u32& to, u32 address, u32 rank) { to = map_to_block(address, rank); }
inline void ld_shared_f32(float& to, u32 address) { std::memcpy(&to, shared(address, 4, "ld.shared"), 4); }
inline void ld_shared_u16(u16& to, u32 address) { std::memcpy(&to, shared(address, 2, "ld.shared"), 2); }
inline void ld_shared_cluster_u32(u32& to, u32 address) { std::memcpy(&to, shared(address, 4, "ld.shared"), 4); }
inline void ld_shared_cluster_u64(u64& to, u32 address) { std::memcpy(&to, shared(address, 8, "ld.shared"), 8); }

// ---- memory that several GPUs access

inline void* global(u64 address) { return reinterpret_cast<void*>(address); }
inline void st_relaxed_sys_global_v4_u32(u64 address, Group<4, const u32> from) {
  if (address % 16 != 0) fail("st.relaxed.sys.v4 at 0x%llx, expected a multiple of 16", address);
  const u32 words[4] = {*from[0], *from[1], *from[2], *from[3]};
  store_words(global(address), words, 4, "st.relaxed.sys");
}
inline void ld_relaxed_sys_global_v4_u32(Group<4, u32> to, u64 address) {
  if (address % 16 != 0) fail("ld.relaxed.sys.v4 at 0x%llx, expected a multiple of 16", address);
  u32 words[4];
  load_words(words, global(address), 4, "ld.relaxed.sys");
  for (int i = 0; i < 4; ++i) *to[i] = words[i];
}
inline void st_release_sys_global_s32(u64 address, u32 value) {
  store_words(global(address), &value, 1, "st.release.sys");
}
inline void ld_acquire_sys_global_s32(u32& to, u64 address) { load_words(&to, global(address), 1, "ld.acquire.sys"); }
inline void ld_acquire_gpu_global_u32(u32& to, u64 address) {
  look();
  to = *static_cast<const u32*>(global(address));
}

// ---- copies

inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(u32 target, u64 source, u32 bytes,
                                                                           u32 barrier) {
  copy_bulk(target, global(source), bytes, barrier);
}
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(u32 target, u64 source,
                                                                                         u32 bytes, u32 barrier, u64) {
  copy_bulk(target, global(source), bytes, barrier);
}
inline void cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 target, u64 map, Group<2, const u32> place, u32 barrier, u64) {
  const auto& matrix = *static_cast<const Matrix*>(global(map));
  copy_box(target, matrix, static_cast<int>(*place[1]), static_cast<int>(*place[0]), barrier, 1u << rank_in_cluster());
}
inline void
cp_async_bulk_tensor_2d_shared_cluster_global_tile_mbarrier_complete_tx_bytes_multicast_cluster_L2_cache_hint(
    u32 target, u64 map, Group<2, const u32> place, u32 barrier, u16 blocks, u64) {
  const auto& matrix = *static_cast<const Matrix*>(global(map));
  copy_box(target, matrix, static_cast<int>(*place[1]), static_cast<int>(*place[0]), barrier, blocks);
}
inline void cp_async_cg_shared_global(u32 target, u64 source, u32 size, u32 bytes = 16) {
  if (size != 16) fail("cp.async.cg of %u bytes, expected 16", size);
  emulated::copy_async(target, global(source), bytes);
}
inline void cp_async_cg_shared_global_L2_cache_hint(u32 target, u64 source, u32 size, u64) {
  cp_async_cg_shared_global(target, source, size);
}
inline void cp_async_commit_group() { copy_commit(); }
inline void cp_async_wait_group(u32 groups) { copy_wait(groups); }
inline void cp_async_mbarrier_arrive_noinc_shared_cta_b64(u32 barrier) { copy_arrive(barrier); }

// ---- tensor cores

template <int kMatrices, bool kTransposed>
void load_matrix(const char* what, Group<kMatrices, u32> to, u32 address) {
  LoadOperands mine{{}, address};
  for (int i = 0; i < kMatrices; ++i) mine.results[i] = to[i];
  together(what, mine, load_matrices<kMatrices, kTransposed>);
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(Group<4, u32> to, u32 address) {
  load_matrix<4, false>("ldmatrix.x4", to, address);
}
inline void ldmatrix_sync_aligned_m8n8_x2_shared_b16(Group<2, u32> to, u32 address) {
  load_matrix<2, false>("ldmatrix.x2", to, address);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(Group<4, u32> to, u32 address) {
  load_matrix<4, true>("ldmatrix.x4.trans", to, address);
}
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 address, Group<4, const u32> from) {
  StoreOperands mine{{*from[0], *from[1], *from[2], *from[3]}, address};
  together("stmatrix.x4", mine, store_matrices);
}
inline void movmatrix_sync_aligned_m8n8_trans_b16(u32& to, u32 from) {
  MatrixWord mine{from, 0};
  together("movmatrix", mine, transpose_matrix);
  to = mine.to;
}

template <bool kHalf>
void mma(Group<4, float> d, Group<4, const u32> a, Group<2, const u32> b, Group<4, float> c) {
  if (d != c) fail("mma.sync: expected c and d in the same registers");
  MmaOperands mine{{d[0], d[1], d[2], d[3]}, {*a[0], *a[1], *a[2], *a[3]}, {*b[0], *b[1]}};
  together("mma.sync", mine, multiply_m16n8k16<kHalf>);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(Group<4, float> d, Group<4, const u32> a,
                                                                Group<2, const u32> b, Group<4, float> c) {
  mma<false>(d, a, b, c);
}
inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(Group<4, float> d, Group<4, const u32> a,
                                                              Group<2, const u32> b, Group<4, float> c) {
  mma<true>(d, a, b, c);
}

inline void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(Group<4, float> d, Group<4, const u32> a,
                                                               Group<2, const u32> b, Group<4, float> c) {
  if (d != c) fail("mma.sync: expected c and d in the same registers");
  MmaOperands mine{{d[0], d[1], d[2], d[3]}, {*a[0], *a[1], *a[2], *a[3]}, {*b[0], *b[1]}};
  together("mma.sync.tf32", mine, multiply_m16n8k8);
}

// Computed as two products of 16-bit elements, as Hopper's tensor cores do: one with the low two bytes of each
// register, one with the high two.
inline void mma_sync_aligned_m16n8k32_row_col_f32_e4m3_e4m3_f32(Group<4, float> d, Group<4, const u32> a,
                                                                Group<2, const u32> b, Group<4, float> c) {
  for (int shift = 0; shift < 32; shift += 16) {
    u32 wide_a[4], wide_b[2];
    for (int i = 0; i < 4; ++i) cvt_rn_f16x2_e4m3x2(wide_a[i], static_cast<u16>(*a[i] >> shift));
    for (int i = 0; i < 2; ++i) cvt_rn_f16x2_e4m3x2(wide_b[i], static_cast<u16>(*b[i] >> shift));
    mma<true>(d, {&wide_a[0], &wide_a[1], &wide_a[2], &wide_a[3]}, {&wide_b[0], &wide_b[1]}, c);
  }
}

// Integers of eight bits are converted to float16; a sum of 32 of their products is exact in float32.
inline u32 convert_int8x2(u32 bytes) {
  const auto element = [](u32 byte) { return static_cast<u32>(from_float<true>(static_cast<signed char>(byte))); };
  return element(bytes >> 8 & 0xff) << 16 | element(bytes & 0xff);
}
inline void mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(Group<4, u32> d, Group<4, const u32> a,
                                                            Group<2, const u32> b, Group<4, u32> c) {
  if (d != c) fail("mma.sync: expected c and d in the same registers");
  float part[4] = {};
  const Group<4, float> sums{&part[0], &part[1], &part[2], &part[3]};
  for (int shift = 0; shift < 32; shift += 16) {
    u32 wide_a[4], wide_b[2];
    for (int i = 0; i < 4; ++i) wide_a[i] = convert_int8x2(*a[i] >> shift);
    for (int i = 0; i < 2; ++i) wide_b[i] = convert_int8x2(*b[i] >> shift);
    mma<true>(sums, {&wide_a[0], &wide_a[1], &wide_a[2], &wide_a[3]}, {&wide_b[0], &wide_b[1]}, sums);
  }
  for (int i = 0; i < 4; ++i) *d[i] += static_cast<u32>(static_cast<int>(part[i]));
}

template <Element kElement, int kColumns>
void wgmma(WgmmaOperands& mine, int scale_a, int scale_b) {
  if (scale_a != 1 || scale_b != 1)
    fail("wgmma: expected scales of 1 for both operands, found %d and %d", scale_a, scale_b);
  together("wgmma.mma_async", mine, [](void* const* lanes) { issue_wgmma<kElement>(kColumns, lanes); });
}
template <Element kElement, int kColumns>
void wgmma_of(Group<kColumns / 2, float> d, u64 a, u64 b, bool accumulate, int scale_a, int scale_b, bool transposed_a,
              bool transposed_b) {
  WgmmaOperands mine{d.data(), {}, a, b, false, accumulate, transposed_a, transposed_b};
  wgmma<kElement, kColumns>(mine, scale_a, scale_b);
}
template <Element kElement, int kColumns>
void wgmma_of(Group<kColumns / 2, float> d, Group<4, const u32> a, u64 b, bool accumulate, int scale_a, int scale_b,
              bool transposed_b) {
  WgmmaOperands mine{d.data(), {*a[0], *a[1], *a[2], *a[3]}, 0, b, true, accumulate, false, transposed_b};
  wgmma<kElement, kColumns>(mine, scale_a, scale_b);
}
// m64nNk16 and m64nNk32: N is a template argument.
template <int kColumns, class... Operands>
void wgmma_mma_async_sync_aligned_m64k16_f32_bf16_bf16(Operands... operands) {
  wgmma_of<Element::kBFloat16, kColumns>(operands...);
}
template <int kColumns, class... Operands>
void wgmma_mma_async_sync_aligned_m64k16_f32_f16_f16(Operands... operands) {
  wgmma_of<Element::kHalf, kColumns>(operands...);
}
// A is in registers or at a descriptor; the bytes of both operands are contiguous along K.
template <int kColumns>
void wgmma_mma_async_sync_aligned_m64k32_f32_e4m3_e4m3(Group<kColumns / 2, float> d, Group<4, const u32> a, u64 b,
                                                       bool accumulate, int scale_a, int scale_b) {
  wgmma_of<Element::kE4m3, kColumns>(d, a, b, accumulate, scale_a, scale_b, false);
}
template <int kColumns>
void wgmma_mma_async_sync_aligned_m64k32_f32_e4m3_e4m3(Group<kColumns / 2, float> d, u64 a, u64 b, bool accumulate,
                                                       int scale_a, int scale_b) {
  wgmma_of<Element::kE4m3, kColumns>(d, a, b, accumulate, scale_a, scale_b, false, false);
}
// Integer accumulators are kept in the same registers as float32.
template <std::size_t kCount>
Group<kCount, float> registers_of(const Group<kCount, u32>& integers) {
  Group<kCount, float> registers;
  for (std::size_t i = 0; i < kCount; ++i) registers[i] = reinterpret_cast<float*>(integers[i]);
  return registers;
}
template <int kColumns>
void wgmma_mma_async_sync_aligned_m64k32_s32_s8_s8(Group<kColumns / 2, u32> d, Group<4, const u32> a, u64 b,
                                                   bool accumulate) {
  wgmma_of<Element::kInt8, kColumns>(registers_of(d), a, b, accumulate, 1, 1, false);
}
template <int kColumns>
void wgmma_mma_async_sync_aligned_m64k32_s32_s8_s8(Group<kColumns / 2, u32> d, u64 a, u64 b, bool accumulate) {
  wgmma_of<Element::kInt8, kColumns>(registers_of(d), a, b, accumulate, 1, 1, false, false);
}
inline void wgmma_fence_sync_aligned() { all_lanes("wgmma.fence"); }
inline void wgmma_commit_group_sync_aligned() {
  u32 none = 0;
  together("wgmma.commit_group", none, [](void* const*) { issue_commit(); });
}
inline void wgmma_wait_group_sync_aligned(u32 groups) {
  together("wgmma.wait_group", groups, [](void* const* lanes) { issue_wait(*static_cast<const u32*>(lanes[0])); });
}

}  // namespace emulated::ptx

namespace emulated {

template <class T>
T* dynamic_shared(std::size_t alignment) {
  if (alignment > 1024) fail("dynamic shared memory aligned to %zu bytes, expected at most 1024", alignment);
  return reinterpret_cast<T*>(dynamic_shared_begin());
}

// Calls a kernel; `arguments` has a pointer to each argument.
template <class... Parameters>
void call(void (*kernel)(Parameters...), void* const* arguments) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    kernel(*static_cast<std::remove_const_t<Parameters>*>(arguments[kIndex])...);
  }(std::index_sequence_for<Parameters...>());
}

}  // namespace emulated
