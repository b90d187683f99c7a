// The order of service and deadlines, whatever waits.
#include <chrono>

#include "check.h"
#include "schedule/deadlines.h"
#include "schedule/rank.h"
#include "schedule/wait_queue.h"

namespace {

// Queues that share their ranks can tell whose head comes first.
TEST(ranks_order_the_work_of_several_queues) {
  tl::Ranks ranks(4);
  tl::WaitQueue first, second;
  first.insert(ranks.next(0), 0);
  second.insert(ranks.next(0), 0);
  CHECK(first.entries().begin()->first < second.entries().begin()->first);
  second.insert(ranks.next(1), 1);  // one level of priority is worth four arrivals
  CHECK(second.head() == 1 && second.entries().begin()->first < first.entries().begin()->first);
  for (int i = 0; i < 4; ++i) ranks.next(0);
  second.insert(ranks.next(1), 2);
  CHECK(first.entries().begin()->first < second.entries().rbegin()->first);
}

TEST(deadlines_pass_in_their_order) {
  tl::Deadlines deadlines;
  const auto at = [](int second) { return tl::Clock::time_point(std::chrono::seconds(second)); };
  deadlines.add(at(5), 0);
  deadlines.add(at(3), 1);
  CHECK(!deadlines.passed(at(2)) && deadlines.passed(at(3)) == 1);
  deadlines.remove(at(3), 1);
  CHECK(!deadlines.passed(at(4)) && deadlines.passed(at(6)) == 0);
}

}  // namespace
