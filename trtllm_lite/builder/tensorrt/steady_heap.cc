// A heap whose addresses are the same in every run, for the process of TensorRT's builder (worker.py), by LD_PRELOAD.
//
// TensorRT orders some of what it writes by the addresses of its objects, so that two builds of one network differ.
// Here every thread has a heap of its own, at a place that depends on how many threads were started before it, and uses
// only those blocks again that it freed itself. So addresses depend on what a thread does, and neither on the time that
// others take, nor on where the kernel places the process. A block that another thread frees is lost; its pages are
// given back.

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORTED [[gnu::visibility("default")]]

namespace {

constexpr uintptr_t kFirstHeap = uintptr_t{1} << 44;  // above any mapping at low addresses, below programs
constexpr size_t kHeapBytes = size_t{1} << 40;        // the first thread's heap
constexpr size_t kThreadBytes = size_t{1} << 34;      // each other thread's heap
constexpr size_t kStep = size_t{1} << 24;             // bytes that become usable at once
constexpr size_t kAlignment = 16;
constexpr size_t kReturned = size_t{1} << 17;  // free blocks from this size on keep no memory
constexpr size_t kPage = 4096;
constexpr int kStepsPerDouble = 4;
constexpr int kNumSizes = 40 * kStepsPerDouble;

// Stands in front of the bytes that a caller gets.
struct Header {
  char* block;  // start of the block, which padding may separate from this header
  uint32_t size;
  uint32_t thread;
};
static_assert(sizeof(Header) == kAlignment);

struct Heap {
  char* next;
  char* usable;
  char* end;
  void* free[kNumSizes];
};

// Initial-exec, because in other TLS models the loader allocates a thread's variables with this malloc.
[[gnu::tls_model("initial-exec")]] thread_local Heap heap;
[[gnu::tls_model("initial-exec")]] thread_local uint32_t thread_number;
std::atomic<uint32_t> num_threads{1};

[[noreturn]] void fail(const char* message) {
  (void)!write(STDERR_FILENO, message, strlen(message));
  abort();
}

// The bytes of a block of the given size class: 4, 5, 6 or 7 times a power of two, from 64 on.
size_t bytes_of(int size) {
  return (size_t{kStepsPerDouble} + static_cast<size_t>(size % kStepsPerDouble)) << (4 + size / kStepsPerDouble);
}

// The smallest size class whose blocks have this many bytes.
int size_of(size_t bytes) {
  if (bytes <= bytes_of(0)) return 0;
  const int exponent = std::bit_width(bytes - 1) - 1;  // 2^exponent < bytes <= 2^(exponent + 1)
  const size_t step = size_t{1} << (exponent - 2);
  const int steps = static_cast<int>((bytes - (size_t{1} << exponent) + step - 1) / step);
  return (exponent - 6) * kStepsPerDouble + steps;
}

void open_heap() {
  const uintptr_t place =
      thread_number == 0 ? kFirstHeap : kFirstHeap + kHeapBytes + (thread_number - 1) * kThreadBytes;
  const size_t bytes = thread_number == 0 ? kHeapBytes : kThreadBytes;
  void* wanted = reinterpret_cast<void*>(place);
  if (mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) !=
      wanted) {
    fail("steady_heap: the kernel gives no addresses for a heap (ulimit -v?)\n");
  }
  heap.next = heap.usable = static_cast<char*>(wanted);
  heap.end = heap.next + bytes;
}

// A new block, or nullptr.
char* grow(size_t bytes) {
  if (heap.next == nullptr) open_heap();
  if (bytes > static_cast<size_t>(heap.end - heap.next)) return nullptr;
  char* block = heap.next;
  char* next = block + bytes;
  if (next > heap.usable) {
    const size_t more = (static_cast<size_t>(next - heap.usable) + kStep - 1) / kStep * kStep;
    if (more > static_cast<size_t>(heap.end - heap.usable)) return nullptr;
    if (mprotect(heap.usable, more, PROT_READ | PROT_WRITE) != 0) return nullptr;
    heap.usable += more;
  }
  heap.next = next;
  return block;
}

