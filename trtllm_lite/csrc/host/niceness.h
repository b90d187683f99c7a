// Priorities of threads within this process on Linux; elsewhere all are equal.
#pragma once

namespace tl {

// The system's id of the calling thread.
int own_thread_id();

// Sets a thread's nice value to `more` above that of this process. If that fails, the thread stays as it is.
void make_nicer(int thread_id, int more);

}  // namespace tl
