// Matrix products through cuBLASLt.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/cublaslt.h"
#include "cuda/device/device.h"
#include "engine/records.h"

namespace tl::cuda {

struct MatmulOperands {
  DevicePtr x = 0, weight = 0, y = 0;
  DevicePtr bias = 0, residual = 0;  // 0 means none
};

// Numbers of rows, both ends inclusive.
struct RowRange {
  std::int64_t first = 1, last = 1;
};

// One or more algorithms, each of which computes every number of rows in a range. They are ordered by the library's
// estimate for the last number, best first.
struct Proposals {
  RowRange rows;
  std::vector<MatmulAlgorithm> algorithms;
};

// The shape, dtypes and epilogue of a product in words.
std::string describe(const MatmulInstruction& kind);

// The opened library, and what all products on a device share.
struct Blas {
  const CublasLt* library = nullptr;
  BlasHandle handle = nullptr;
  DeviceBuffer workspace;                       // of products on streams that have none of their own
  std::map<Stream, DeviceBuffer> of_streams{};  // workspaces of equal size

  DevicePtr workspace_of(Stream stream) const {
    const auto found = of_streams.find(stream);
    return found == of_streams.end() ? workspace.address() : found->second.address();
  }
};

// The descriptor of a product and the layouts of its matrices; c is the result.
struct MatmulForm {
  MatmulDescriptor descriptor;
  MatrixLayout a, b, c;
};

// At most `count` algorithms that the library proposes, best estimate first. Throws DeviceError, whose message names
// the product by `what`.
std::vector<MatmulAlgorithm> propose(const Blas& blas, const MatmulForm& form, int count, const std::string& what);

// All products of one kind: equal dtypes, epilogue and shapes except for the number of rows.
class Matmul {
 public:
  // Borrows `blas`.
  Matmul(const Blas& blas, const MatmulInstruction& kind);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Called once, before enqueue(). Chooses the algorithm of every number of rows up to `max_rows` and captures each in
  // a graph that never runs, because the library takes tens of milliseconds to load a kernel at its first use. Other
  // threads may prepare other products, on streams of their own. Throws DeviceError if the library refuses an algorithm
  // of the plan, or has none.
  void prepare(std::int64_t max_rows, Stream stream);
  // Enqueue the product of `rows` rows, by the algorithm chosen for them or by `algorithm`. The first throws
  // EngineError for more rows than prepare() was given.
  void enqueue(std::int64_t rows, const MatmulOperands& operands, Stream stream);
  void enqueue(std::int64_t rows, const MatmulOperands& operands, Stream stream, const MatmulAlgorithm& algorithm);
  // At most `count` algorithms that the library proposes for the range `rows`. The range is halved until each part has
  // an algorithm. Throws DeviceError.
  std::vector<Proposals> proposals(RowRange rows, int count);

 private:
  // The largest number of rows that may share an algorithm with `rows`.
  std::int64_t largest_alike(std::int64_t rows) const;
  // Chooses algorithms for all numbers of rows up to `rows.last`, a result of largest_alike(). Numbers up to
  // `max_rows` must have one.
  void choose(RowRange rows, std::int64_t max_rows);
  std::vector<MatmulAlgorithm> candidates(std::int64_t rows, int count);
  std::optional<std::int64_t> find_refused(const MatmulAlgorithm& algorithm, RowRange rows);
  bool accepts(const MatmulAlgorithm& algorithm, std::int64_t rows);
  void set_rows(std::int64_t rows);

  const Blas& blas_;
  const CublasLt& library_;
  const std::vector<TimedAlgorithm> timed_;
  const bool has_bias_, has_residual_;
  std::string name_;
  MatmulDescriptor descriptor_ = nullptr;
  // The matrices as the library sees them, column-major: y^T [out, rows] = (weight^T [in, out])^T @ x^T [in, rows].
  MatrixLayout weight_ = nullptr, x_ = nullptr, y_ = nullptr;
  std::int64_t rows_ = 1;                               // rows of x_ and y_
  std::map<std::int64_t, MatmulAlgorithm> algorithms_;  // keys: the largest number of rows that uses the algorithm,
                                                        // without gaps
};

// The matrix products of an engine. Opens the library for the first product.
class MatmulSet {
 public:
  MatmulSet(const Device& device, const Plan& plan, std::vector<std::string> library_directories);
  ~MatmulSet();

  // The Matmul for products of this kind; it lives as long as the set. Throws DeviceError if the plan's algorithms for
  // it were measured with another version of the library.
  Matmul& get(const MatmulInstruction& kind);
  // The opened library, which lives as long as the set. Throws DeviceError if it is not found.
  const Blas& blas();
  // Gives a stream a workspace of its own, if there are products, so that those on it may run beside others. Returns
  // its bytes. Throws LimitError.
  std::size_t add_workspace(Stream stream);

 private:
  DeviceBuffer make_workspace() const;

  const Device& device_;
  const Plan& plan_;
  std::vector<std::string> library_directories_;
  Blas blas_;
  std::map<std::string, std::unique_ptr<Matmul>> matmuls_;
};

}  // namespace tl::cuda
