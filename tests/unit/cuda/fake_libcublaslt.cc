// libcublasLt.so.13 for machines without a GPU: it computes no products, only the deviation of its operand x, and its
// algorithms refuse some numbers of rows. An algorithm is its number; which ones are proposed depends on the output's
// width.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace {

constexpr int kNotSupported = 15, kLayoutCols = 3;
enum AlgorithmNumber : std::uint64_t { kEven = 1, kOdd = 2, kHungry = 3, kAny = 4 };

struct Layout {
  std::uint64_t rows, cols;
};
struct Algorithm {
  std::uint64_t data[8];
};
struct Result {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

// The algorithms proposed for an output width, whatever the number of rows. Outputs of 40 columns have no algorithm for
// all numbers of rows.
std::vector<AlgorithmNumber> proposed(std::uint64_t width) {
  if (width == 40) return {kEven, kOdd};
  return {kEven, kHungry, kAny, kOdd};
}

// Checks an algorithm for a number of rows: kHungry accepts any number, but needs too much memory for some.
int check(const Algorithm& algorithm, std::uint64_t num_rows, Result& result) {
  const std::uint64_t number = algorithm.data[0];
  result = {algorithm, 0, 0, 1, {}};
  if (number == kHungry && num_rows % 7 == 4) result.workspace_bytes = std::size_t{1} << 40;
  const bool refused = (number == kEven && num_rows % 2 == 1) || (number == kOdd && num_rows % 2 == 0);
  return refused ? kNotSupported : 0;
}

std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>& runs() {
  static std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> runs;  // by algorithm and rows
  return runs;
}

// Reads the bfloat16 operand of a product when the stream reaches it.
struct Values {
  const std::uint16_t* data;
  std::size_t count;
};
double& last_deviation() {
  static double deviation = 0;
  return deviation;
}
void look_at(void* argument) {
  auto* values = static_cast<Values*>(argument);
  double sum = 0;
  for (std::size_t i = 0; i < values->count; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(values->data[i]) << 16);
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  last_deviation() = std::sqrt(sum / static_cast<double>(values->count));
  delete values;
}

// The streams of products by the workspace that they used.
std::map<void*, std::set<void*>>& workspace_users() {
  static std::map<void*, std::set<void*>> users;
  return users;
}

}  // namespace

extern "C" {

int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument);

// For tests: how often an algorithm was enqueued.
std::int64_t fake_runs(std::int64_t algorithm, std::int64_t num_rows) { return runs()[{algorithm, num_rows}]; }

// For tests: the deviation of the last product's x; 0 if none has run since the last call.
double fake_deviation() { return std::exchange(last_deviation(), 0); }

// For tests: the most streams of products that used one workspace, since the last call.
std::int64_t fake_workspace_users() {
  std::size_t most = 0;
  for (const auto& [_, streams] : workspace_users()) most = std::max(most, streams.size());
  return workspace_users().clear(), static_cast<std::int64_t>(most);
}

std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(int) { return "the fake library refuses"; }
int cublasLtCreate(void** handle) { return *handle = handle, 0; }
int cublasLtDestroy(void*) { return 0; }
int cublasLtMatmulDescCreate(void** descriptor, int, int) { return *descriptor = descriptor, 0; }
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatrixLayoutCreate(Layout** layout, int, std::uint64_t rows, std::uint64_t cols, std::int64_t) {
  return *layout = new Layout{rows, cols}, 0;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, 0; }
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, std::size_t) {
  if (attribute == kLayoutCols) layout->cols = *static_cast<const std::uint64_t*>(value);
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** preference) { return *preference = preference, 0; }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, Layout*, Layout*, Layout*, Layout* d, void*, int requested,
                                   Result* results, int* found) {
  *found = 0;
  for (const AlgorithmNumber number : proposed(d->rows)) {
    Result result;
    if (*found < requested && check({{number}}, d->cols, result) == 0) results[(*found)++] = result;
  }
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, Layout*, Layout*, Layout*, Layout* d, const Algorithm* algorithm,
                            Result* result) {
  return check(*algorithm, d->cols, *result);
}
int cublasLtMatmul(void*, void*, const void*, void*, Layout*, const std::uint16_t* x, Layout* b, const void*, void*,
                   Layout*, void*, Layout* d, const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                   void* stream) {
  Result result;
  const int status = check(*algorithm, d->cols, result);
  if (status != 0 || result.workspace_bytes > workspace_bytes) return kNotSupported;
  static std::mutex counting;  // threads prepare products at the same time
  const std::lock_guard lock(counting);
  ++runs()[{static_cast<std::int64_t>(algorithm->data[0]), static_cast<std::int64_t>(d->cols)}];
  workspace_users()[workspace].insert(stream);
  return cuLaunchHostFunc(stream, look_at, new Values{x, b->rows * b->cols});
}

}  // extern "C"
