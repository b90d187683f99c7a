// Bindings of the event loop for an engine on any device.
#include "schedule/loop/event_loop.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "bindings/bindings.h"
#include "bindings/loop.h"
#include "caches/kv_cache_size.h"
#include "drafts/draft_model.h"
#include "drafts/drafting.h"
#include "drafts/grammar_drafter.h"
#include "engine/module.h"
#include "errors.h"
#include "executor/device_executor.h"
#include "sampling/row_sampler.h"
#include "schedule/decoder/loop_config.h"
#include "schedule/step_time.h"

namespace nb = nanobind;

namespace tl {
namespace {

using PromptIds = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// First byte of the salts of requests with an adapter. UTF-8 text never contains it.
constexpr char kOfAdapter = '\xff';

struct LoopOptions {
  int max_batch_size, max_input_len, max_seq_len, max_num_tokens;
  std::int64_t num_host_blocks;
  bool max_utilization, enable_block_reuse, enable_chunked_context;
  int state_interval;  // blocks; 0: none
  int max_draft_len;   // draft tokens of a row in a step; 0: no drafts
  bool paces_drafts;
  std::optional<Drafting> drafting;
  DeviceExecutor* draft_model;  // null if there is no draft model
};

// The event loop of a decoder for Python, with the checks that C++ callers are trusted to make.
class PyEventLoop final : public PyLoop {
 public:
  PyEventLoop(DeviceExecutor& executor, const LoopOptions& options)
      : PyLoop([&] { return make_loop(executor, options); }),
        engine_(executor.engine()),
        low_rank_shapes_(low_rank_shapes(engine_.plan())),
        draft_engine_(options.draft_model == nullptr ? nullptr : &options.draft_model->engine()),
        gathers_context_(max_logits(engine_) >= options.max_num_tokens) {}

  RequestId submit(const PromptIds& prompt_ids, const SamplingParams& sampling,
                   std::vector<std::vector<std::int32_t>> stop_sequences, int priority, std::optional<double> timeout,
                   std::string cache_salt, std::uint32_t sequence_index, bool context_logits, bool generation_logits,
                   std::optional<BeamSearchParams> beams, std::shared_ptr<Grammar> grammar,
                   std::shared_ptr<Adapter> adapter, std::shared_ptr<PromptRows> rows) {
    home().check();
    engine_.check_unchanged();
    if (draft_engine_ != nullptr) draft_engine_->check_unchanged();
    if ((context_logits || sampling.prompt_logprobs) && !gathers_context_) {
      throw LimitError(
          "expected an engine that computes the logits of whole prompts, found one for the last prompt token only: "
          "build it with --gather_context_logits, or ask for neither context logits nor prompt_logprobs");
    }
    auto params = std::make_shared<RequestParams>();
    params->sampling = sampling;
    params->sequence_index = sequence_index;
    params->context_logits = context_logits;
    params->generation_logits = generation_logits;
    params->beams = beams;
    params->grammar = std::move(grammar);
    params->rows = rows;
    if (adapter) {
      adapter->check_made_for(low_rank_shapes_);
      cache_salt = kOfAdapter + adapter->key() + cache_salt;
      params->adapter = std::move(adapter);
    }
    if (rows && sampling.prompt_logprobs) {
      throw LimitError(
          "expected no prompt_logprobs of a prompt with embeddings, which are no tokens, found them asked for: leave "
          "one "
          "of them out");
    }
    if (beams && generation_logits) {
      throw LimitError("expected no generation_logits with beam search, found them asked for: leave one of them out");
    }
    if (beams && params->grammar) {
      throw LimitError("expected no guided_decoding with beam search, found it asked for: leave one of them out");
    }
    RequestSpec spec{.prompt = {prompt_ids.data(), prompt_ids.data() + prompt_ids.size()},
                     .max_new_tokens = sampling.max_tokens,
                     .min_new_tokens = sampling.min_tokens,
                     .num_beams = beams ? beams->num_beams : 0,
                     .extra = sequence_index > 0,
                     .guided = params->grammar != nullptr,
                     .priority = priority,
                     .prompt_outputs = context_logits || sampling.prompt_logprobs.has_value(),
                     .end_ids = ending_tokens(sampling),
                     .stop_sequences = std::move(stop_sequences),
                     .timeout = {},
                     .cache_salt = std::move(cache_salt),
                     .rows = std::move(rows),
                     .params = std::move(params)};
    if (timeout) spec.timeout = duration_of(*timeout);
    return loop().submit(std::move(spec));
  }

