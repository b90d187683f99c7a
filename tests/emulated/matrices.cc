#include "matrices.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "state.h"

namespace emulated {
namespace {

constexpr int kMaxColumns = 256;

template <class Operands>
Operands& of(void* const* lanes, int lane) {
  return *static_cast<Operands*>(lanes[lane]);
}

template <bool kHalf>
void unpack(u32 word, float* two) {
  two[0] = to_float<kHalf>(static_cast<u16>(word));
  two[1] = to_float<kHalf>(static_cast<u16>(word >> 16));
}

// Writes a lane's four words of a fragment of a 16x16 matrix.
template <bool kHalf>
void put_a(float (&matrix)[16][16], int lane, const u32 (&words)[4]) {
  for (int i = 0; i < 4; ++i) unpack<kHalf>(words[i], &matrix[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8]);
}

// Adds a column's products to the sums of 16 rows side by side, so that the compiler vectorizes the loop. Each sum is
// in the order of `k`. a[k] has the elements of all rows.
template <int kDepth, class Rows>
void add_products(float (&sums)[16], const Rows& a, const float* b) {
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < 16; ++row) sums[row] += a[k][row] * b[k];
  }
}

// A matrix descriptor of wgmma. `k` numbers the 16 elements along the depth, `other` the rows of A or the columns of B.
// Strides as in "Strides" of "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
struct Descriptor {
  u32 start, leading, stride;
  bool swizzled, transposed;

  Descriptor(u64 bits, bool transposed)
      : start((bits & 0x3fff) << 4),
        leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4),
        swizzled(bits >> 62 == 1),
        transposed(transposed) {
    if (bits >> 62 > 1 || (bits >> 49 & 7) != 0) {
      fail("wgmma: descriptor 0x%llx, expected the 128-byte swizzle or none, and base offset 0", bits);
    }
  }
  u32 address(int k, int other) const {
    // The place within a submatrix of 8 rows: `row` is the index of the row, `column` that of the element in the row.
    const int row = transposed ? k % 8 : other % 8;
    if (!swizzled) {
      const int column = transposed ? other % 8 : k % 8;
      return start + k / 8 * leading + other / 8 * stride + row * 16 + column * 2;
    }
    const u32 at = transposed ? start + other / 64 * leading + k / 8 * stride + row * 128 + other % 64 * 2
                              : start + other / 8 * stride + row * 128 + k * 2;
    return at ^ (at >> 7 & 7) << 4;
  }
};

constexpr int kRowBytes = 32;  // bytes of each row of A and each column of B that one instruction multiplies

template <Element kElement>
struct Numbers {
  static constexpr int kBytes = kElement == Element::kE4m3 || kElement == Element::kInt8 ? 1 : 2;
  static constexpr int kCount = kRowBytes / kBytes;

  static float at(const char* bytes) {
    u16 bits = 0;
    std::memcpy(&bits, bytes, kBytes);
    if (kElement == Element::kE4m3) return from_e4m3(bits);
    if (kElement == Element::kInt8) return static_cast<float>(static_cast<signed char>(bits));
    return to_float<kElement == Element::kHalf>(bits);
  }
};

// Reads `count` rows of A or columns of B, beginning with `first`; their 16-byte pieces lie side by side.
template <Element kElement>
void load(const Descriptor& matrix, int first, int count, float (*to)[kRowBytes]) {
  using Number = Numbers<kElement>;
  constexpr int kPiece = 16 / Number::kBytes;
  if (matrix.transposed && Number::kBytes == 1) fail("wgmma: expected 8-bit operands that are contiguous along K");
  for (int piece = 0; piece < count * 2; ++piece) {
    const int k = matrix.transposed ? piece % 16 : piece % 2 * kPiece;
    const int other = matrix.transposed ? piece / 16 * 8 : piece / 2;
    char bytes[16];
    std::memcpy(bytes, shared(matrix.address(k * Number::kBytes / 2, first + other), 16, "wgmma"), 16);
    for (int i = 0; i < kPiece; ++i) {
      (matrix.transposed ? to[other + i][k] : to[other][k + i]) = Number::at(bytes + i * Number::kBytes);
    }
  }
}

