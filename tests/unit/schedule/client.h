// A consumer of an event loop that checks the events it receives.
#pragma once

#include <map>

#include "check.h"
#include "driver.h"
#include "schedule/decoder/loop_config.h"
#include "schedule/loop/event_loop.h"

class Client {
 public:
  explicit Client(tl::EventLoop& loop) : loop_(loop) {}

  // Polls once; false when the loop is closed.
  bool poll(std::chrono::milliseconds timeout = std::chrono::milliseconds(100)) {
    const tl::PollStatus status = loop_.poll(events_, timeout);
    CHECK((status == tl::PollStatus::kEvents) == !events_.empty());
    num_short += events_.short_of_blocks;
    for (tl::TokenEvent& event : events_.tokens) {
      CHECK(!ends.contains(event.id));  // nothing follows the end
      if (event.tokens.empty()) {
        found[event.id] = std::move(dynamic_cast<FakeOutputs&>(*event.outputs).found);
        continue;
      }
      CHECK(event.index == std::ssize(tokens[event.id]));
      tokens[event.id].insert(tokens[event.id].end(), event.tokens.begin(), event.tokens.end());
    }
    for (tl::RequestEnd& end : events_.ends) CHECK(ends.emplace(end.id, std::move(end)).second);
    return status != tl::PollStatus::kClosed;
  }

  const tl::RequestEnd& wait_for(tl::RequestId id) {
    while (!ends.contains(id)) CHECK(poll(std::chrono::milliseconds(20000)));
    return ends.at(id);
  }
  void wait_for_token(tl::RequestId id) {
    while (tokens[id].empty()) CHECK(poll(std::chrono::milliseconds(20000)));
  }
  void wait_until_closed() {
    while (poll()) {
    }
  }

  std::map<tl::RequestId, Tokens> tokens;
  std::map<tl::RequestId, std::vector<Tokens>> found;  // results of beam searches
  std::map<tl::RequestId, tl::RequestEnd> ends;
  int num_short = 0;  // events that say that requests wait for blocks whose memory is lent

 private:
  tl::EventLoop& loop_;
  tl::EventBatch events_;
};

inline tl::DecoderLoopConfig loop_config(int batch = 4, int num_blocks = 64) {
  tl::DecoderLoopConfig config;
  config.scheduler = {
      .policy = tl::CapacityPolicy::kMaxUtilization, .max_batch_size = batch, .max_num_tokens = 32, .max_seq_len = 100};
  config.cache = {.num_blocks = num_blocks, .num_host_blocks = 16, .tokens_per_block = 4};
  config.vocab_size = kVocab;
  config.max_input_len = 90;
  config.max_requests = 100;
  return config;
}

// The loop owns the executor; the pointer stays valid as long as the loop.
inline std::pair<std::unique_ptr<FakeExecutor>, FakeExecutor*> executor_for(const tl::DecoderLoopConfig& config,
                                                                            int num_stages = 1) {
  auto executor = std::make_unique<FakeExecutor>(FakeShape{.num_slots = config.scheduler.max_batch_size + 2,
                                                           .num_blocks = config.cache.num_blocks,
                                                           .num_host_blocks = config.cache.num_host_blocks,
                                                           .tokens_per_block = config.cache.tokens_per_block,
                                                           .num_stages = num_stages});
  FakeExecutor* borrowed = executor.get();
  return {std::move(executor), borrowed};
}
