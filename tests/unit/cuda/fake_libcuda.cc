// libcuda.so.1 for machines without a GPU: device memory is host memory, and a stream runs as late as it may, when
// somebody waits for it. So a buffer that is reused too early gives wrong tokens, here as on a GPU.
//
// The "kernels" are those of a toy model: a token's successor is the sum of all tokens up to it, modulo the vocabulary.
// Its KV cache holds the tokens. Token kPoison gives logits that are not numbers.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using Work = std::function<void()>;
constexpr int kPoison = 13, kInvalidValue = 1, kOutOfResources = 701;

struct Stream {
  std::deque<Work> queue;
  std::vector<Work>* capture = nullptr;

  void push(Work work) {
    if (capture) {
      capture->push_back(std::move(work));
    } else {
      queue.push_back(std::move(work));
    }
  }
};
struct Event {
  Stream* stream = nullptr;
  bool reached = true;
};
using Graph = std::vector<Work>;

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream* stream;
  void* attributes;
  unsigned num_attributes;
};

std::map<std::string, std::int64_t>& counts() {
  static std::map<std::string, std::int64_t> counts;
  return counts;
}
std::size_t& allocated() {
  static std::size_t bytes = 0;
  return bytes;
}
std::map<void*, std::size_t>& allocations() {
  static std::map<void*, std::size_t> sizes;
  return sizes;
}
constexpr std::size_t kTotalBytes = std::size_t{1} << 30;

// Parameters in order, each aligned to its size.
class Arguments {
 public:
  Arguments(const void* data, std::size_t size)
      : bytes_(static_cast<const char*>(data), static_cast<const char*>(data) + size) {}
  template <typename T>
  T next() {
    T value{};
    position_ = (position_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    if (position_ + sizeof(T) <= bytes_.size()) std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  bool complete() const { return position_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

using Kernel = std::function<Work(Arguments&, unsigned blocks)>;

Work embed(Arguments& a, unsigned blocks) {
  auto* x = a.next<int*>();
  const auto *ids = a.next<const int*>(), *slots = a.next<const int*>(), *last = a.next<const int*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) x[t] = slots[t] >= 0 ? last[slots[t]] : ids[t];
  };
}

// Writes the tokens to the cache and adds up the sequence so far. One block a sequence from `first` on.
Work attend(Arguments& a, unsigned blocks) {
  auto *sums = a.next<int*>(), *x = a.next<int*>();
  auto* cache = a.next<std::uint16_t*>();
  const auto *cu_seqlens = a.next<const int*>(), *past_lens = a.next<const int*>(), *tables = a.next<const int*>();
  const int stride = a.next<int>(), page = a.next<int>();
  return [=] {
    for (unsigned s = 0; s < blocks; ++s) {
      const int first = cu_seqlens[s], count = cu_seqlens[s + 1] - first;
      const auto place = [&](int position) {
        return cache + tables[s * stride + position / page] * page + position % page;
      };
      for (int i = 0; i < count; ++i) *place(past_lens[s] + i) = static_cast<std::uint16_t>(x[first + i]);
      for (int i = 0, sum = 0; i < past_lens[s] + count; ++i) {
        sum += *place(i);
        if (i >= past_lens[s]) sums[first + i - past_lens[s]] = sum;
      }
    }
  };
}

Work score(Arguments& a, unsigned blocks) {
  auto* logits = a.next<float*>();
  const auto *sums = a.next<const int*>(), *x = a.next<const int*>(), *indices = a.next<const int*>();
  const int vocab = a.next<int>();
  return [=] {
    for (unsigned r = 0; r < blocks; ++r) {
      const int token = indices[r];
      for (int v = 0; v < vocab; ++v) {
        logits[r * static_cast<unsigned>(vocab) + static_cast<unsigned>(v)] =
            x[token] == kPoison ? NAN : -static_cast<float>(std::abs(v - sums[token] % vocab));
      }
    }
  };
}

Work sample(Arguments& a, unsigned blocks) {
  auto* tokens = a.next<int*>();
  const auto* logits = a.next<const float*>();
  auto* last = a.next<int*>();
  const auto *slots = a.next<const int*>(), *counters = a.next<const int*>();
  const int vocab = a.next<int>();
  return [=] {
    for (unsigned r = 0; r < blocks; ++r) {
      const float* row = logits + r * static_cast<unsigned>(vocab);
      int best = 0;
      for (int v = 1; v < vocab; ++v) best = row[v] > row[best] ? v : best;
      tokens[r] = std::isnan(row[0]) || counters[r] < 0 ? -1 : best;
      if (tokens[r] >= 0 && slots[r] >= 0) last[slots[r]] = tokens[r];
    }
  };
}

const std::map<std::string, Kernel>& kernels() {
  static const std::map<std::string, Kernel> all{
      {"embed", embed}, {"attend", attend}, {"score", score}, {"sample", sample}};
  return all;
}

void run_until(Stream* stream, const std::function<bool()>& done) {
  while (!done() && !stream->queue.empty()) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
  }
}

int push_copy(void* to, const void* from, std::size_t bytes, Stream* stream, const char* kind) {
  ++counts()[kind];
  counts()[std::string(kind) + "_bytes"] += static_cast<std::int64_t>(bytes);
  stream->push([=] { std::memcpy(to, from, bytes); });
  return 0;
}

}  // namespace

