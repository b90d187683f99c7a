#include "grammar/llguidance/library.h"

#include <cstdio>

#include "errors.h"
#include "host/shared_library.h"

namespace tl::llguidance {
namespace {

constexpr int kMajor = 1;
constexpr int kMinMinor = 9;  // the first minor version with all of the functions
constexpr const char* kRemedy = "pip install --upgrade 'trtllm_lite[guided]'";

// The structures do not record their sizes, so a later major version may have different ones.
void check_version(const SharedLibrary& library) {
  const auto get_version = library.optional_function<const char* (*)()>("llg_get_version");
  const std::string found = get_version ? get_version() : "an older one";
  int major = 0, minor = 0;
  if (std::sscanf(found.c_str(), "llguidance@%d.%d", &major, &minor) == 2 && major == kMajor && minor >= kMinMinor) {
    return;
  }
  throw ArgumentError("guided_decoding: expected llguidance " + std::to_string(kMajor) + "." +
                      std::to_string(kMinMinor) + " or a later one of version " + std::to_string(kMajor) + ", found " +
                      found + "; " + kRemedy);
}

}  // namespace

Functions load(const std::string& path) {
  const SharedLibrary library = SharedLibrary::open({path}, kRemedy);
  check_version(library);
  Functions functions;
  const auto find = [&](auto& function, const char* name) {
    function = library.function<std::remove_reference_t<decltype(function)>>(name, kRemedy);
  };
  find(functions.set_defaults, "llg_constraint_init_set_defaults");
  find(functions.new_tokenizer, "llg_new_tokenizer_v2");
  find(functions.free_tokenizer, "llg_free_tokenizer");
  find(functions.new_matcher, "llg_new_matcher");
  find(functions.clone_matcher, "llg_clone_matcher");
  find(functions.free_matcher, "llg_free_matcher");
  find(functions.matcher_error, "llg_matcher_get_error");
  find(functions.mask_bytes, "llg_matcher_get_mask_byte_size");
  find(functions.compute_mask, "llg_matcher_compute_mask_into");
  find(functions.consume, "llg_matcher_consume_tokens");
  find(functions.roll_back, "llg_matcher_rollback");
  find(functions.num_valid, "llg_matcher_validate_tokens");
  find(functions.forced, "llg_matcher_compute_ff_tokens");
  find(functions.is_accepting, "llg_matcher_is_accepting");
  find(functions.decode, "llg_decode_tokens");
  return functions;
}

}  // namespace tl::llguidance
