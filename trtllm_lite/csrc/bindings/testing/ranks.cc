// Lets tests open engines of which one rank stalls in the middle of a step, like a hanging device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/testing/testing.h"
#include "cpu/cpu_group.h"
#include "cpu/cpu_pipeline.h"

namespace nb = nanobind;

namespace tl {
namespace {

class StallingRendezvous final : public RankRendezvous {
 public:
  StallingRendezvous(int num_ranks, std::chrono::nanoseconds timeout, int rank, int collective)
      : RankRendezvous(num_ranks, timeout), rank_(rank), collective_(collective) {}

  std::span<const RankOperands> meet(int rank, RankOperands operands, const CollectiveSite& site) override {
    if (rank == rank_ && site.number == collective_) stall();
    return RankRendezvous::meet(rank, operands, site);
  }

 private:
  static void stall() {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    while (true) never.wait(lock);
  }

  const int rank_, collective_;
};

std::unique_ptr<CpuGroup> stalling_group(const std::vector<const Engine*>& ranks, int rank, int collective,
                                         double timeout) {
  const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout));
  const int num_ranks = static_cast<int>(ranks.size());
  return std::make_unique<CpuGroup>(ranks, 1, 0,
                                    std::make_unique<StallingRendezvous>(num_ranks, limit, rank, collective));
}

// Two stages, the second of which stalls.
std::unique_ptr<CpuPipeline> stalling_pipeline(const std::vector<const Engine*>& ranks, int rank, int collective,
                                               double timeout) {
  const auto half = static_cast<std::ptrdiff_t>(ranks.size() / 2);
  const std::vector<const Engine*> first(ranks.begin(), ranks.begin() + half), last(ranks.begin() + half, ranks.end());
  std::vector<std::unique_ptr<LogitsExecutor>> stages;
  const auto rendezvous = [&] {
    return std::make_unique<RankRendezvous>(static_cast<int>(half), std::chrono::seconds(30));
  };
  stages.push_back(std::make_unique<CpuGroup>(first, 1, 0, rendezvous()));
  stages.push_back(stalling_group(last, rank, collective, timeout));
  return std::make_unique<CpuPipeline>(std::move(stages));
}

}  // namespace

void bind_ranks(nb::module_& module) {
  module.def("stalling_pipeline", &stalling_pipeline, nb::arg("ranks"), nb::kw_only(), nb::arg("rank"),
             nb::arg("collective"), nb::arg("timeout"), nb::keep_alive<0, 1>(), R"(
                 Two stages of a CPU engine, the second of which has ranks like those of ``stalling_group``.)");
  module.def("stalling_group", &stalling_group, nb::arg("ranks"), nb::kw_only(), nb::arg("rank"), nb::arg("collective"),
             nb::arg("timeout"), nb::keep_alive<0, 1>(), R"(
                 The ranks of a CPU engine with a thread each; ``rank`` never reaches collective number ``collective``
                 of a step.

                 The other ranks wait ``timeout`` seconds for it.)");
}

}  // namespace tl