struct Wgmma {
  int columns, first_row;
  u64 a_matrix, b_matrix;
  bool in_registers, accumulate, a_transposed, b_transposed;
  std::vector<float*> d;  // [lanes][columns / 2]
  u32 a[kLanes][4];
};

template <Element kElement>
void run(const Wgmma& product) {
  using Number = Numbers<kElement>;
  float a[16][kRowBytes];
  if (product.in_registers) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int byte = 0; byte < 16; byte += Number::kBytes) {
        const int word = byte / 4, k = (lane % 4 * 4 + byte % 4 + word / 2 * 16) / Number::kBytes;
        const char* from = reinterpret_cast<const char*>(product.a[lane]) + byte;
        a[lane / 4 + word % 2 * 8][k] = Number::at(from);
      }
    }
  } else {
    const Descriptor matrix(product.a_matrix, product.a_transposed);
    load<kElement>(matrix, product.first_row, 16, a);
  }
  float b[kMaxColumns][kRowBytes];
  load<kElement>(Descriptor(product.b_matrix, product.b_transposed), 0, product.columns, b);
  float of_rows[kRowBytes][16];
  for (int k = 0; k < Number::kCount; ++k) {
    for (int row = 0; row < 16; ++row) of_rows[k][row] = a[row][k];
  }
  const int per_lane = product.columns / 2;
  for (int n = 0; n < product.columns; ++n) {
    float *d[16], before[16], sums[16];
    for (int row = 0; row < 16; ++row) {
      const int lane = row % 8 * 4 + n % 8 / 2, i = n / 8 * 4 + row / 8 * 2 + n % 2;
      d[row] = product.d[lane * per_lane + i];
      before[row] = product.accumulate ? *d[row] : 0.0f;
      sums[row] = kElement == Element::kInt8 ? 0.0f : before[row];
    }
    add_products<Number::kCount>(sums, of_rows, b[n]);
    for (int row = 0; row < 16; ++row) {
      // A sum of 32 products of int8 is exact in float32.
      const int whole = std::bit_cast<int>(before[row]) + static_cast<int>(kElement == Element::kInt8 ? sums[row] : 0);
      *d[row] = kElement == Element::kInt8 ? std::bit_cast<float>(whole) : sums[row];
    }
  }
}

}  // namespace

namespace {

float computed_from_e4m3(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return bits & 0x80 ? -size : size;
}

// The value of each E4M3 code: the host's processor may have no instruction that converts it.
const auto kOfE4m3 = [] {
  std::array<float, 256> values;
  for (int bits = 0; bits < 256; ++bits) values[bits] = computed_from_e4m3(bits);
  return values;
}();
const auto kOfHalf = [] {
  std::vector<float> values(1 << 16);
  for (int bits = 0; bits < 1 << 16; ++bits) {
    values[bits] = static_cast<float>(std::bit_cast<_Float16>(static_cast<u16>(bits)));
  }
  return values;
}();

}  // namespace

float from_e4m3(u16 bits) { return kOfE4m3[bits & 0xff]; }

template <>
float to_float<false>(u16 bits) {
  return std::bit_cast<float>(static_cast<u32>(bits) << 16);
}

template <>
u16 from_float<false>(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <>
float to_float<true>(u16 bits) {
  return kOfHalf[bits];
}

template <>
u16 from_float<true>(float value) {
  return std::bit_cast<u16>(static_cast<_Float16>(value));
}

template <bool kHalf>
void multiply_m16n8k16(void* const* lanes) {
  float a[16][16], b[8][16];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = of<MmaOperands>(lanes, lane);
    put_a<kHalf>(a, lane, mine.a);
    for (int i = 0; i < 2; ++i) unpack<kHalf>(mine.b[i], &b[lane / 4][lane % 4 * 2 + i * 8]);
  }
  float of_rows[16][16];
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 16; ++row) of_rows[k][row] = a[row][k];
  }
  for (int n = 0; n < 8; ++n) {
    float sums[16] = {};
    add_products<16>(sums, of_rows, b[n]);
    for (int row = 0; row < 16; ++row) {
      *of<MmaOperands>(lanes, row % 8 * 4 + n / 2).c[row / 8 * 2 + n % 2] += sums[row];
    }
  }
}

