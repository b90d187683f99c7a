// Random requests, cancellations and device faults, thrown at a Driver.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include "check.h"
#include "driver.h"

inline tl::SchedulerConfig scheduler_config(tl::CapacityPolicy policy, int batch, int tokens, int length) {
  return {.policy = policy, .max_batch_size = batch, .max_num_tokens = tokens, .max_seq_len = length};
}

// Makes requests with random prompts that often begin alike, and random lengths, priorities and beams.
struct Load {
  explicit Load(std::uint64_t seed, int max_beams = 0, int num_blocks = 0, tl::KvGeometry geometry = {4, {{}}, 1 << 30})
      : random(seed), max_beams(max_beams), num_blocks(num_blocks), geometry(std::move(geometry)) {
    for (int i = 0; i < 3; ++i) prefixes.push_back(random_tokens(random, 24));
  }
  int draw(int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }

  tl::RequestSpec request() {
    Tokens prompt;
    if (draw(2)) {
      const Tokens& prefix = prefixes[draw(3)];
      prompt.assign(prefix.begin(), prefix.begin() + 1 + draw(24));
    }
    for (const std::int32_t token : random_tokens(random, 1 + draw(12))) prompt.push_back(token);
    tl::RequestSpec spec = task(prompt);
    spec.priority = draw(5) - 2;
    if (draw(4) == 0) spec.cache_salt = "tenant";
    if (draw(6) == 0) {
      spec.prompt_outputs = true;
      auto params = std::make_shared<FakeParams>(dynamic_cast<const FakeParams&>(*spec.params));
      params->prompt_outputs = true;
      spec.params = std::move(params);
    } else if (spec.num_beams == 0 && draw(3) == 0) {
      return guided(std::move(spec));
    }
    return spec;
  }

  // Returns a request without beams, or with a number of beams that the cache can hold.
  tl::RequestSpec task(const Tokens& prompt) {
    const int num_tokens = 1 + draw(28);
    int num_beams = max_beams > 0 && draw(6) == 0 ? 1 + draw(max_beams) : 0;
    for (; num_beams > 0; --num_beams) {
      tl::RequestSpec search = search_of(prompt, num_tokens, num_beams, random());
      if (tl::Request(0, search, {}).max_blocks(geometry, 0) <= num_blocks) return search;
    }
    return spec_of(prompt, num_tokens, random());
  }

  std::mt19937_64 random;
  int max_beams, num_blocks;
  tl::KvGeometry geometry;
  std::vector<Tokens> prefixes;
};

inline void check_prompt_positions(const Heard& request) {
  if (!request.spec.prompt_outputs || !request.ran_to_its_end()) return;
  Tokens all(request.spec.prompt.size());
  std::iota(all.begin(), all.end(), 0);
  CHECK(request.prompt_positions == all);  // each position once, in order, in spite of preemptions and failures
}

// Slabs of a cache's memory of any size; blocks may lie in several slabs, and slabs in several blocks. The cache
// gets so many blocks more that requests fit beside what is lent.
inline void add_slabs(Load& load, tl::KvManagerConfig& cache) {
  cache.slabs = {.block_bytes = 1 + load.draw(5), .slab_bytes = 2 + load.draw(11), .max_lent = 1 + load.draw(3)};
  const int num_blocks = cache.num_blocks;
  cache.num_blocks += static_cast<int>(cache.slabs.max_lent * (cache.slabs.slab_bytes / cache.slabs.block_bytes + 1));
  while (cache.num_kept_blocks() < num_blocks) ++cache.num_blocks;
}

// Lends memory of the cache and gives it back, at random.
inline void lend_randomly(Load& load, Driver& driver, int& num_wanted) {
  const int max_lent = driver.scheduler.cache().config().slabs.max_lent;
  if (num_wanted < max_lent && load.draw(8) == 0) {
    const int count = 1 + load.draw(max_lent - num_wanted);
    driver.scheduler.lend(count);
    num_wanted += count;
  }
  const bool is_short = driver.scheduler.take_short_of_blocks();
  CHECK(!is_short || num_wanted > 0);
  if (!driver.lent.empty() && (is_short || load.draw(10) == 0)) {
    driver.give_back(driver.lent[static_cast<std::size_t>(load.draw(static_cast<int>(driver.lent.size())))]);
    --num_wanted;
  }
}

