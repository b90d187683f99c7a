#include "cuda/measure/time_products.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace tl::cuda {
namespace {

// The most layers whose products are timed. Their weights together exceed any L2 cache, except for the smallest models.
constexpr std::size_t kMaxLayers = 8;

struct Alike {
  const MatmulInstruction* product = nullptr;
  RowRange rows;
  std::vector<MatmulOperands> layers;
};

std::vector<Alike> group(const TimedStep& step, const Addresses& addresses) {
  std::map<std::pair<std::string, std::int64_t>, Alike> groups;
  for (const Instruction& instruction : step.program->instructions) {
    const auto* product = std::get_if<MatmulInstruction>(&instruction);
    if (product == nullptr) continue;
    const RowRange rows{product->rows.at(step.smaller) + 1, product->rows.at(step.extents)};
    if (rows.first > rows.last) continue;
    Alike& alike = groups[{describe(*product), rows.last}];
    alike.product = product;
    alike.rows = rows;
    if (alike.layers.size() == kMaxLayers) continue;
    alike.layers.push_back(operands_of(*product, step.extents, addresses));
    // Layers share arena memory, so one may read what another wrote: values would grow, or shrink to zero. So all
    // use the operands of the first layer.
    const MatmulOperands& first = alike.layers.front();
    alike.layers.back().x = first.x;
    alike.layers.back().y = first.y;
    alike.layers.back().residual = first.residual;
  }
  std::vector<Alike> result;
  for (auto& [key, alike] : groups) result.push_back(std::move(alike));
  return result;
}

ProductTime time_proposals(const Alike& alike, const Proposals& proposed, Matmul& matmul, Stream stream,
                           const TimingEffort& effort) {
  std::vector<std::function<void()>> candidates;
  for (const MatmulAlgorithm& algorithm : proposed.algorithms) {
    candidates.emplace_back([&] {
      for (const MatmulOperands& layer : alike.layers) matmul.enqueue(proposed.rows.last, layer, stream, algorithm);
    });
  }
  const std::vector<std::optional<double>> times = time_candidates(candidates, effort, stream);
  const auto slower = [](const auto& a, const auto& b) { return b && (!a || *a > *b); };
  const auto best = static_cast<std::size_t>(std::ranges::max_element(times, slower) - times.begin());
  const auto num_layers = static_cast<double>(alike.layers.size());
  return {alike.product, proposed.rows.last, proposed.algorithms[best], *times[best] / num_layers,
          *times.front() / num_layers};
}

}  // namespace

std::vector<ProductTime> time_products(const TimedStep& step, const Addresses& addresses, MatmulSet& matmuls,
                                       Stream stream, int num_candidates, const TimingEffort& effort) {
  std::vector<ProductTime> result;
  for (const Alike& alike : group(step, addresses)) {
    Matmul& matmul = matmuls.get(*alike.product);
    for (const Proposals& proposed : matmul.proposals(alike.rows, num_candidates)) {
      result.push_back(time_proposals(alike, proposed, matmul, stream, effort));
    }
  }
  return result;
}

}  // namespace tl::cuda
