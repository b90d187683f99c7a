// Runs code that recurses as deeply as its input says on a stack of known size.
#pragma once

#include <cstddef>
#include <functional>

namespace tl {

// Runs `work` in a thread whose stack has `stack_bytes`, and waits for it. Throws what `work` throws, and DeviceError
// if no thread can be started. A `work` that needs a larger stack ends the process. One that takes longer than usual
// grammars do is made nicer: others do not wait for it.
void run_on_stack(std::size_t stack_bytes, const std::function<void()>& work);

}  // namespace tl
