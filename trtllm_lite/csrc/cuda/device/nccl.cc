#include "cuda/device/nccl.h"

#include "errors.h"
#include "host/shared_library.h"

namespace tl::cuda {
namespace {

constexpr const char* kNcclRemedy =
    "install NCCL 2, for example the package nvidia-nccl-cu13 (pip install 'trtllm_lite[nccl]')";

Nccl load_nccl(const std::vector<std::string>& directories) {
  const std::string name = "libnccl.so.2";
  std::vector<std::string> names;
  for (const std::string& directory : directories) names.push_back(directory + "/" + name);
  names.push_back(name);
  const SharedLibrary library = SharedLibrary::open(names, kNcclRemedy);
  Nccl loaded{};
#define TL_RESOLVE(member, symbol, parameters) loaded.member = library.function<int(*) parameters>(symbol, kNcclRemedy);
  TL_NCCL_FUNCTIONS(TL_RESOLVE)
#undef TL_RESOLVE
  loaded.error_string = library.function<const char* (*)(int)>("ncclGetErrorString", kNcclRemedy);
  return loaded;
}

}  // namespace

int nccl_type(DType dtype) {
  constexpr int kUint8 = 1, kInt32 = 2, kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9;  // ncclDataType_t
  switch (dtype) {
    case DType::kInt32:
      return kInt32;
    case DType::kFloat16:
      return kFloat16;
    case DType::kBFloat16:
      return kBFloat16;
    case DType::kFloat32:
      return kFloat32;
    default:
      return kUint8;  // other types are only moved, as bytes
  }
}

void Nccl::check(int result, const std::string& what) const {
  if (result == 0) return;
  int number = 0;
  version(&number);
  throw DeviceError(what + ": " + error_string(result) + " (NCCL " + std::to_string(number) + ")");
}

const Nccl& nccl(const std::vector<std::string>& directories) {
  static const Nccl loaded = load_nccl(directories);
  return loaded;
}

}  // namespace tl::cuda
