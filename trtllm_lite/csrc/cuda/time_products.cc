#include "cuda/time_products.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace tl::cuda {
namespace {

// Products of one layer each; their weights together exceed any L2 cache, but for the smallest models.
constexpr std::size_t kMaxLayers = 8;

struct Alike {
  const MatmulInstruction* product = nullptr;
  std::int64_t rows = 0;
  std::vector<MatmulOperands> layers;
};

std::vector<Alike> group(const CudaProgram& program, const CudaExtents& extents, const Addresses& addresses) {
  std::map<std::pair<std::string, std::int64_t>, Alike> groups;
  for (const CudaInstruction& instruction : program.instructions) {
    const auto* product = std::get_if<MatmulInstruction>(&instruction);
    const std::int64_t rows = product == nullptr ? 0 : product->rows.at(extents);
    if (rows == 0) continue;
    Alike& alike = groups[{describe(*product), rows}];
    alike.product = product;
    alike.rows = rows;
    if (alike.layers.size() < kMaxLayers) alike.layers.push_back(operands_of(*product, extents, addresses));
  }
  std::vector<Alike> result;
  for (auto& [key, alike] : groups) result.push_back(std::move(alike));
  return result;
}

}  // namespace

std::vector<ProductTime> time_products(const CudaProgram& program, const CudaExtents& extents,
                                       const Addresses& addresses, MatmulSet& matmuls, Stream stream,
                                       int num_candidates, const TimingEffort& effort) {
  std::vector<ProductTime> result;
  for (const Alike& alike : group(program, extents, addresses)) {
    Matmul& matmul = matmuls.get(*alike.product);
    const std::vector<MatmulAlgorithm> algorithms = matmul.candidates(alike.rows, num_candidates);
    std::vector<std::function<void()>> candidates;
    for (const MatmulAlgorithm& algorithm : algorithms) {
      candidates.emplace_back([&] {
        for (const MatmulOperands& layer : alike.layers) matmul.enqueue(alike.rows, layer, stream, algorithm);
      });
    }
    const std::vector<std::optional<double>> times = time_candidates(candidates, effort, stream);
    const auto slower = [](const auto& a, const auto& b) { return b && (!a || *a > *b); };
    const auto best = static_cast<std::size_t>(std::ranges::max_element(times, slower) - times.begin());
    const auto num_layers = static_cast<double>(alike.layers.size());
    result.push_back(
        {alike.product, alike.rows, algorithms[best], *times[best] / num_layers, *times.front() / num_layers});
  }
  return result;
}

}  // namespace tl::cuda
