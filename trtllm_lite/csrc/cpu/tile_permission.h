// Permission for the tile registers of Intel's AMX, which a process must request from the operating system.
#pragma once

namespace tl {

// Requests the permission. Returns whether the machine has tiles and this process may use them; once true, always true.
bool may_use_tiles();

}  // namespace tl
