#include "engine/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#if defined(__clang__)  // Clang treats the instructions as a feature of their own
#define TL_CRC_TARGET [[gnu::target("sse4.2,crc32")]]
#else
#define TL_CRC_TARGET [[gnu::target("sse4.2")]]
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define TL_CRC_TARGET [[gnu::target("+crc")]]
#endif

namespace tl {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bit-reversed

// table[k][b]: the remainder of byte b followed by k zero bytes ("slicing-by-8").
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}();

// Loads eight bytes as a little-endian number on any machine; on a little-endian one, compilers emit a single load.
std::uint64_t load_little_endian(const unsigned char* p) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= std::uint64_t{p[i]} << (8 * i);
  return word;
}

std::uint32_t crc_portable(std::uint32_t crc, const unsigned char* p, std::size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    const std::uint64_t word = load_little_endian(p) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; size > 0; ++p, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
  return crc;
}

// a * b modulo the polynomial, in reversed bit order: bit 31 is the coefficient of x^0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 0; bit < 32; ++bit) {
    product ^= b & (0u - (a >> 31));
    a <<= 1;
    b = (b >> 1) ^ (kPolynomial & (0u - (b & 1)));
  }
  return product;
}

// x^(8 * num_bytes). Multiplying a remainder by it appends num_bytes zero bytes.
constexpr std::uint32_t shift_by(std::size_t num_bytes) {
  std::uint32_t power = 0x80000000;   // x^0
  std::uint32_t square = 0x00800000;  // x^8
  for (; num_bytes > 0; num_bytes >>= 1) {
    if (num_bytes & 1) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

#ifdef TL_CRC_TARGET
TL_CRC_TARGET inline std::uint32_t step8(std::uint32_t crc, const unsigned char* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof(word));
#if defined(__x86_64__)
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
#else
  return __crc32cd(crc, word);
#endif
}

TL_CRC_TARGET inline std::uint32_t step1(std::uint32_t crc, unsigned char byte) {
#if defined(__x86_64__)
  return _mm_crc32_u8(crc, byte);
#else
  return __crc32cb(crc, byte);
#endif
}

// The instruction has a latency of 3 cycles and a throughput of 1, so three streams are computed at once and combined
// by shifting. Consumes whole triples of streams.
template <std::size_t kStream>
TL_CRC_TARGET inline std::uint32_t crc_streams(std::uint32_t crc, const unsigned char*& p, std::size_t& size) {
  constexpr std::uint32_t kShift = shift_by(kStream);
  for (; size >= 3 * kStream; p += 3 * kStream, size -= 3 * kStream) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      crc = step8(crc, p + i);
      second = step8(second, p + kStream + i);
      third = step8(third, p + 2 * kStream + i);
    }
    crc = multiply(multiply(crc, kShift) ^ second, kShift) ^ third;
  }
  return crc;
}

TL_CRC_TARGET std::uint32_t crc_hardware(std::uint32_t crc, const unsigned char* p, std::size_t size) {
  crc = crc_streams<16384>(crc, p, size);  // long enough to hide the cost of combining
  crc = crc_streams<512>(crc, p, size);
  for (; size >= 8; p += 8, size -= 8) crc = step8(crc, p);
  for (; size > 0; ++p, --size) crc = step1(crc, *p);
  return crc;
}

bool has_hardware() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#else
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}
#endif

using Update = std::uint32_t (*)(std::uint32_t, const unsigned char*, std::size_t);

Update select_update() {
#ifdef TL_CRC_TARGET
  if (has_hardware()) return crc_hardware;
#endif
  return crc_portable;
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
  static const Update update = select_update();
  return ~update(~crc, static_cast<const unsigned char*>(data), size);
}

// The inversions before and behind the data cancel out.
std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second, std::size_t size) {
  return multiply(first, shift_by(size)) ^ second;
}

}  // namespace tl
