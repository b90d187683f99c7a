// Texts from several threads against the event loop of an encoder over the CPU executor, whose steps with long texts
// pause after each instruction: every text gets the embedding that it has alone.
//   cpu_encoder_stress ENGINE NUM_TEXTS
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/cpu_executor.h"
#include "executor/embedding.h"
#include "schedule/encoder/loop_config.h"
#include "schedule/loop/event_loop.h"

namespace {

using Text = std::vector<std::int32_t>;
using Embedding = std::vector<float>;

constexpr int kNumThreads = 3;
constexpr int kNumTexts = 24;

Embedding embed_alone(tl::CpuExecutor& executor, const Text& text) {
  const std::int64_t tokens_per_block = executor.engine().manifest().kv_cache.tokens_per_block;
  const std::int32_t length = static_cast<std::int32_t>(text.size()), past = 0;
  tl::StepRequest request;
  request.token_ids = text;
  request.seq_lens = {&length, 1};
  request.past_lens = {&past, 1};
  request.blocks_per_row = (length + tokens_per_block - 1) / tokens_per_block;
  Embedding embedding;
  executor.step(request,
                [&](std::span<const float> rows, tl::ThreadPool&) { embedding.assign(rows.begin(), rows.end()); });
  return embedding;
}

// Every fourth text is long.
std::vector<Text> make_texts(const tl::Manifest& manifest) {
  std::mt19937_64 random(1);
  std::vector<Text> texts;
  for (int i = 0; i < kNumTexts; ++i) {
    const auto longest = static_cast<std::uint64_t>(manifest.limits.max_input_len);
    const std::uint64_t length = i % 4 == 0 ? longest - random() % 50 : 1 + random() % 40;
    Text& text = texts.emplace_back();
    while (text.size() < length) text.push_back(static_cast<std::int32_t>(3 + random() % 300));
  }
  return texts;
}

tl::EncoderLoopConfig config_for(const tl::Manifest& manifest) {
  tl::EncoderLoopConfig config;
  config.planner = {.max_batch_size = static_cast<int>(manifest.limits.max_batch_size),
                    .max_num_tokens = static_cast<int>(manifest.limits.max_num_tokens),
                    .max_input_len = static_cast<int>(manifest.limits.max_input_len),
                    .step_seconds = 0.05,
                    .slice_seconds = 1e-9};
  config.vocab_size = static_cast<int>(manifest.model.vocab_size);
  return config;
}

void check_close(const Embedding& found, const Embedding& expected) {
  CHECK(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - expected[i]) < 1e-4f);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  const tl::Engine engine(argv[1]);
  const int num_texts = std::atoi(argv[2]);
  tl::CpuExecutor executor(engine, 2, 0, "portable");
  const std::vector<Text> texts = make_texts(engine.manifest());
  std::vector<Embedding> expected;
  for (const Text& text : texts) expected.push_back(embed_alone(executor, text));

  tl::EventLoop loop(config_for(engine.manifest()), executor.make_step_executor(0, 1));
  std::mutex mutex;
  std::map<tl::RequestId, std::size_t> submitted;
  const auto submit = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < num_texts / kNumThreads; ++i) {
      const std::size_t number = random() % texts.size();
      tl::RequestSpec spec;
      spec.prompt = texts[number];
      spec.max_new_tokens = 0;
      spec.flow = random() % 12;
      const std::lock_guard lock(mutex);
      submitted[loop.submit(std::move(spec))] = number;
    }
  };
  loop.step_log().start(1 << 20);
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumThreads; ++i) threads.emplace_back(submit, static_cast<std::uint64_t>(i));
  for (std::thread& thread : threads) thread.join();
  loop.shut_down(tl::Shutdown::kDrain);
  tl::EventBatch events;
  std::map<tl::RequestId, Embedding> found;
  while (loop.poll(events, std::chrono::seconds(60)) == tl::PollStatus::kEvents) {
    for (tl::TokenEvent& event : events.tokens) {
      found[event.id] = static_cast<tl::EmbeddingOutputs&>(*event.outputs).values;
    }
    for (const tl::RequestEnd& end : events.ends) CHECK(end.reason == tl::FinishReason::kEndId);
  }
  CHECK(found.size() == submitted.size());
  for (const auto& [id, number] : submitted) check_close(found.at(id), expected[number]);
  int num_paused = 0;
  for (const tl::StepRecord& step : loop.step_log().take().steps) num_paused += step.num_rows == 0;
  CHECK(num_paused > 10);
}
