#include "cuda/measure/gram_matrix.h"

#include <mutex>
#include <utility>

#include "errors.h"

namespace tl::cuda {
namespace {

const PlanTensor& rows_of(const Plan& plan, const std::string& name) {
  find_output(plan, Extents(), name, {});  // throws if there is no such output
  const PlanTensor& tensor = plan.tensors[static_cast<std::size_t>(plan.outputs.at(name))];
  if (tensor.shape.size() == 2 && item_size(tensor.dtype) == 2) return tensor;
  throw ArgumentError("GramMatrix: expected the output " + name + " to be a matrix of 16-bit elements");
}

const Blas& open_blas(CudaExecutor& executor) {
  const std::lock_guard lock(executor.turn());
  executor.device().make_current();
  return executor.programs().matmuls().blas();
}

}  // namespace

GramMatrix::GramMatrix(CudaExecutor& executor, std::string name)
    : executor_(executor), name_(std::move(name)), blas_(open_blas(executor)) {
  const PlanTensor& tensor = rows_of(executor.plan(), name_);
  features_ = tensor.shape[1].value;
  const auto size = static_cast<std::uint64_t>(features_);
  sum_ = DeviceBuffer(executor.device(), size * size * sizeof(float), "sums of calibration",
                      "calibrate on a GPU with more memory, or on the CPU");
  driver().check(driver().fill_bytes(sum_.address(), 0, sum_.size(), executor.stream()), "clearing memory");
  const CublasLt& library = *blas_.library;
  library.check(library.descriptor_create(&descriptor_, kCompute32F, kReal32F), name_);
  library.check(library.descriptor_set(descriptor_, kDescTransB, &kTransposed, sizeof(kTransposed)), name_);
  library.check(library.layout_create(&rows_, data_type(tensor.dtype), size, 1, features_), name_);
  library.check(library.layout_create(&square_, kReal32F, size, size, features_), name_);
}

GramMatrix::~GramMatrix() {
  if (executor_.device().try_make_current()) driver().stream_synchronize(executor_.stream());
  for (const MatrixLayout layout : {rows_, square_}) blas_.library->layout_destroy(layout);
  blas_.library->descriptor_destroy(descriptor_);
}

void GramMatrix::add() {
  const std::lock_guard lock(executor_.turn());
  executor_.device().make_current();
  const OutputPlace place = find_output(executor_.plan(), executor_.last_step(), name_, {});
  if (place.rows == 0) return;
  const auto columns = static_cast<std::uint64_t>(place.rows);
  const CublasLt& library = *blas_.library;
  library.check(library.layout_set(rows_, kLayoutCols, &columns, sizeof(columns)), name_);
  const MatmulAlgorithm algorithm = algorithm_for(place.rows);
  const float one = 1;
  const DevicePtr x = executor_.address_of(place), sum = sum_.address();
  library.check(library.matmul(blas_.handle, descriptor_, &one, x, rows_, x, rows_, &one, sum, square_, sum, square_,
                               &algorithm, blas_.workspace.address(), blas_.workspace.size(), executor_.stream()),
                "outer products of " + name_);
}

std::unique_ptr<float[]> GramMatrix::values() {
  const std::lock_guard lock(executor_.turn());
  executor_.device().make_current();
  auto values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(features_ * features_));
  driver().check(driver().copy_to_host(values.get(), sum_.address(), sum_.size(), executor_.stream()),
                 "copying outer products");
  driver().check(driver().stream_synchronize(executor_.stream()), "adding outer products");
  return values;
}

// The first algorithm that the library proposes for this many rows. The layouts are set to that number.
MatmulAlgorithm GramMatrix::algorithm_for(std::int64_t rows) {
  const auto known = algorithms_.find(rows);
  if (known != algorithms_.end()) return known->second;
  const std::string what = "outer products of " + std::to_string(rows) + " rows of " + name_;
  const std::vector<MatmulAlgorithm> found = propose(blas_, {descriptor_, rows_, rows_, square_}, 1, what);
  if (found.empty()) throw DeviceError(what + ": expected an algorithm, found none; install a newer cuBLAS");
  return algorithms_.emplace(rows, found.front()).first->second;
}

}  // namespace tl::cuda