  // Returns tokens and ends; None when the loop is shut down and every event has been delivered.
  std::optional<std::pair<nb::typed<nb::list, TokenEvent>, nb::typed<nb::list, RequestEnd>>> poll(double timeout) {
    static thread_local EventBatch batch;  // static, so that buffers are swapped with the loop's and keep their memory
    if (poll_into(batch, timeout) == PollStatus::kClosed) return std::nullopt;
    short_of_blocks_ = batch.short_of_blocks;
    nb::list tokens, ends;
    for (TokenEvent& event : batch.tokens) tokens.append(nb::cast(std::move(event), nb::rv_policy::move));
    for (RequestEnd& end : batch.ends) ends.append(nb::cast(std::move(end), nb::rv_policy::move));
    return std::pair(std::move(tokens), std::move(ends));
  }

  // Whether requests waited for blocks at the last poll().
  bool short_of_blocks() const { return short_of_blocks_; }
  std::vector<int> lend_slabs(int num_slabs) {
    home().check();
    const nb::gil_scoped_release release;
    return loop().lend_slabs(num_slabs);
  }
  void return_slabs(const std::vector<int>& slabs) {
    if (home().is_this()) loop().return_slabs(slabs);
  }

 private:
  static std::int64_t max_logits(const Engine& engine) {
    return engine.plan_for(engine.manifest().target.kind).symbols[Symbol::kNumLogits];
  }

  static EventLoop* make_loop(DeviceExecutor& executor, const LoopOptions& options) {
    DecoderLoopConfig checked = config(executor, options);  // checked before memory is reserved
    std::unique_ptr<StepExecutor> steps = executor.make_step_executor(options.num_host_blocks, options.max_batch_size);
    checked.scheduler.drafter = drafter_of(options, executor, steps->num_slots());
    return new EventLoop(checked, std::move(steps));
  }

  static DecoderLoopConfig config(const DeviceExecutor& executor, const LoopOptions& options) {
    const Manifest& manifest = executor.engine().manifest();
    check_limit("max_batch_size", options.max_batch_size, 1, manifest.limits.max_batch_size);
    check_limit("max_input_len", options.max_input_len, 1, manifest.limits.max_input_len);
    check_limit("max_seq_len", options.max_seq_len, 2, manifest.limits.max_seq_len);
    check_limit("max_num_tokens", options.max_num_tokens, options.max_batch_size, manifest.limits.max_num_tokens);
    check_limit("state_snapshot_interval", options.state_interval, 0, kMaxExtent);
    check_limit("num_speculative_tokens", options.max_draft_len, 0, manifest.limits.max_draft_len);
    check_limit("host_cache_size in KV blocks", options.num_host_blocks, 0,
                std::min(executor.num_blocks() * 1024, kMaxExtent));
    if (!options.enable_chunked_context) {
      check_limit("max_input_len without chunked context", options.max_input_len, 1, options.max_num_tokens);
    }
    const KvManagerConfig cache = {.num_blocks = static_cast<int>(executor.num_blocks()),
                                   .num_host_blocks = static_cast<int>(options.num_host_blocks),
                                   .tokens_per_block = static_cast<int>(manifest.kv_cache.tokens_per_block),
                                   .enable_block_reuse = options.enable_block_reuse,
                                   .hash_seed = std::random_device()(),
                                   .groups = cache_specs(manifest),
                                   .slabs = executor.lendable_slabs()};
    check_fits(with_steps_of(cache, options.max_num_tokens), options.max_seq_len);
    if (options.draft_model != nullptr) {
      check_draft_model(executor.engine(), options.draft_model->engine(), options.max_seq_len, options.max_batch_size);
    }
    const auto policy = options.max_utilization ? CapacityPolicy::kMaxUtilization : CapacityPolicy::kGuaranteedNoEvict;
    DecoderLoopConfig config;
    config.scheduler = {.policy = policy,
                        .max_batch_size = options.max_batch_size,
                        .max_num_tokens = options.max_num_tokens,
                        .max_seq_len = options.max_seq_len,
                        .enable_chunked_context = options.enable_chunked_context,
                        .state_interval = options.state_interval,
                        .step_seconds = manifest.target.kind == TargetKind::kCpu ? kStepSeconds : 0,
                        .max_draft_len = options.max_draft_len,
                        .paces_drafts = options.paces_drafts};
    config.cache = cache;
    config.vocab_size = static_cast<int>(manifest.model.vocab_size);
    config.token_row_bytes = token_row_bytes(only_module(manifest));
    config.max_input_len = options.max_input_len;
    return config;
  }

