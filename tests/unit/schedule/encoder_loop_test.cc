// The event loop of an encoder: several threads submit and cancel texts, steps pause and fail, and every text ends
// once.
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "encoder_driver.h"
#include "errors.h"
#include "schedule/encoder/loop_config.h"
#include "schedule/loop/event_loop.h"

namespace {

constexpr int kEncoderThreads = 3;

tl::EncoderLoopConfig loop_of_encoder() {
  tl::EncoderLoopConfig config;
  config.planner = {.max_batch_size = 6, .max_num_tokens = 40, .max_input_len = 30, .step_seconds = 0.02};
  config.planner.slice_seconds = 0.004;
  config.vocab_size = 1000;
  config.max_requests = 100;
  return config;
}

tl::RequestSpec encoder_text(std::vector<std::int32_t> tokens, std::uint64_t flow = 0) {
  tl::RequestSpec spec;
  spec.prompt = std::move(tokens);
  spec.max_new_tokens = 0;
  spec.flow = flow;
  return spec;
}

std::unique_ptr<FakeEncoder> fake_encoder(bool runs_while_paused = false) {
  const tl::StepBounds beside{.max_rows = 4, .max_tokens = 8};
  auto executor = std::make_unique<FakeEncoder>(6, 40, beside, runs_while_paused);
  executor->seconds_per_token = 1e-3;
  return executor;
}

struct Listener {
  // Polls until `count` texts have ended in all.
  void wait_for(tl::EventLoop& loop, std::size_t count) {
    while (heard.size() < count) {
      if (loop.poll(events, std::chrono::seconds(20)) == tl::PollStatus::kClosed) return;
      for (tl::TokenEvent& event : events.tokens) {
        embeddings[event.id] = dynamic_cast<tl::EmbeddingOutputs&>(*event.outputs).values;
      }
      for (tl::RequestEnd& end : events.ends) CHECK(heard.emplace(end.id, std::move(end)).second);
    }
  }

  tl::EventBatch events;
  std::map<tl::RequestId, Embedding> embeddings;
  std::map<tl::RequestId, tl::RequestEnd> heard;
};

TEST(texts_beyond_limits_are_refused) {
  tl::EventLoop loop(loop_of_encoder(), fake_encoder());
  CHECK_THROWS(tl::LimitError, loop.submit(encoder_text({})), "prompt length in 1 .. 30, found 0");
  CHECK_THROWS(tl::LimitError, loop.submit(encoder_text(std::vector<std::int32_t>(31, 1))), "prompt length in 1 .. 30");
  CHECK_THROWS(tl::LimitError, loop.submit(encoder_text({1000})), "token ids of the prompt in 0 .. 999, found 1000");
  tl::RequestSpec spec = encoder_text({1});
  spec.priority = tl::kMaxPriority + 1;
  CHECK_THROWS(tl::LimitError, loop.submit(spec), "priority");
  CHECK_THROWS(std::logic_error, loop.lend_slabs(1), "a model without a cache");
}

TEST(texts_are_submitted_together_or_not_at_all) {
  tl::EventLoop loop(loop_of_encoder(), fake_encoder());
  CHECK_THROWS(tl::LimitError, loop.submit_all({encoder_text({1}), encoder_text({1000})}), "found 1000");
  CHECK_THROWS(tl::OverloadedError, loop.submit_all(std::vector(101, encoder_text({1}))), "found 0");
  const tl::RequestId first = loop.submit_all({encoder_text({1}), encoder_text({2, 3})});
  Listener listener;
  listener.wait_for(loop, 2);
  CHECK(listener.embeddings.at(first) == embedding_of(std::vector{1}));
  CHECK(listener.embeddings.at(first + 1) == embedding_of(std::vector{2, 3}));
  loop.shut_down(tl::Shutdown::kDrain);
  CHECK_THROWS(tl::LimitError, loop.submit_all({encoder_text({1})}), "shut down");
}

TEST(a_device_that_fails_is_told_of) {
  auto executor = fake_encoder();
  executor->on_wait = [](const tl::StepBatch&) { throw tl::DeviceError("the device is lost"); };
  tl::EventLoop loop(loop_of_encoder(), std::move(executor));
  CHECK(!loop.device_failed());
  const tl::RequestId id = loop.submit(encoder_text({1, 2}));
  Listener listener;
  listener.wait_for(loop, 1);
  CHECK(listener.heard.at(id).message == "the device is lost" && loop.device_failed());
}

void run_random_texts_of_threads(bool runs_while_paused) {
  auto executor = fake_encoder(runs_while_paused);
  auto faults = std::make_shared<std::mt19937_64>(1);
  executor->on_wait = [faults](const tl::StepBatch&) {
    if ((*faults)() % 60 == 0) throw tl::StepError("device fault");
  };
  tl::EventLoop loop(loop_of_encoder(), std::move(executor));
  std::mutex mutex;
  std::map<tl::RequestId, std::vector<std::int32_t>> submitted;
  const int num_texts = static_cast<int>(rounds(3000));
  const auto submit = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
    tl::RequestId last = 0;
    for (int i = 0; i < num_texts;) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(draw(6) ? 1 + draw(8) : 1 + draw(30)));
      for (std::int32_t& token : tokens) token = draw(1000);
      tl::RequestSpec spec = encoder_text(tokens, seed * 10 + static_cast<std::uint64_t>(draw(3)));
      spec.priority = draw(3) - 1;
      if (draw(8) == 0) spec.timeout = std::chrono::microseconds(1 + draw(3000));
      try {
        last = loop.submit(std::move(spec));
        const std::lock_guard lock(mutex);
        submitted[last] = std::move(tokens);
        ++i;
      } catch (const tl::OverloadedError&) {
        std::this_thread::yield();
      }
      if (draw(7) == 0) loop.cancel(last);
      if (draw(50) == 0) (void)loop.stats();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kEncoderThreads; ++i) threads.emplace_back(submit, static_cast<std::uint64_t>(i));
  Listener listener;
  listener.wait_for(loop, static_cast<std::size_t>(kEncoderThreads * num_texts));
  for (std::thread& thread : threads) thread.join();
  loop.shut_down(tl::Shutdown::kDrain);
  CHECK(loop.poll(listener.events, std::chrono::seconds(20)) == tl::PollStatus::kClosed);

  CHECK(std::ssize(submitted) == kEncoderThreads * num_texts && submitted.size() == listener.heard.size());
  for (const auto& [id, tokens] : submitted) {
    const bool embedded = listener.heard.at(id).reason == tl::FinishReason::kEndId;
    CHECK(listener.embeddings.contains(id) == embedded);
    if (embedded) CHECK(listener.embeddings.at(id) == embedding_of(tokens));
  }
  const tl::LoopStats stats = loop.stats();
  CHECK(stats.scheduler.num_running == 0 && stats.scheduler.num_waiting == 0);
  for (const auto reason : {tl::FinishReason::kEndId, tl::FinishReason::kCancelled, tl::FinishReason::kTimedOut,
                            tl::FinishReason::kError}) {
    CHECK(reaches(static_cast<std::uint64_t>(stats.num_ended[static_cast<std::size_t>(reason)]), 20));
  }
}

TEST(random_texts_from_several_threads) { run_random_texts_of_threads(false); }

TEST(random_texts_while_paused_steps_run_on) { run_random_texts_of_threads(true); }

}  // namespace
