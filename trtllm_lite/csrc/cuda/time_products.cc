#include "cuda/time_products.h"

#include <algorithm>
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

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Microseconds of one product by each algorithm.
std::vector<double> time_algorithms(const Alike& alike, Matmul& matmul, const std::vector<MatmulAlgorithm>& algorithms,
                                    Stream stream, int repeats) {
  const auto run = [&](const MatmulAlgorithm& algorithm) {
    for (const MatmulOperands& layer : alike.layers) matmul.enqueue(alike.rows, layer, stream, algorithm);
  };
  std::vector<std::vector<double>> times(algorithms.size());
  std::vector<OwnedEvent> events(algorithms.size() + 1);
  std::ranges::generate(events, make_event);
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    run(algorithms.front());  // keeps the device busy while the next are queued
    driver().check(driver().event_record(events[0].get(), stream), "timing products");
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      run(algorithms[i]);
      driver().check(driver().event_record(events[i + 1].get(), stream), "timing products");
    }
    driver().check(driver().stream_synchronize(stream), "timing products");
    for (std::size_t i = 0; i < algorithms.size() && repeat > 0; ++i) {  // the first time loads the kernels
      float milliseconds = 0;
      driver().check(driver().event_elapsed(&milliseconds, events[i].get(), events[i + 1].get()), "timing products");
      times[i].push_back(1e3 * milliseconds / static_cast<double>(alike.layers.size()));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_algorithm : times) medians.push_back(median(std::move(of_algorithm)));
  return medians;
}

}  // namespace

std::vector<ProductTime> time_products(const CudaProgram& program, const CudaExtents& extents,
                                       const Addresses& addresses, MatmulSet& matmuls, Stream stream, int candidates,
                                       int repeats) {
  std::vector<ProductTime> result;
  for (const Alike& alike : group(program, extents, addresses)) {
    Matmul& matmul = matmuls.get(*alike.product);
    const std::vector<MatmulAlgorithm> algorithms = matmul.candidates(alike.rows, candidates);
    const std::vector<double> times = time_algorithms(alike, matmul, algorithms, stream, repeats);
    const auto best = static_cast<std::size_t>(std::ranges::min_element(times) - times.begin());
    result.push_back({alike.product, alike.rows, algorithms[best], times[best], times.front()});
  }
  return result;
}

}  // namespace tl::cuda
