// Checks the checksums of the header and of every entry.
#pragma once

#include <string_view>

#include "engine/container.h"
#include "engine/json_reader.h"

namespace tl {

// The header's own checksum covers the header text with the checksum's digits replaced by zeros.
void check_header_checksum(std::string_view header, const JsonView& metadata);

// `checksums`: a string with a JSON object that has exactly one 8-digit hexadecimal CRC-32C for each entry.
void check_entry_checksums(const Container& container, const JsonView& checksums, int num_threads);

}  // namespace tl
