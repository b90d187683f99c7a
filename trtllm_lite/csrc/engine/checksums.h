// Checks the checksums of the header and of every entry.
#pragma once

#include <string_view>

#include "engine/container.h"
#include "engine/json_reader.h"

namespace tl {

// The header's own checksum covers the header text with the checksum's digits replaced by zeros.
void check_header_checksum(std::string_view header, const JsonView& metadata);

// Sets the checksum of every entry. `checksums`: a string with a JSON object that has exactly one 8-digit hexadecimal
// CRC-32C for each.
void read_checksums(const JsonView& checksums, Container& container);

// Compares the checksum of every entry with that of its bytes, which `num_threads` threads compute.
void check_entry_checksums(const Container& container, int num_threads);

}  // namespace tl
