// The part of cuBLASLt that the runtime uses. The library is found at run time, as the driver is. Names, signatures and
// values are those of the cuBLAS reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/driver.h"
#include "engine/vocabulary.h"

namespace tl::cuda {

using BlasHandle = Opaque<struct BlasHandleTag>*;
using MatmulDescriptor = Opaque<struct MatmulDescriptorTag>*;
using MatrixLayout = Opaque<struct MatrixLayoutTag>*;
using MatmulPreference = Opaque<struct MatmulPreferenceTag>*;

struct MatmulAlgorithm {
  std::uint64_t data[8];
};

struct HeuristicResult {
  MatmulAlgorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;  // cudaDataType
constexpr int kCompute32F = 68;                            // cublasComputeType_t
constexpr std::int32_t kTransposed = 1;                    // cublasOperation_t
// cublasLtMatmulDescAttributes_t
constexpr int kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBiasPointer = 8;
constexpr std::int32_t kEpilogueBias = 4;                                // cublasLtEpilogue_t
constexpr int kLayoutCols = 3;                                           // cublasLtMatrixLayoutAttribute_t
constexpr int kPreferenceWorkspaceBytes = 1, kPreferenceReductions = 3;  // cublasLtMatmulPreferenceAttributes_t
constexpr std::uint32_t kReduceComputeType = 2;                          // cublasLtReductionScheme_t, a mask

// X(member, symbol, parameters)
#define TL_CUBLASLT_FUNCTIONS(X)                                                                                     \
  X(create, "cublasLtCreate", (BlasHandle * handle))                                                                 \
  X(destroy, "cublasLtDestroy", (BlasHandle handle))                                                                 \
  X(descriptor_create, "cublasLtMatmulDescCreate", (MatmulDescriptor * descriptor, int compute, int scale))          \
  X(descriptor_destroy, "cublasLtMatmulDescDestroy", (MatmulDescriptor descriptor))                                  \
  X(descriptor_set, "cublasLtMatmulDescSetAttribute",                                                                \
    (MatmulDescriptor descriptor, int attribute, const void* value, std::size_t bytes))                              \
  X(layout_create, "cublasLtMatrixLayoutCreate",                                                                     \
    (MatrixLayout * layout, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t leading))                 \
  X(layout_destroy, "cublasLtMatrixLayoutDestroy", (MatrixLayout layout))                                            \
  X(layout_set, "cublasLtMatrixLayoutSetAttribute",                                                                  \
    (MatrixLayout layout, int attribute, const void* value, std::size_t bytes))                                      \
  X(preference_create, "cublasLtMatmulPreferenceCreate", (MatmulPreference * preference))                            \
  X(preference_destroy, "cublasLtMatmulPreferenceDestroy", (MatmulPreference preference))                            \
  X(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                                          \
    (MatmulPreference preference, int attribute, const void* value, std::size_t bytes))                              \
  X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                                     \
    (BlasHandle handle, MatmulDescriptor descriptor, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d, \
     MatmulPreference preference, int requested, HeuristicResult* results, int* found))                              \
  X(algorithm_check, "cublasLtMatmulAlgoCheck",                                                                      \
    (BlasHandle handle, MatmulDescriptor descriptor, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d, \
     const MatmulAlgorithm* algorithm, HeuristicResult* result))                                                     \
  X(matmul, "cublasLtMatmul",                                                                                        \
    (BlasHandle handle, MatmulDescriptor descriptor, const void* alpha, DevicePtr a, MatrixLayout a_layout,          \
     DevicePtr b, MatrixLayout b_layout, const void* beta, DevicePtr c, MatrixLayout c_layout, DevicePtr d,          \
     MatrixLayout d_layout, const MatmulAlgorithm* algorithm, DevicePtr workspace, std::size_t workspace_bytes,      \
     Stream stream))

struct CublasLt {
#define TL_MEMBER(member, symbol, parameters) int(*member) parameters;
  TL_CUBLASLT_FUNCTIONS(TL_MEMBER)
#undef TL_MEMBER
  std::size_t (*version)();
  const char* (*status_string)(int status);

  // Throws DeviceError with the library's message unless `status` is success.
  void check(int status, const std::string& what) const;
};

// The library's code for a floating-point type of 16 or 32 bits.
int data_type(DType dtype);

// The process's cuBLASLt: the first found by the system's search, then in `directories`. Throws DeviceError.
const CublasLt& cublaslt(const std::vector<std::string>& directories);

}  // namespace tl::cuda
