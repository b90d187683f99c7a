#include "matrices.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

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

// A fragment of a 16x16 matrix, of which each lane holds four words.
template <bool kHalf, int kDepth>
void put_a(float (&matrix)[16][kDepth], int lane, const u32 (&words)[4]) {
  for (int i = 0; i < 4; ++i) unpack<kHalf>(words[i], &matrix[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8]);
}

// A matrix descriptor of wgmma. `k` numbers the 16 elements that are multiplied, `other` the operand's rows of A or
// columns of B. Strides as in "Strides" of "Asynchronous Warpgroup Level Matrix Shared Memory Layout".
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
      fail("wgmma: descriptor 0x%llx, of which only the 128-byte swizzle or none and base offset 0 are supported",
           bits);
    }
  }
  u32 address(int k, int other) const {
    // Of a submatrix of 8 rows: `row` chooses the row, `column` the element in it.
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

constexpr int kMaxDepth = 32;  // elements of 32 bytes

template <Element kElement>
constexpr bool kBytes = kElement == Element::kE4m3 || kElement == Element::kInt8;

// The sixteen bytes of a piece as 8 or 16 elements.
template <Element kElement>
void widen(const u16 (&bits)[8], float (&elements)[16]) {
  for (int i = 0; i < 8; ++i) {
    if constexpr (kElement == Element::kE4m3) {
      elements[2 * i] = e4m3_to_float(bits[i] & 0xff);
      elements[2 * i + 1] = e4m3_to_float(bits[i] >> 8);
    } else if constexpr (kElement == Element::kInt8) {
      elements[2 * i] = static_cast<signed char>(bits[i] & 0xff);
      elements[2 * i + 1] = static_cast<signed char>(bits[i] >> 8);
    } else {
      elements[i] = to_float<kElement == Element::kFloat16>(bits[i]);
    }
  }
}

// Rows of A or columns of B from `first` on, `count` of them; the elements of 16 bytes lie side by side.
template <Element kElement>
void load(const Descriptor& matrix, int first, int count, float (*to)[kMaxDepth]) {
  constexpr int kSide = kBytes<kElement> ? 16 : 8;
  for (int piece = 0; piece < count * 2; ++piece) {
    const int k = matrix.transposed ? piece % 16 : piece % 2 * 8;
    const int other = matrix.transposed ? piece / 16 * 8 : piece / 2;
    u16 bits[8];
    std::memcpy(bits, shared(matrix.address(k, first + other), 16, "wgmma"), 16);
    float elements[16];
    widen<kElement>(bits, elements);
    for (int i = 0; i < kSide; ++i) {
      (matrix.transposed ? to[other + i][k] : to[other][k / 8 * kSide + i]) = elements[i];
    }
  }
}

struct WgmmaLane {
  std::vector<float*> d;
  u32 a[4];
};

struct Wgmma {
  int columns, first_row;
  u64 a_matrix, b_matrix;
  bool in_registers, a_transposed, b_transposed;
  std::vector<float> d;  // [lanes][columns / 2] before the product
  WgmmaLane lanes[kLanes];
};

template <Element kElement>
void run(const Wgmma& product) {
  constexpr int kDepth = kBytes<kElement> ? 32 : 16;
  float a[16][kMaxDepth];
  if (product.in_registers) {
    for (int lane = 0; lane < kLanes; ++lane) put_a<kElement == Element::kFloat16>(a, lane, product.lanes[lane].a);
  } else {
    const Descriptor matrix(product.a_matrix, product.a_transposed);
    load<kElement>(matrix, product.first_row, 16, a);
  }
  float b[kMaxColumns][kMaxDepth];
  load<kElement>(Descriptor(product.b_matrix, product.b_transposed), 0, product.columns, b);
  const int per_lane = product.columns / 2;
  for (int n = 0; n < product.columns; ++n) {
    for (int row = 0; row < 16; ++row) {
      const int lane = row % 8 * 4 + n % 8 / 2, i = n / 8 * 4 + row / 8 * 2 + n % 2;
      const float before = product.d[lane * per_lane + i];
      float sum = kElement == Element::kInt8 ? static_cast<float>(std::bit_cast<int>(before)) : before;
      for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[n][k];
      if (kElement == Element::kInt8) sum = std::bit_cast<float>(static_cast<int>(sum));
      *product.lanes[lane].d[i] = sum;
    }
  }
}

}  // namespace

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

float e4m3_to_float(u16 bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return bits & 0x80 ? -size : size;
}

template <>
float to_float<true>(u16 bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
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
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const float* row = a[lane / 4 + i / 2 * 8];
      const float* column = b[lane % 4 * 2 + i % 2];
      float sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
      *of<MmaOperands>(lanes, lane).c[i] += sum;
    }
  }
}

template <int kMatrices, bool kTransposed>
void load_matrices(void* const* lanes) {
  for (int m = 0; m < kMatrices; ++m) {
    u16 matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const u32 address = of<LoadOperands>(lanes, m * 8 + row).address;
      if (address % 16 != 0) fail("ldmatrix: a row at 0x%x", address);
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
  product.first_row = static_cast<int>(here->thread.x) / kLanes % 4 * 16;
  product.a_matrix = first.a_matrix;
  product.b_matrix = first.b_matrix;
  product.in_registers = first.in_registers;
  product.a_transposed = first.a_transposed;
  product.b_transposed = first.b_transposed;
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& mine = of<WgmmaOperands>(lanes, lane);
    if (mine.a_matrix != first.a_matrix || mine.b_matrix != first.b_matrix || mine.accumulate != first.accumulate) {
      fail("wgmma: lanes of a warp have different descriptors");
    }
    product.lanes[lane].d.assign(mine.d, mine.d + columns / 2);
    std::memcpy(product.lanes[lane].a, mine.a, sizeof mine.a);
  }
  issue([product = std::move(product), accumulate = first.accumulate]() mutable {
    for (const WgmmaLane& lane : product.lanes) {
      for (float* d : lane.d) product.d.push_back(accumulate ? *d : 0.0f);
    }
    run<kElement>(product);
  });
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
template void issue_wgmma<Element::kFloat16>(int, void* const*);
template void issue_wgmma<Element::kE4m3>(int, void* const*);
template void issue_wgmma<Element::kInt8>(int, void* const*);

}  // namespace emulated
