#include "cuda/device/matmul.h"

#include <algorithm>
#include <iterator>

#include "errors.h"

namespace tl::cuda {
namespace {

constexpr int kProposals =
    8;  // algorithms to ask for; the first that computes every number of rows in a range is taken

// Rounds up to a granularity that grows with the number of rows. Numbers that round to the same share one query of the
// library's heuristic.
std::int64_t round_up_rows(std::int64_t rows) {
  const std::int64_t granularity = rows <= 64 ? 8 : rows <= 256 ? 16 : rows <= 1024 ? 64 : 256;
  return (rows + granularity - 1) / granularity * granularity;
}

// The key under which the plan has the tuned algorithms of a kind of product.
std::string key_of(const MatmulInstruction& kind) {
  std::string key = describe(kind);
  for (const TimedAlgorithm& algorithm : kind.algorithms) {
    key += ' ' + std::to_string(algorithm.max_rows);
    for (const std::uint64_t word : algorithm.algo) key += ':' + std::to_string(word);
  }
  return key;
}

// The version in dotted form: 130100 is 13.1.0.
std::string dotted(std::int64_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// The ids of algorithms are valid only for one version of cuBLASLt.
void check_version(const CublasLt& library, const Plan& plan) {
  const auto found = static_cast<std::int64_t>(library.version());
  if (plan.cuda->cublaslt_version == found) return;
  const std::string wanted = dotted(plan.cuda->cublaslt_version);
  const std::string package = plan.cuda->cublaslt_version / 10000 == 12 ? "nvidia-cublas-cu12" : "nvidia-cublas";
  throw DeviceError("this engine's matrix products have algorithms that were measured with cuBLAS " + wanted +
                    ", and this machine has cuBLAS " + dotted(found) + ", for which they are not valid: install that " +
                    "version (pip install '" + package + "==" + wanted + ".*'), or build the engine again with a " +
                    "timing cache of this machine (--output_timing_cache) or without one");
}

}  // namespace

std::string describe(const MatmulInstruction& kind) {
  std::string text = std::to_string(kind.out_features) + "x" + std::to_string(kind.in_features) + " " +
                     std::string(to_string(kind.dtype)) + " to " + std::string(to_string(kind.out_dtype));
  if (kind.bias) text += " + bias";
  if (kind.residual) text += " + residual";
  return text;
}

std::vector<MatmulAlgorithm> propose(const Blas& blas, const MatmulForm& form, int count, const std::string& what) {
  const CublasLt& library = *blas.library;
  MatmulPreference preference = nullptr;
  library.check(library.preference_create(&preference), what);
  const std::uint64_t workspace_bytes = blas.workspace.size();
  library.preference_set(preference, kPreferenceWorkspaceBytes, &workspace_bytes, sizeof(workspace_bytes));
  // Partial sums of split-K are also added in float32, not in the output type.
  library.preference_set(preference, kPreferenceReductions, &kReduceComputeType, sizeof(kReduceComputeType));
  std::vector<HeuristicResult> results(static_cast<std::size_t>(count));
  int found = 0;
  const int status = library.heuristic(blas.handle, form.descriptor, form.a, form.b, form.c, form.c, preference, count,
                                       results.data(), &found);
  library.preference_destroy(preference);
  library.check(status, what);
  std::vector<MatmulAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const HeuristicResult& result = results[static_cast<std::size_t>(i)];
    if (result.state == 0) algorithms.push_back(result.algorithm);
  }
  return algorithms;
}

Matmul::Matmul(const Blas& blas, const MatmulInstruction& kind)
    : blas_(blas),
      library_(*blas.library),
      timed_(kind.algorithms),
      has_bias_(kind.bias.has_value()),
      has_residual_(kind.residual.has_value()),
      name_("matrix product " + describe(kind)) {
  const auto in = static_cast<std::uint64_t>(kind.in_features), out = static_cast<std::uint64_t>(kind.out_features);
  const int dtype = data_type(kind.dtype);
  library_.check(library_.descriptor_create(&descriptor_, kCompute32F, kReal32F), name_);
  library_.check(library_.descriptor_set(descriptor_, kDescTransA, &kTransposed, sizeof(kTransposed)), name_);
  if (kind.bias) {
    library_.check(library_.descriptor_set(descriptor_, kDescEpilogue, &kEpilogueBias, sizeof(kEpilogueBias)), name_);
    const DevicePtr any = blas.workspace.address();  // algorithms are checked with the same description that products
                                                     // have
    library_.check(library_.descriptor_set(descriptor_, kDescBiasPointer, &any, sizeof(any)), name_);
  }
  library_.check(library_.layout_create(&weight_, dtype, in, out, kind.in_features), name_);
  library_.check(library_.layout_create(&x_, dtype, in, 1, kind.in_features), name_);
  library_.check(library_.layout_create(&y_, data_type(kind.out_dtype), out, 1, kind.out_features), name_);
}

Matmul::~Matmul() {
  for (const MatrixLayout layout : {weight_, x_, y_}) library_.layout_destroy(layout);
  library_.descriptor_destroy(descriptor_);
}

void Matmul::enqueue(std::int64_t rows, const MatmulOperands& operands, Stream stream) {
  if (rows == 0) return;
  const auto found = algorithms_.lower_bound(rows);
  if (found == algorithms_.end()) {
    throw EngineError(name_ + ": expected at most the rows of a step of its program's max_tokens, found " +
                      std::to_string(rows) + ": the engine contradicts itself, build it again");
  }
  enqueue(rows, operands, stream, found->second);
}

void Matmul::enqueue(std::int64_t rows, const MatmulOperands& operands, Stream stream,
                     const MatmulAlgorithm& algorithm) {
  set_rows(rows);
  if (operands.bias != 0) {
    library_.check(library_.descriptor_set(descriptor_, kDescBiasPointer, &operands.bias, sizeof(DevicePtr)), name_);
  }
  const float one = 1, beta = operands.residual != 0 ? 1 : 0;
  const DevicePtr added = operands.residual != 0 ? operands.residual : operands.y;
  library_.check(
      library_.matmul(blas_.handle, descriptor_, &one, operands.weight, weight_, operands.x, x_, &beta, added, y_,
                      operands.y, y_, &algorithm, blas_.workspace_of(stream), blas_.workspace.size(), stream),
      name_);
}

void Matmul::prepare(std::int64_t max_rows, Stream stream) {
  const DevicePtr any = blas_.workspace.address();  // no graph runs, so that nothing is read or written
  const MatmulOperands operands{
      .x = any, .weight = any, .y = any, .bias = has_bias_ ? any : 0, .residual = has_residual_ ? any : 0};
  for (std::int64_t rows = 0; rows < max_rows; rows = algorithms_.rbegin()->first) {
    choose({rows + 1, largest_alike(rows + 1)}, max_rows);
    const OwnedGraph graph = captured(stream, name_, [&] {
      for (auto chosen = algorithms_.upper_bound(rows); chosen != algorithms_.end(); ++chosen) {
        enqueue(std::min(chosen->first, max_rows), operands, stream, chosen->second);
      }
    });
  }
}

std::int64_t Matmul::largest_alike(std::int64_t rows) const {
  const auto timed = std::ranges::lower_bound(timed_, rows, {}, &TimedAlgorithm::max_rows);
  return timed != timed_.end() ? timed->max_rows : round_up_rows(rows);
}

void Matmul::choose(RowRange rows, std::int64_t max_rows) {
  const auto timed = std::ranges::find(timed_, rows.last, &TimedAlgorithm::max_rows);
  if (timed == timed_.end()) {
    for (const Proposals& part : proposals(rows, kProposals)) {
      algorithms_.emplace(part.rows.last, part.algorithms.front());
    }
    return;
  }
  MatmulAlgorithm chosen{};
  std::ranges::copy(timed->algo, chosen.data);
  if (const auto refused = find_refused(chosen, {rows.first, std::min(rows.last, max_rows)})) {
    throw DeviceError(name_ + ": this machine's cuBLAS " + dotted(static_cast<std::int64_t>(library_.version())) +
                      " refuses to compute " + std::to_string(*refused) +
                      " rows by the algorithm that was measured for " + std::to_string(rows.first) + " to " +
                      std::to_string(rows.last) +
                      ": build the engine again with a timing cache of this machine (--output_timing_cache) or without "
                      "one");
  }
  algorithms_.emplace(rows.last, chosen);
}

std::vector<Proposals> Matmul::proposals(RowRange rows, int count) {
  std::vector<MatmulAlgorithm> found = candidates(rows.last, count);
  std::erase_if(found, [&](const MatmulAlgorithm& candidate) { return find_refused(candidate, rows).has_value(); });
  if (!found.empty()) return {{rows, std::move(found)}};
  if (rows.first == rows.last) {
    throw DeviceError(name_ + ": expected an algorithm for " + std::to_string(rows.last) +
                      " rows, found none; install a newer cuBLAS");
  }
  const std::int64_t middle = rows.first + (rows.last - rows.first) / 2;
  std::vector<Proposals> parts = proposals({rows.first, middle}, count);
  std::ranges::move(proposals({middle + 1, rows.last}, count), std::back_inserter(parts));
  return parts;
}

std::vector<MatmulAlgorithm> Matmul::candidates(std::int64_t rows, int count) {
  set_rows(rows);
  return propose(blas_, {descriptor_, weight_, x_, y_}, count, name_ + " of " + std::to_string(rows) + " rows");
}

// The first number of rows that the library refuses for this algorithm, or for which it needs more workspace than there
// is. All numbers near both ends of the range are checked, because vectors and tiles are partly filled there. In
// between, numbers a prime step apart are checked, which reach every remainder and every number of tiles.
std::optional<std::int64_t> Matmul::find_refused(const MatmulAlgorithm& algorithm, RowRange rows) {
  constexpr std::int64_t kNearEnds = 16, kStride = 61;
  for (std::int64_t asked = rows.first; asked <= rows.last;) {
    if (!accepts(algorithm, asked)) return asked;
    const std::int64_t to_last_ones = rows.last - kNearEnds + 1 - asked;
    asked += asked - rows.first < kNearEnds || to_last_ones <= 0 ? 1 : std::min(kStride, to_last_ones);
  }
  return std::nullopt;
}

bool Matmul::accepts(const MatmulAlgorithm& algorithm, std::int64_t rows) {
  set_rows(rows);
  HeuristicResult result{};
  const int status = library_.algorithm_check(blas_.handle, descriptor_, weight_, x_, y_, y_, &algorithm, &result);
  return status == 0 && result.state == 0 && result.workspace_bytes <= blas_.workspace.size();
}

void Matmul::set_rows(std::int64_t rows) {
  if (rows == rows_) return;
  const auto columns = static_cast<std::uint64_t>(rows);
  for (const MatrixLayout layout : {x_, y_}) {
    library_.check(library_.layout_set(layout, kLayoutCols, &columns, sizeof(columns)), name_);
  }
  rows_ = rows;
}

MatmulSet::MatmulSet(const Device& device, const Plan& plan, std::vector<std::string> library_directories)
    : device_(device), plan_(plan), library_directories_(std::move(library_directories)) {}

MatmulSet::~MatmulSet() {
  matmuls_.clear();
  if (blas_.library != nullptr && device_.try_make_current()) blas_.library->destroy(blas_.handle);
}

const Blas& MatmulSet::blas() {
  if (blas_.library == nullptr) {
    const CublasLt& library = cublaslt(library_directories_);
    blas_.workspace = make_workspace();
    library.check(library.create(&blas_.handle), "starting cuBLASLt");
    blas_.library = &library;
  }
  return blas_;
}

std::size_t MatmulSet::add_workspace(Stream stream) {
  if (blas_.library == nullptr) return 0;
  return (blas_.of_streams[stream] = make_workspace()).size();
}

DeviceBuffer MatmulSet::make_workspace() const {
  return {device_, static_cast<std::size_t>(plan_.cuda->workspace_bytes), "workspace of matrix products",
          "free memory on the GPU"};
}

Matmul& MatmulSet::get(const MatmulInstruction& kind) {
  const Blas& shared = blas();
  if (!kind.algorithms.empty()) check_version(*shared.library, plan_);
  std::unique_ptr<Matmul>& matmul = matmuls_[key_of(kind)];
  if (!matmul) matmul = std::make_unique<Matmul>(shared, kind);
  return *matmul;
}

}  // namespace tl::cuda
