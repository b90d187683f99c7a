// Philox4x32-10, a counter-based generator: random words are a pure function of a key and a counter, so a request's
// draws cannot depend on what else is in the batch. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC11), section 4.3.
#pragma once

#include <array>
#include <cstdint>

namespace tl {

inline std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// The draw of one token: keyed by the request's seed; the counter is the index of the token among those the request
// generated and, for a request with n > 1, the index of the sequence. Uniform in [0, 1) with 53 bits.
inline double token_uniform(std::uint64_t seed, std::uint64_t token_index, std::uint32_t sequence_index = 0) {
  const auto words = philox4x32_10(
      {static_cast<std::uint32_t>(token_index), static_cast<std::uint32_t>(token_index >> 32), sequence_index, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[1]) << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace tl
