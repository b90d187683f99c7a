// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4): the checksum of everything in an engine file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tl {

// The checksum of data that continues data with the checksum `crc`; pass 0 to begin.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);

// The checksum of two pieces of data together, of which the second has `size` bytes.
std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second, std::size_t size);

}  // namespace tl
