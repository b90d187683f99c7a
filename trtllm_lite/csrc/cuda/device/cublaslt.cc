#include "cuda/device/cublaslt.h"

#include "errors.h"
#include "host/shared_library.h"

namespace tl::cuda {
namespace {

constexpr const char* kRemedy =
    "install cuBLAS 12 or 13, for example the package nvidia-cublas (pip install 'trtllm_lite[cuda]')";

CublasLt load_cublaslt(const std::vector<std::string>& directories) {
  std::vector<std::string> names;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    for (const std::string& directory : directories) names.push_back(directory + "/" + name);
    names.emplace_back(name);
  }
  const SharedLibrary library = SharedLibrary::open(names, kRemedy);
  CublasLt loaded{};
#define TL_RESOLVE(member, symbol, parameters) loaded.member = library.function<int(*) parameters>(symbol, kRemedy);
  TL_CUBLASLT_FUNCTIONS(TL_RESOLVE)
#undef TL_RESOLVE
  loaded.version = library.function<std::size_t (*)()>("cublasLtGetVersion", kRemedy);
  loaded.status_string = library.function<const char* (*)(int)>("cublasLtGetStatusString", kRemedy);
  return loaded;
}

}  // namespace

int data_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kReal32F;
    case DType::kFloat16:
      return kReal16F;
    default:
      return kReal16BF;  // check_launches refuses all other types
  }
}

void CublasLt::check(int status, const std::string& what) const {
  if (status == 0) return;
  throw DeviceError(what + ": " + status_string(status) + " (cuBLASLt " + std::to_string(version()) + ")");
}

const CublasLt& cublaslt(const std::vector<std::string>& directories) {
  static const CublasLt loaded = load_cublaslt(directories);
  return loaded;
}

}  // namespace tl::cuda
