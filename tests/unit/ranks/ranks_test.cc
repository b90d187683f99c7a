// Ranks as threads: what collectives compute, whichever rank is late, and what becomes of a step in which a rank fails.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "errors.h"
#include "ranks/collectives.h"
#include "ranks/rank_rendezvous.h"

namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

constexpr std::int64_t kRows = 3, kFeatures = 700;  // more elements than are added at once

std::byte* bytes(Floats& values) { return reinterpret_cast<std::byte*>(values.data()); }

// Runs `work(rank)` on a thread for each rank, as one step.
void run_step(tl::RankRendezvous& rendezvous, const std::function<void(int)>& work) {
  rendezvous.begin();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < rendezvous.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      std::exception_ptr error;
      try {
        work(rank);
      } catch (...) {
        error = std::current_exception();
      }
      rendezvous.end(rank, error);
    });
  }
  std::exception_ptr failure;
  try {
    rendezvous.supervise();
  } catch (...) {
    failure = std::current_exception();
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

// One collective of a step, with both of its rendezvous.
void compute(tl::RankRendezvous& rendezvous, int rank, bool reduces, Floats& x, Floats& y, std::int64_t y_features) {
  const tl::CollectiveSite site{0, "sum of x"};
  const tl::RankOperands own{bytes(x), bytes(y)};
  const std::span<const tl::RankOperands> all = rendezvous.meet(rank, own, site);
  if (reduces) {
    tl::all_reduce(rank, all, kRows * kFeatures);
  } else {
    tl::all_gather(rank, all, kRows, kFeatures, y_features);
  }
  rendezvous.part(rank, site);
}

Floats random_floats(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(kRows * kFeatures));
  for (float& value : values) value = normal(random);
  return values;
}

void check_sum(const std::vector<Floats>& x, const Floats& y) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    float sum = 0;
    for (const Floats& of_rank : x) sum += of_rank[i];
    CHECK(y[i] == sum);  // bit for bit, because ranks are added in their order
  }
}

void check_gathered(const std::vector<Floats>& x, const Floats& y, std::int64_t y_features) {
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < y_features; ++column) {
      const Floats& from = x[static_cast<std::size_t>(column / kFeatures)];
      CHECK(y[static_cast<std::size_t>(row * y_features + column)] ==
            from[static_cast<std::size_t>(row * kFeatures + column % kFeatures)]);
    }
  }
}

}  // namespace

TEST(collectives_give_all_ranks_the_same) {
  for (const int num_ranks : {1, 2, 3, 7}) {
    tl::RankRendezvous rendezvous(num_ranks, 60s);
    const std::int64_t gathered = num_ranks * kFeatures - 5;  // the last rank's features end with padding
    for (std::uint64_t step = 0; step < 20; ++step) {
      std::vector<Floats> x, sums, rows;
      for (int rank = 0; rank < num_ranks; ++rank) {
        x.push_back(random_floats(step * 100 + static_cast<std::uint64_t>(rank)));
        sums.emplace_back(x.back().size());
        rows.emplace_back(static_cast<std::size_t>(kRows * gathered));
      }
      run_step(rendezvous, [&](int rank) {
        const auto own = static_cast<std::size_t>(rank);
        for (std::uint64_t i = (step * 7 + own) % 5; i > 0; --i) std::this_thread::yield();
        compute(rendezvous, rank, true, x[own], sums[own], kFeatures);
        compute(rendezvous, rank, false, x[own], rows[own], gathered);
      });
      for (const Floats& sum : sums) check_sum(x, sum);
      for (const Floats& row : rows) check_gathered(x, row, gathered);
    }
  }
}

TEST(a_rank_that_throws_ends_the_step_alone) {
  tl::RankRendezvous rendezvous(3, 60s);
  std::vector<Floats> x(3, random_floats(1)), y(3, x[0]);
  const auto step = [&](bool fails) {
    run_step(rendezvous, [&](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      compute(rendezvous, rank, true, x[own], y[own], kFeatures);
      if (fails && rank == 1) throw std::runtime_error("out of memory");
      compute(rendezvous, rank, true, y[own], x[own], kFeatures);
    });
  };
  for (int i = 0; i < 10; ++i) {
    CHECK_THROWS(std::runtime_error, step(true), "out of memory");
    CHECK(!rendezvous.gave_up());
    step(false);
  }
}

TEST(a_rank_that_stalls_is_named_and_given_up) {
  for (const int late : {0, 2}) {
    tl::RankRendezvous rendezvous(3, 500ms);
    std::vector<Floats> x(3, random_floats(1)), y(3, x[0]);
    std::atomic<bool> goes_on = false;
    rendezvous.begin();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank == late) goes_on.wait(false);
        try {
          const auto own = static_cast<std::size_t>(rank);
          compute(rendezvous, rank, true, x[own], y[own], kFeatures);
        } catch (const tl::DeviceError&) {  // thrown to the other ranks, and to the late rank when it comes
        }
        rendezvous.end(rank, nullptr);
      });
    }
    const std::string message =
        "rank " + std::to_string(late) + " of 3 did not come to collective 0 (sum of x) of step 1";
    CHECK_THROWS(tl::DeviceError, rendezvous.supervise(), message.c_str());
    CHECK(rendezvous.gave_up());
    CHECK_THROWS(tl::DeviceError, rendezvous.begin(), "load the engine again");
    goes_on = true;
    goes_on.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_MAIN
