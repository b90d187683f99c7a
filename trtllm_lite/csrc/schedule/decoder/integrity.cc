#include "schedule/decoder/integrity.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace tl {
namespace {

void check(bool ok, const char* what) {
  if (!ok) throw std::logic_error(std::string("scheduler: ") + what);
}

// Blocks that the request's sequences hold, counted as KvCacheManager::num_claimed does.
int num_claimed_by(const Running& running, const KvCacheManager& cache) {
  std::vector<const KvSequence*> sequences{&running.kv()};
  if (running.beams() != nullptr) {
    for (const Beam& beam : running.beams()->beams()) sequences.push_back(&beam.kv);
  }
  std::multiset<std::int32_t> in_windowed;
  std::set<std::int32_t> in_others;
  for (const KvSequence* kv : sequences) {
    for (int group = 0; group < cache.geometry().num_groups(); ++group) {
      for (const std::int32_t first : cache.blocks(*kv, group).subspan(cache.first_block(*kv, group))) {
        for (std::int32_t block = first; block < first + cache.geometry().blocks(group); ++block) {
          if (cache.geometry().kind(group).gives_back()) {
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
void check_promises(const ScheduleState& state) {
  const KvBlocks& blocks = state.blocks;
  int num_promised = 0, num_rows = 0;
  for (const auto index : state.requests.running()) {
    const Running& running = state.requests.table().running(index);
    num_rows += running.request().max_rows();
    const bool needs_promise = blocks.needs_promise(running.request());
    check((running.promise() != nullptr) == needs_promise, "a promise is missing, or needless");
    if (running.promise() == nullptr) continue;
    const int most = running.request().max_blocks(blocks.geometry(), blocks.cache().length(running.kv()));
    const int num_claimed = num_claimed_by(running, blocks.cache());
    check(running.promise()->num_blocks() == most - num_claimed, "a promise is not kept");
    check(running.promise()->num_blocks() >= 0, "a request holds more than it can ever hold");
    num_promised += running.promise()->num_blocks();
  }
  check(num_promised == blocks.promises().num_blocks(), "promises are miscounted");
  check(blocks.promises().empty() || blocks.num_free(true) >= 0, "more is promised than there is");
  const bool is_counted = num_rows == state.requests.running().num_rows();
  check(is_counted && num_rows <= state.config.max_batch_size, "more rows than max_batch_size");
}

void check_running(const Running& running, const KvBlocks& blocks) {
  const Request& request = running.request();
  const int num_unsettled = blocks.cache().num_unsettled(running.kv());
  check(blocks.remaining(running) >= 0 || num_unsettled > 0, "more is scheduled than there are tokens");
  check(!request.drafts() || request.num_pending <= 1, "a request that drafts runs ahead");
  const int num_of_late = request.spec.guided ? 1 : 0;
  check(num_unsettled == 0 || request.num_pending > 0, "positions are unsettled with no row in flight");
  check(num_unsettled <= num_of_late || request.num_pending == 1,
        "drafts are in flight with no row, or beside another row");
}

}  // namespace

void check_integrity(const ScheduleState& state) {
  state.blocks.cache().check_integrity();
  const RequestTable& table = state.requests.table();
  const RunningSet& running = state.requests.running();
  const WaitQueue& waiting = state.requests.waiting();
  const auto rank_of = [&](RequestTable::Index index) { return table.request(index).rank; };
  check(std::is_sorted(running.begin(), running.end(), [&](auto a, auto b) { return rank_of(a) < rank_of(b); }),
        "running requests are out of order");
  check(running.size() + waiting.size() == table.size(), "a request is lost or listed twice");
  for (const auto index : running) {
    check(std::holds_alternative<Running>(table.state(index)), "a listed request is not running");
  }
  check_promises(state);
  for (const auto index : running) check_running(table.running(index), state.blocks);
  for (const auto& [rank, index] : waiting.entries()) {
    check(!std::holds_alternative<Running>(table.state(index)) && rank_of(index) == rank, "wrong queue entry");
  }
}

}  // namespace tl