  // Returns null if there are no drafts.
  static std::shared_ptr<Drafter> drafter_of(const LoopOptions& options, const DeviceExecutor& executor,
                                             int num_slots) {
    static_assert(kMaxDrafts == kMaxDraftLen);
    if (options.drafting && options.draft_model != nullptr) {
      throw std::invalid_argument("event loop: expected drafting or draft_model, found both");
    }
    if (options.max_draft_len == 0) return nullptr;
    std::shared_ptr<Drafter> other;
    if (options.drafting) other = make_drafter(*options.drafting);
    if (options.draft_model != nullptr) {
      other = draft_model(executor, *options.draft_model, options.max_batch_size, options.num_host_blocks, num_slots);
    }
    const auto grammar_of = [](const Request& request) {
      return static_cast<const RequestParams&>(*request.spec.params).grammar;
    };
    return std::make_shared<GrammarDrafter>(grammar_of, std::move(other));
  }

  static void check_fits(const KvManagerConfig& cache, int max_seq_len) {
    const int num_needed = cache.geometry().most_blocks(max_seq_len - 1, max_seq_len - 1);
    const int num_kept = cache.num_kept_blocks();
    if (num_needed <= num_kept) return;
    throw LimitError("max_seq_len: expected a length that fits into the KV cache of " + std::to_string(num_kept) +
                     " blocks of " + std::to_string(cache.tokens_per_block) + " tokens, found " +
                     std::to_string(max_seq_len) + ", which takes " + std::to_string(num_needed) +
                     "; lower it or give the cache more memory");
  }

