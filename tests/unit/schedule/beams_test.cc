// Beam searches in the scheduler: shared blocks, promised blocks, other requests beside them, and faults.
#include <set>

#include "check.h"
#include "random_load.h"

namespace {

using tl::CapacityPolicy;
using tl::FinishReason;

// A search that keeps all its beams for all its tokens.
tl::RequestSpec full_search(const Tokens& prompt, int max_new_tokens, int num_beams) {
  for (std::uint64_t seed = 0;; ++seed) {
    tl::RequestSpec spec = search_of(prompt, max_new_tokens, num_beams, seed);
    const auto& params = dynamic_cast<const FakeParams&>(*spec.params);
    std::vector<Tokens> beams{prompt};
    int num_full = 0;
    for (int i = 0; i + 1 < max_new_tokens; ++i) {
      const auto moves = fake_moves(params, beams, i);
      if (std::ssize(moves) != num_beams) break;
      beams = moved(beams, moves);
      ++num_full;
    }
    if (num_full + 1 == max_new_tokens) return spec;
  }
}

TEST(beams_share_the_prompt_and_copy_only_what_they_write) {
  Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 4, 64, 64),
                {.num_blocks = 40, .tokens_per_block = 4});
  const tl::RequestId id = driver.submit(full_search(Tokens(10, 1), 3, 4));
  std::vector<int> num_rows, num_used;
  std::size_t num_copies = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    num_rows.push_back(static_cast<int>(batch.rows.size()));
    num_used.push_back(driver.scheduler.stats().num_used_blocks);
    num_copies += batch.copies.size();
  };
  driver.run();
  driver.check_all_returned();
  CHECK(num_rows == std::vector<int>({1, 4, 4}));
  // All beams share two full blocks. The block with the prompt's last two tokens is copied for every beam when it
  // generates its first token, and a beam that forks copies its parent's block.
  CHECK(num_used == std::vector<int>({3, 3 + 4, 3 + 4}));
  CHECK(num_copies >= 4 && num_copies <= 4 + 3);
  CHECK(driver.heard.at(id).found.size() == 4);
  CHECK(driver.heard.at(id).end->timings.num_generated_tokens == 3);
}

TEST(a_search_has_one_step_in_flight_and_others_two) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 8, 64, 64),
                {.num_blocks = 80, .tokens_per_block = 4});
  driver.submit(full_search({1, 2, 3}, 8, 3));
  driver.submit(spec_of({4, 5}, 20));
  std::vector<int> num_beams;
  driver.on_step = [&](const tl::StepBatch& batch) {
    int count = 0, num_others = 0;
    for (const tl::StepRow& row : batch.rows) (row.request.index == 0 ? count : num_others) += 1;
    if (driver.num_steps <= 20) CHECK(num_others == 1);
    num_beams.push_back(count);
  };
  driver.run();
  driver.check_all_returned();
  num_beams.resize(17);
  CHECK(num_beams == std::vector<int>({1, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 0}));
}

// The request of highest rank is never preempted, and neither is a search: the request without a promise waits.
TEST(a_request_that_could_only_grow_at_the_cost_of_a_search_waits) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 64, 64),
                {.num_blocks = 20, .tokens_per_block = 4});
  const tl::RequestId growing = driver.submit(spec_of(Tokens(4, 1), 56));        // grows to 15 blocks
  const tl::RequestId search = driver.submit(full_search(Tokens(4, 2), 24, 2));  // grows to 13 blocks
  driver.run();
  driver.check_all_returned();
  CHECK(driver.end_order == std::vector<tl::RequestId>({search, growing}));
  for (const tl::RequestId id : {growing, search}) CHECK(driver.heard.at(id).end->timings.num_preemptions == 0);
  CHECK(driver.num_steps > 56 + 10);  // the request did wait
}

TEST(a_search_waits_until_all_its_beams_have_slots_and_blocks) {
  for (const auto policy : {CapacityPolicy::kMaxUtilization, CapacityPolicy::kGuaranteedNoEvict}) {
    Driver driver(scheduler_config(policy, 6, 64, 64), {.num_blocks = 20, .tokens_per_block = 4}, 6);
    std::vector<tl::RequestId> searches;
    for (int i = 0; i < 6; ++i) searches.push_back(driver.submit(full_search(Tokens(5, i), 10, 3)));  // 11 blocks each
    int most_running = 0;
    driver.on_step = [&](const tl::StepBatch&) {
      most_running = std::max(most_running, driver.scheduler.stats().num_running);
    };
    driver.run();
    driver.check_all_returned();
    CHECK(most_running == 1 && driver.end_order == searches);
  }
}

TEST(a_failed_step_restarts_searches_that_are_not_to_blame) {
  enum class Fault { kOther, kSecondBeam, kRequestSlot, kRow };
  for (const Fault fault : {Fault::kOther, Fault::kSecondBeam, Fault::kRequestSlot, Fault::kRow}) {
    Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 8, 64, 64),
                  {.num_blocks = 80, .tokens_per_block = 4});
    const tl::RequestId search = driver.submit(full_search({1, 2, 3}, 12, 3));
    const tl::RequestId other = driver.submit(spec_of(Tokens(8, 4), 30));
    const auto is_due = [](const tl::StepBatch& batch) { return batch.rows.size() == 4 && batch.step > 5; };
    driver.executor.on_wait = [&](const tl::StepBatch& batch) {
      if (!is_due(batch) || fault == Fault::kRow) return;
      const tl::StepRow& beam = batch.rows.at(1);
      CHECK(batch.rows[0].request == beam.request);
      const int slot = fault == Fault::kOther        ? batch.rows.back().slot
                       : fault == Fault::kSecondBeam ? beam.slot
                                                     : beam.request_slot;
      throw tl::StepError("fault", {slot});
    };
    driver.executor.row_error = [&](const tl::StepRow& row) {
      return fault == Fault::kRow && row.past_len == 6 ? std::string("fault") : std::string();
    };
    driver.run();
    driver.check_all_returned();
    const bool blames_search = fault != Fault::kOther;
    CHECK((driver.heard.at(search).end->reason == FinishReason::kError) == blames_search);
    CHECK(driver.heard.at(search).found.empty() == blames_search);
    CHECK((driver.heard.at(other).end->reason == FinishReason::kError) == (fault == Fault::kOther));
  }
}

TEST(a_search_can_end_at_any_step) {
  for (int step = 0; step < 16; ++step) {
    Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 4, 8, 64),
                  {.num_blocks = 40, .tokens_per_block = 4});
    const tl::RequestId search = driver.submit(full_search(Tokens(13, 1), 10, 3));
    const tl::RequestId next = driver.submit(full_search(Tokens(13, 2), 10, 4));
    for (int i = 0; i < step; ++i) driver.step();
    driver.end(search, step % 2 ? FinishReason::kCancelled : FinishReason::kTimedOut);
    driver.run();
    driver.check_all_returned();
    CHECK(driver.heard.at(search).found.empty() && driver.heard.at(next).found.size() == 4);
  }
}

TEST(searches_reuse_prompts) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 8, 64, 80),
                {.num_blocks = 100, .tokens_per_block = 4});
  const Tokens prompt(21, 7);
  for (int i = 0; i < 2; ++i) driver.submit(full_search(prompt, 6, 3));
  const tl::RequestId plain = driver.submit(spec_of(prompt, 6));
  driver.run();
  driver.check_all_returned();
  CHECK(driver.heard.at(2).end->timings.num_cached_tokens == 20);
  CHECK(driver.heard.at(plain).end->timings.num_cached_tokens == 20);
}

}  // namespace
