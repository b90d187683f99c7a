#include "host/niceness.h"

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#endif

namespace tl {
#ifdef __linux__

int own_thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

void make_nicer(int thread_id, int more) {
  constexpr int kNicest = 19;
  const int usual = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
  setpriority(PRIO_PROCESS, static_cast<id_t>(thread_id), std::min(usual + more, kNicest));
}

#else

int own_thread_id() { return 0; }
void make_nicer(int, int) {}

#endif
}  // namespace tl
