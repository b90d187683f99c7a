#include "cuda/device/product_preparation.h"

#include <algorithm>
#include <utility>

#include "host/cpu_count.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kMaxThreads = 8;

}  // namespace

ProductPreparation::ProductPreparation(const Device& device, std::vector<ProductUse> uses)
    : device_(device), uses_(std::move(uses)) {
  const auto cores = static_cast<std::size_t>(resolve_num_threads(0));
  const std::size_t count = std::min({cores, kMaxThreads, uses_.size()});
  for (std::size_t i = 0; i < count; ++i) {
    threads_.push_back(std::async(std::launch::async, [this] { prepare_some(); }));
  }
}

void ProductPreparation::finish() {
  for (std::future<void>& thread : threads_) thread.get();
}

void ProductPreparation::prepare_some() {
  device_.make_current();
  const OwnedStream stream = make_stream();
  for (std::size_t i = next_++; i < uses_.size(); i = next_++)
    uses_[i].matmul->prepare(uses_[i].max_rows, stream.get());
}

}  // namespace tl::cuda
