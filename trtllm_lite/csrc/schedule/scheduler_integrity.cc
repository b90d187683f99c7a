// The part of the Scheduler that checks its invariants.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "schedule/scheduler.h"

namespace tl {
namespace {

void check(bool ok, const char* what) {
  if (!ok) throw std::logic_error(std::string("scheduler: ") + what);
}

}  // namespace

void Scheduler::check_integrity() {
  cache_.check_integrity();
  const auto rank_of = [&](Index index) { return table_.request(index).rank; };
  check(std::ranges::is_sorted(running_, {}, rank_of), "running requests are out of order");
  check(static_cast<int>(running_.size()) + waiting_.size() == table_.size(), "a request is lost or listed twice");
  check_promises();
  for (const Index index : running_) {
    const auto* running = std::get_if<Running>(&table_.state(index));
    check(running != nullptr, "a listed request is not running");
    const int num_unsettled = cache_.num_unsettled(running->kv());
    check(remaining(*running) >= 0 || num_unsettled > 0, "more is scheduled than there are tokens");
    check(!running->request().drafts() || running->request().num_pending <= 1, "a request that drafts runs ahead");
    const int num_pending = running->request().num_pending, num_of_late = running->request().spec.guided ? 1 : 0;
    check(num_unsettled == 0 || num_pending > 0, "positions are unsettled with no row in flight");
    check(num_unsettled <= num_of_late || num_pending == 1, "drafts are in flight with no row, or beside another row");
  }
  for (const auto& [rank, index] : waiting_.entries()) {
    check(!std::holds_alternative<Running>(table_.state(index)) && rank_of(index) == rank, "wrong queue entry");
  }
}

// Blocks that the request's sequences hold, counted as KvCacheManager::num_claimed does.
int Scheduler::num_claimed_by(const Running& running) const {
  std::vector<const KvSequence*> sequences{&running.kv()};
  if (running.beams() != nullptr) {
    for (const Beam& beam : running.beams()->beams()) sequences.push_back(&beam.kv);
  }
  std::multiset<std::int32_t> in_windowed;
  std::set<std::int32_t> in_others;
  for (const KvSequence* kv : sequences) {
    for (int group = 0; group < cache_.geometry().num_groups(); ++group) {
      for (const std::int32_t first : cache_.blocks(*kv, group).subspan(cache_.first_block(*kv, group))) {
        for (std::int32_t block = first; block < first + cache_.geometry().blocks(group); ++block) {
          if (cache_.geometry().kind(group).gives_back()) {
            in_windowed.insert(block);
          } else {
            in_others.insert(block);
          }
        }
      }
    }
  }
  return static_cast<int>(in_windowed.size() + in_others.size());
}

// Checks that each promise is the number of blocks the request may still take, and that so many are there.
void Scheduler::check_promises() const {
  int num_promised = 0, num_rows = 0;
  for (const Index index : running_) {
    const auto& running = std::get<Running>(table_.state(index));
    num_rows += running.request().max_rows();
    check((running.promise() != nullptr) == needs_promise(running.request()), "a promise is missing, or needless");
    if (running.promise() == nullptr) continue;
    const int most = running.request().max_blocks(cache_.geometry(), cache_.length(running.kv()));
    check(running.promise()->num_blocks() == most - num_claimed_by(running), "a promise is not kept");
    check(running.promise()->num_blocks() >= 0, "a request holds more than it can ever hold");
    num_promised += running.promise()->num_blocks();
  }
  check(num_promised == promises_.num_blocks(), "promises are miscounted");
  check(promises_.empty() || num_free(true) >= 0, "more is promised than there is");
  check(num_rows == num_rows_ && num_rows <= config_.max_batch_size, "more rows than max_batch_size");
}

}  // namespace tl