void multiply_m16n8k8(void* const* lanes) {
  constexpr u32 kBits = 0xffffe000;  // those of a float32 that TF32 has
  float a[8][16], b[8][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = of<MmaOperands>(lanes, lane);
    for (int i = 0; i < 4; ++i) a[lane % 4 + i / 2 * 4][lane / 4 + i % 2 * 8] = std::bit_cast<float>(mine.a[i] & kBits);
    for (int i = 0; i < 2; ++i) b[lane / 4][lane % 4 + i * 4] = std::bit_cast<float>(mine.b[i] & kBits);
  }
  for (int n = 0; n < 8; ++n) {
    float sums[16] = {};
    add_products<8>(sums, a, b[n]);
    for (int row = 0; row < 16; ++row) {
      *of<MmaOperands>(lanes, row % 8 * 4 + n / 2).c[row / 8 * 2 + n % 2] += sums[row];
    }
  }
}

template <int kMatrices, bool kTransposed>
void load_matrices(void* const* lanes) {
  for (int m = 0; m < kMatrices; ++m) {
    u16 matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const u32 address = of<LoadOperands>(lanes, m * 8 + row).address;
      if (address % 16 != 0) fail("ldmatrix: a row at 0x%x, expected a multiple of 16", address);
      std::memcpy(matrix[row], shared(address, 16, "ldmatrix"), 16);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4, pair = lane % 4 * 2;
      const u32 low = kTransposed ? matrix[pair][row] : matrix[row][pair];
      const u32 high = kTransposed ? matrix[pair + 1][row] : matrix[row][pair + 1];
      *of<LoadOperands>(lanes, lane).results[m] = low | high << 16;
    }
  }
}

void store_matrices(void* const* lanes) {
  for (int m = 0; m < 4; ++m) {
    for (int row = 0; row < 8; ++row) {
      const u32 address = of<StoreOperands>(lanes, m * 8 + row).address;
      if (address % 16 != 0) fail("stmatrix: a row at 0x%x, expected a multiple of 16", address);
      u32 words[4];
      for (int pair = 0; pair < 4; ++pair) words[pair] = of<StoreOperands>(lanes, row * 4 + pair).words[m];
      std::memcpy(shared(address, 16, "stmatrix"), words, 16);
    }
  }
}

void transpose_matrix(void* const* lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& mine = of<MatrixWord>(lanes, lane);
    mine.to = 0;
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i, column = lane / 4;
      const u32 word = of<MatrixWord>(lanes, row * 4 + column / 2).from;
      mine.to |= (word >> column % 2 * 16 & 0xffff) << i * 16;
    }
  }
}

template <Element kElement>
void issue_wgmma(int columns, void* const* lanes) {
  const auto& first = of<WgmmaOperands>(lanes, 0);
  Wgmma product;
  product.columns = columns;
  product.d.reserve(kLanes * columns / 2);
  product.first_row = static_cast<int>(here->thread.x) / kLanes % 4 * 16;
  product.a_matrix = first.a_matrix;
  product.b_matrix = first.b_matrix;
  product.in_registers = first.in_registers;
  product.accumulate = first.accumulate;
  product.a_transposed = first.a_transposed;
  product.b_transposed = first.b_transposed;
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& mine = of<WgmmaOperands>(lanes, lane);
    if (mine.a_matrix != first.a_matrix || mine.b_matrix != first.b_matrix || mine.accumulate != first.accumulate) {
      fail("wgmma: lanes of a warp have different descriptors");
    }
    product.d.insert(product.d.end(), mine.d, mine.d + columns / 2);
    std::memcpy(product.a[lane], mine.a, sizeof mine.a);
  }
  issue([product = std::move(product)] { run<kElement>(product); });
}

template void multiply_m16n8k16<false>(void* const*);
template void multiply_m16n8k16<true>(void* const*);
template void load_matrices<1, false>(void* const*);
template void load_matrices<2, false>(void* const*);
template void load_matrices<4, false>(void* const*);
template void load_matrices<1, true>(void* const*);
template void load_matrices<2, true>(void* const*);
template void load_matrices<4, true>(void* const*);
template void issue_wgmma<Element::kBFloat16>(int, void* const*);
template void issue_wgmma<Element::kHalf>(int, void* const*);
template void issue_wgmma<Element::kE4m3>(int, void* const*);
template void issue_wgmma<Element::kInt8>(int, void* const*);

}  // namespace emulated
