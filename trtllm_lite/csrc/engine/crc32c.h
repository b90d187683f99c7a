// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4): the checksum of everything in an engine file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tl {

// The checksum of `size` bytes that follow data whose checksum is `crc`; 0 for none.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);

}  // namespace tl