struct Totals {
  std::int64_t recomputed = 0, swapped = 0, hit_tokens = 0, failed = 0, found = 0, accepted = 0, rejected = 0, late = 0,
               lent = 0;
};

inline void run_random_load(std::uint64_t seed, tl::SchedulerConfig config, tl::KvManagerConfig cache, Totals& totals,
                            int num_stages = 1) {
  const tl::KvGeometry geometry = tl::with_steps_of(cache, config.max_num_tokens).geometry();
  Load load(seed, geometry.can_fork() ? config.max_batch_size : 0, cache.num_blocks, geometry);
  if (seed / 2 % 2 == 0 && geometry.can_fork()) {
    config.max_draft_len = 1 + load.draw(tl::kMaxDrafts);
    config.drafter = fake_drafter();
    config.paces_drafts = load.draw(4) == 0;
  }
  if (load.draw(2) > 0) {
    config.step_seconds = 1e-3 * (1 + load.draw(20));
    config.least_prefill = 1 + load.draw(8);
  }
  int num_wanted = 0;  // slabs that are lent, or will be
  if (seed % 5 == 1) add_slabs(load, cache);
  Driver driver(config, cache, config.max_batch_size + load.draw(3), num_stages);
  driver.may_wait = load.draw(2) > 0;
  driver.executor.late_with_results = load.draw(2) > 0;
  const int odds = 2 + load.draw(8);
  driver.executor.is_late = [&, odds](const tl::StepRow&) { return geometry.can_fork() && load.draw(odds) == 0; };
  driver.executor.is_woken = [&, odds](int) { return load.draw(odds) > 0; };
  driver.executor.seconds_per_token = 1e-3;
  driver.executor.seconds_per_copy = 1e-6 * std::pow(10.0, load.draw(5));
  for (int i = 0; i < 120; ++i) {
    if (load.draw(3) > 0) driver.submit(load.request());
    if (load.draw(12) == 0)
      driver.end(1 + load.draw(static_cast<int>(driver.heard.size()) + 1), tl::FinishReason::kCancelled);
    if (load.draw(30) == 0) {  // a step fails and blames one of its rows, or none
      const bool attributable = load.draw(4) > 0;
      driver.executor.on_wait = [attributable](const tl::StepBatch& batch) {
        std::vector<int> slots;
        if (attributable && !batch.rows.empty()) slots.push_back(batch.rows.front().slot);
        throw tl::StepError("device fault", slots);
      };
    }
    lend_randomly(load, driver, num_wanted);
    const std::size_t num_lent = driver.lent.size();
    driver.step();
    totals.lent += static_cast<std::int64_t>(driver.lent.size() - num_lent);
  }
  driver.run();
  driver.step();
  CHECK(std::ssize(driver.lent) == num_wanted);
  while (!driver.lent.empty()) driver.give_back(driver.lent.back());
  driver.check_all_returned();
  for (const auto& [id, request] : driver.heard) {
    check_prompt_positions(request);
    totals.failed += request.end->reason == tl::FinishReason::kError;
    totals.found += request.found.size() > 1;
    if (request.spec.num_beams > 0) CHECK(request.end->timings.num_preemptions == 0);
  }
  const tl::SchedulerStats stats = driver.scheduler.stats();
  totals.recomputed += stats.num_recompute_preemptions;
  totals.swapped += stats.num_swap_preemptions;
  totals.hit_tokens += stats.kv.hit_tokens;
  totals.late += stats.num_late_rows;
  for (const std::int64_t count : stats.drafts.num_accepted) totals.accepted += count, totals.rejected -= count;
  for (const std::int64_t count : stats.drafts.num_drafted) totals.rejected += count;
  if (config.policy == tl::CapacityPolicy::kGuaranteedNoEvict) {
    CHECK(stats.num_recompute_preemptions + stats.num_swap_preemptions == 0);
  }
}
