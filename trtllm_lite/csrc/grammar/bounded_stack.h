// Runs code with input-dependent recursion depth on a stack of known size.
#pragma once

#include <cstddef>
#include <functional>

namespace tl {

// Runs `work` in a thread whose stack has `stack_bytes`, and waits for it. Throws what `work` throws, and DeviceError
// if no thread can be started. The process ends if `work` overflows the stack. If `work` takes longer than usual
// grammars do, its thread gets a lower priority, so that it does not slow down others.
void run_on_stack(std::size_t stack_bytes, const std::function<void()>& work);

}  // namespace tl