extern "C" {

// For tests: how often something was called.
std::int64_t fake_count(const char* what) { return counts()[what]; }
std::int64_t fake_allocated() { return static_cast<std::int64_t>(allocated()); }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_FAKE", 0; }
int cuGetErrorString(int, const char** text) { return *text = "the fake driver refuses", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int) {
  return std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size)), 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const std::map<int, int> values{{16, 4}, {75, 9}, {76, 0}};
  return *value = values.at(attribute), 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = context, 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return *free = kTotalBytes - allocated(), *total = kTotalBytes, 0;
}
int cuMemAlloc_v2(void** pointer, std::size_t bytes) {
  if (bytes > kTotalBytes - allocated()) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0xff, bytes);
  allocations()[*pointer] = bytes;
  allocated() += bytes;
  return 0;
}
int cuMemFree_v2(void* pointer) {
  allocated() -= allocations()[pointer];
  allocations().erase(pointer);
  return std::free(pointer), 0;
}
int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = std::malloc(bytes);
  std::memset(*pointer, 0xff, bytes);
  return 0;
}
int cuMemFreeHost(void* pointer) { return std::free(pointer), 0; }
int cuMemcpyHtoDAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "to_device");
}
int cuMemcpyDtoHAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "to_host");
}
int cuMemcpyDtoDAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "on_device");
}
int cuMemsetD8Async(void* to, unsigned char value, std::size_t count, Stream* stream) {
  return stream->push([=] { std::memset(to, value, count); }), 0;
}
int cuMemsetD32Async(unsigned* to, unsigned value, std::size_t count, Stream* stream) {
  return stream->push([=] { std::fill_n(to, count, value); }), 0;
}
int cuModuleLoadData(void** module, const void* image) {
  return *module = new std::string(static_cast<const char*>(image)), 0;
}
int cuModuleUnload(void* module) { return delete static_cast<std::string*>(module), 0; }
// A module's image is the name of the one kernel that it holds.
int cuModuleGetFunction(const Kernel** function, void* module, const char* name) {
  if (*static_cast<std::string*>(module) != name || !kernels().contains(name)) return kInvalidValue;
  return *function = &kernels().at(name), 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernelEx(const LaunchConfig* config, const Kernel* function, void**, void** extra) {
  Arguments arguments(extra[1], *static_cast<std::size_t*>(extra[3]));
  Work work = (*function)(arguments, config->grid[0]);
  if (!arguments.complete() || config->grid[0] * config->grid[1] * config->grid[2] == 0) return kOutOfResources;
  ++counts()[config->stream->capture ? "captured" : "launched"];
  return config->stream->push(std::move(work)), 0;
}
int cuStreamCreate(Stream** stream, unsigned) { return *stream = new Stream, 0; }
int cuStreamDestroy_v2(Stream* stream) { return delete stream, 0; }
int cuStreamSynchronize(Stream* stream) {
  return run_until(stream, [] { return false; }), 0;
}
int cuStreamBeginCapture_v2(Stream* stream, int) { return stream->capture = new Graph, 0; }
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  *graph = stream->capture;
  return stream->capture = nullptr, 0;
}
int cuEventCreate(Event** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(Event* event) { return delete event, 0; }
int cuEventRecord(Event* event, Stream* stream) {
  event->stream = stream;
  event->reached = false;
  return stream->push([event] { event->reached = true; }), 0;
}
int cuEventSynchronize(Event* event) {
  if (event->stream) run_until(event->stream, [event] { return event->reached; });
  return 0;
}
int cuEventElapsedTime(float* milliseconds, Event*, Event*) { return *milliseconds = 0.5f, 0; }
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) { return *exec = new Graph(*graph), 0; }
int cuGraphDestroy(Graph* graph) { return delete graph, 0; }
int cuGraphExecDestroy(Graph* exec) { return delete exec, 0; }
int cuGraphLaunch(Graph* exec, Stream* stream) {
  ++counts()["graphs"];
  for (const Work& work : *exec) stream->push(work);
  return 0;
}

}  // extern "C"
