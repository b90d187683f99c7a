// How urgent threads are beside the others of this process, on Linux; elsewhere all are alike.
#pragma once

namespace tl {

// What the system calls the calling thread.
int own_thread_id();

// Makes a thread of this process nicer than the process by `more`; one that cannot be made nicer goes on as it is.
void make_nicer(int thread_id, int more);

}  // namespace tl