void* allocate(size_t bytes, size_t alignment) {
  const size_t extra = sizeof(Header) + (alignment > kAlignment ? alignment : 0);
  if (bytes > kHeapBytes) {
    errno = ENOMEM;
    return nullptr;
  }
  const int size = size_of(bytes + extra);
  char* block = static_cast<char*>(heap.free[size]);
  if (block != nullptr) {
    memcpy(&heap.free[size], block, sizeof(void*));
  } else {
    block = grow(bytes_of(size));
  }
  if (block == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  uintptr_t start = reinterpret_cast<uintptr_t>(block) + sizeof(Header);
  if (alignment > kAlignment) start = (start + alignment - 1) & ~(alignment - 1);
  const Header header{block, static_cast<uint32_t>(size), thread_number};
  memcpy(reinterpret_cast<char*>(start) - sizeof(Header), &header, sizeof(Header));
  return reinterpret_cast<void*>(start);
}

Header header_of(void* start) {
  Header header;
  memcpy(&header, static_cast<char*>(start) - sizeof(Header), sizeof(Header));
  return header;
}

size_t usable_bytes(void* start, const Header& header) {
  return bytes_of(static_cast<int>(header.size)) - static_cast<size_t>(static_cast<char*>(start) - header.block);
}

// Gives the pages within a free block back to the kernel.
void return_pages(char* block, size_t bytes) {
  const uintptr_t from = (reinterpret_cast<uintptr_t>(block) + kPage) & ~(kPage - 1);
  const uintptr_t to = (reinterpret_cast<uintptr_t>(block) + bytes) & ~(kPage - 1);
  if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

struct Start {
  void* (*run)(void*);
  void* argument;
  uint32_t thread;
};

void* run_thread(void* given) {
  const Start start = *static_cast<Start*>(given);
  thread_number = start.thread;
  return start.run(start.argument);
}

}  // namespace

extern "C" {

// worker.py looks for this name to see that the heap is in use.
EXPORTED extern const int steady_heap = 1;

EXPORTED void* malloc(size_t bytes) { return allocate(bytes, kAlignment); }

EXPORTED void free(void* start) {
  if (start == nullptr) return;
  const Header header = header_of(start);
  const size_t bytes = bytes_of(static_cast<int>(header.size));
  const bool own = header.thread == thread_number;
  if (bytes >= kReturned || (!own && bytes >= 2 * kPage)) return_pages(header.block, bytes);
  if (!own) return;
  memcpy(header.block, &heap.free[header.size], sizeof(void*));
  heap.free[header.size] = header.block;
}

EXPORTED void* calloc(size_t count, size_t each) {
  size_t bytes;
  if (__builtin_mul_overflow(count, each, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* start = malloc(bytes);
  if (start != nullptr) memset(start, 0, bytes);
  return start;
}

EXPORTED void* realloc(void* start, size_t bytes) {
  if (start == nullptr) return malloc(bytes);
  const size_t has = usable_bytes(start, header_of(start));
  if (bytes <= has) return start;
  void* moved = malloc(bytes);
  if (moved == nullptr) return nullptr;
  memcpy(moved, start, has);
  free(start);
  return moved;
}

EXPORTED void* aligned_alloc(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }
EXPORTED void* memalign(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }
EXPORTED void* valloc(size_t bytes) { return allocate(bytes, kPage); }

EXPORTED int posix_memalign(void** result, size_t alignment, size_t bytes) {
  void* start = allocate(bytes, alignment);
  if (start == nullptr) return ENOMEM;
  *result = start;
  return 0;
}

EXPORTED size_t malloc_usable_size(void* start) { return start == nullptr ? 0 : usable_bytes(start, header_of(start)); }

EXPORTED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  auto* start = static_cast<Start*>(malloc(sizeof(Start)));
  if (start == nullptr) return EAGAIN;
  *start = {run, argument, num_threads++};
  return create(thread, attributes, run_thread, start);
}

}  // extern "C"
