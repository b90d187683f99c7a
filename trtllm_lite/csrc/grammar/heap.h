// The memory that malloc hands out in this process, all threads together.
#pragma once

#include <cstddef>

namespace tl {

// Bytes that are in use.
std::size_t allocated_bytes();

// Gives pages that hold nothing in use back to the system; free() alone does so only at the end of a heap. Takes some
// milliseconds where much was freed, and less than one elsewhere.
void return_free_memory();

}  // namespace tl
