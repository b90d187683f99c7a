#include "cpu/tile_permission.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tl {

#if defined(__linux__) && defined(__x86_64__)

// Requests of arch_prctl(2) for features with large state (Linux 5.16, Documentation/arch/x86/xstate.rst).
constexpr int kRequestPermission = 0x1023;
constexpr int kTileData = 18;

bool may_use_tiles() {
  return __builtin_cpu_supports("amx-tile") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool may_use_tiles() { return false; }

#endif

}  // namespace tl
