// The tile registers of Intel's AMX, which the operating system gives to a process that asks for them.
#pragma once

namespace tl {

// Whether the machine has tiles, and this process may use them, for which it asks the system. True stays true.
bool may_use_tiles();

}  // namespace tl