  const Engine& engine_;
  const LowRankShapes low_rank_shapes_;
  const Engine* draft_engine_;  // null: no draft model
  bool gathers_context_;
  bool short_of_blocks_ = false;
};

void bind_init(nb::class_<PyEventLoop, PyLoop>& loop) {
  const auto init = [](PyEventLoop* self, DeviceExecutor& executor, int max_batch_size, int max_input_len,
                       int max_seq_len, int max_num_tokens, std::int64_t num_host_blocks, bool max_utilization,
                       bool enable_block_reuse, bool enable_chunked_context, int state_interval, int max_draft_len,
                       bool paces_drafts, std::optional<Drafting> drafting, DeviceExecutor* draft_model) {
    new (self)
        PyEventLoop(executor, LoopOptions{max_batch_size, max_input_len, max_seq_len, max_num_tokens, num_host_blocks,
                                          max_utilization, enable_block_reuse, enable_chunked_context, state_interval,
                                          max_draft_len, paces_drafts, std::move(drafting), draft_model});
  };
  loop.def("__init__", init, nb::arg("executor"), nb::kw_only(), nb::arg("max_batch_size"), nb::arg("max_input_len"),
           nb::arg("max_seq_len"), nb::arg("max_num_tokens"), nb::arg("num_host_blocks") = 0,
           nb::arg("max_utilization") = false, nb::arg("enable_block_reuse") = false,
           nb::arg("enable_chunked_context") = true, nb::arg("state_interval") = 0, nb::arg("max_draft_len") = 0,
           nb::arg("paces_drafts") = true, nb::arg("drafting").none() = nb::none(),
           nb::arg("draft_model").none() = nb::none(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 15>(),
           nb::call_guard<nb::gil_scoped_release>(), R"(
               Limits may be tighter than the engine's. ``max_utilization`` admits requests beyond what the KV cache
               guarantees and preempts some if it runs out: they are computed again, or swapped to ``num_host_blocks``
               blocks. ``enable_block_reuse``: requests share the blocks of equal prefixes.
               ``enable_chunked_context``: a prompt may be spread over several steps; without it ``max_input_len``
               must not exceed ``max_num_tokens``. ``state_interval``: the states of recurrent layers are kept for
               other requests after every so many blocks of a prompt, beside those that are always kept; 0 for none.

               A row has up to ``max_draft_len`` draft tokens, from the request's grammar, else from ``drafting`` or
               ``draft_model``, another executor on the same device, which nothing else may use. ``paces_drafts``:
               only as many tokens are drafted as save time.

               Raises LimitError for a limit beyond the engine's, ArgumentError for a ``draft_model`` that cannot
               draft for the engine.)");
}

std::shared_ptr<PromptRows> prompt_rows(const nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig>& positions,
                                        const nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig>& rows,
                                        const nb::bytes& digests) {
  const std::size_t count = positions.size();
  if (rows.shape(0) != count || digests.size() != count * PromptRows::kDigestBytes) {
    throw LimitError("expected a row and a digest of " + std::to_string(PromptRows::kDigestBytes) +
                     " bytes for each position, found " + std::to_string(count) + " positions, " +
                     std::to_string(rows.shape(0)) + " rows and " + std::to_string(digests.size()) +
                     " bytes of digests");
  }
  const std::span bytes = std::as_bytes(std::span(rows.data(), rows.size()));
  return std::make_shared<PromptRows>(PromptRows{.positions = {positions.data(), positions.data() + count},
                                                 .row_bytes = rows.shape(1),
                                                 .rows = {bytes.begin(), bytes.end()},
                                                 .digests = {digests.c_str(), digests.size()}});
}

void bind_prompt_rows(nb::module_& module) {
  nb::class_<PromptRows>(module, "PromptRows", "Embeddings that take the place of tokens of a prompt.")
      .def(nb::new_(&prompt_rows), nb::arg("positions").noconvert(), nb::arg("rows").noconvert(), nb::arg("digests"),
           R"(
           Row i, uint8[row_bytes] in the type of the engine's activations, takes the place of the token at
           ``positions[i]``, int32 in ascending order. ``digests`` has 16 bytes for each row, by which prefixes are told
           apart. Copies all of them. Raises LimitError if their numbers differ.)");
}

void bind_submit(nb::class_<PyEventLoop, PyLoop>& loop) {
  loop.def("submit", &PyEventLoop::submit, nb::arg("prompt_ids").noconvert(), nb::arg("params"), nb::kw_only(),
           nb::arg("stop_sequences") = std::vector<std::vector<std::int32_t>>(), nb::arg("priority") = 0,
           nb::arg("timeout").none() = nb::none(), nb::arg("cache_salt") = "", nb::arg("sequence_index") = 0,
           nb::arg("context_logits") = false, nb::arg("generation_logits") = false,
           nb::arg("beams").none() = nb::none(), nb::arg("grammar").none() = nb::none(),
           nb::arg("adapter").none() = nb::none(), nb::arg("rows").none() = nb::none(), R"(
               Queue a request; returns its id at once.

               With ``beams`` the request is a beam search: it delivers no tokens, only an event with ``hypotheses``
               just before its end. It takes as many places in a batch as it has beams, and allows neither stop
               sequences nor ``generation_logits``. With ``grammar`` the generated tokens spell one of its texts,
               unless something other than an end token ends them.

               With ``rows`` embeddings take the place of some tokens of the prompt, which can be any.

               ``timeout`` is in seconds; requests of a greater ``priority`` (up to MAX_PRIORITY) are served earlier;
               only requests of equal ``cache_salt`` share blocks. Requests with one seed get different random numbers
               if their ``sequence_index`` differs. Raises LimitError if the request exceeds a limit, OverloadedError
               if too many requests are outstanding (for one whose ``sequence_index`` is not 0, half as many are too
               many), EngineError if the engine's file has been written to, or in a fork of the process. Wrong
               sampling parameters end the request with an error.)");
}

}  // namespace

void bind_event_loop(nb::module_& module) {
  bind_prompt_rows(module);
  module.attr("MAX_STOP_WORDS") = kMaxStopSequences;
  module.attr("MAX_STOP_WORD_LENGTH") = kMaxStopSequenceLength;
  nb::class_<PyEventLoop, PyLoop> loop(module, "EventLoop", R"(
      Schedules in-flight batching of a decoder over its executor.

      Steps of other callers of the executor take turns with the loop's, but would overwrite its KV cache.)");
  bind_init(loop);
  bind_submit(loop);
  loop.def("poll", &PyEventLoop::poll, nb::arg("timeout"), R"(
          Events since the last call, waiting for one at most ``timeout`` seconds; the GIL is released.

          The tokens of a request come in order, before its end or together with it.

          None: the loop is shut down and every event has been delivered.)")
      .def_prop_ro("short_of_blocks", &PyEventLoop::short_of_blocks,
                   "Whether requests, at the last poll, waited for blocks whose memory is lent; told once each time.")
      .def("lend_slabs", &PyEventLoop::lend_slabs, nb::arg("num_slabs"), R"(
          Take slabs of memory from the KV cache for another use; waits until no step reaches them, for their numbers.

          Raises LimitError if the cache cannot spare so many, or the loop is shut down.)")
      .def("return_slabs", &PyEventLoop::return_slabs, nb::arg("slabs"), "Give slabs back to the KV cache.");
}

}  // namespace tl
