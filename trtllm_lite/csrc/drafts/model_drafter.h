// A second, smaller model proposes drafts for the target model (Leviathan et al., "Fast Inference from Transformers via
// Speculative Decoding", 2023). It samples with the request's own parameters and random numbers, as the target model
// does, so that two models that agree on the likely tokens draw the same ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "drafts/drafter.h"
#include "executor/step.h"
#include "executor/step_memory.h"
#include "schedule/request.h"

namespace tl {

struct ModelDrafterConfig {
  int num_slots = 0;  // slots of the scheduler's executor
  int num_blocks = 0, num_host_blocks = 0;
  int tokens_per_block = 0;
  // The cache groups of the target model: keys and values of all tokens, then perhaps states, of which the draft model
  // has none. An entry of a state's table takes `blocks_of_state` consecutive blocks.
  int num_groups = 1, blocks_of_state = 0;
  double relative_cost = 0;  // see Drafter
  int max_num_tokens = 0;    // the most tokens in a step of the draft model; at least most_at_once() for each row
  // Returns the sampling parameters for a request's drafts: its own, without those that only concern its output.
  std::function<std::shared_ptr<const SlotParams>(const std::shared_ptr<const SlotParams>&)> params;
  std::function<double()> seconds;  // tells the time
  // The most drafts of a row, if the draft model reads the target model's features (EAGLE-3, arXiv 2503.01840); 0 if it
  // does not. Features that the draft model made itself for a draft are computed again once the draft is accepted.
  int max_kept = 0;
};

// The draft model's cache has a block for each block of the scheduler, with the same number, and copies blocks when the
// scheduler does: both models use the same block tables. So prefixes, forks and swapped sequences need only a record of
// how much of each block the draft model has computed. It computes a token only when a draft after it is wanted:
// prompts of requests that do not draft cost nothing.
class ModelDrafter final : public Drafter {
 public:
  // `executor` runs the draft model and is used by this drafter alone. It has one cache group, without a window, which
  // is the scheduler's first one.
  ModelDrafter(ModelDrafterConfig config, std::unique_ptr<StepExecutor> executor);

  std::unique_ptr<DraftState> start(const Request& request) override;
  double relative_cost() const override { return config_.relative_cost; }
  // The most tokens of a row whose sequence missed no call: one for the newest token, and one for each accepted draft
  // that must be computed.
  static int most_at_once(int max_kept) { return 1 + std::max(max_kept, 1); }

  void look_at(const StepBatch& batch, std::span<DraftTask> tasks) override;
  // At most one step of max_num_tokens catches up; sequences that are not up to date after it get no drafts yet.
  DraftTimes draft(std::span<DraftTask> tasks) override;
  void launched(const StepBatch& batch) override;
  void end(DraftState&, std::span<const std::int32_t>) override {}

 private:
  struct Proposal {
    DraftTask* task;
    int num_computed;        // positions that the draft model has computed
    bool has_table = false;  // the draft model's executor has the block table
    bool is_over = false;    // no further drafts are wanted, or a row has failed
  };

  int num_computed(const DraftTask& task) const;
  bool is_computing(const Proposal& proposal) const;
  bool is_copied(const DraftTask& task, const StepBatch& batch) const;
  void mark_computed(int slot, int from, int end);
  void mark_overwritten(int slot, int from, int end);
  template <typename Use>
  void for_each_block(int slot, int from, int end, Use&& use);
  void mirror(const StepBatch& batch);
  void forget_blocks_of_states(std::span<const TableUpdate> updates);
  std::int32_t& filled(CopyKind kind, bool is_source, std::int32_t block);

  void open_slots();
  int catch_up();
  void propose();
  void add_row(std::size_t index, int from, int end, StepBatch& batch);
  void add_proposals(int place, StepBatch& batch);
  StepBatch& next_batch();
  void launch(const StepBatch& batch);
  void take_oldest();
  void take_drafts(const StepBatch& batch);
  void give_up();

  const ModelDrafterConfig config_;
  const std::unique_ptr<StepExecutor> executor_;
  BlockTables tables_;                          // block tables of the scheduler's slots
  std::vector<std::int32_t> filled_, on_host_;  // by block: number of leading positions that are computed
  std::uint64_t mirrored_step_ = 0;  // the scheduler's step from which these numbers of copies and updates were taken
  std::size_t num_copies_ = 0, num_updates_ = 0;
  std::vector<CopyOrder> copies_;  // for the draft model's next step

  // State of a call. The index of a proposal is its slot in the draft model's executor.
  std::vector<Proposal> proposals_;
  std::vector<int> drafted_slots_;  // the scheduler's slots of the latest proposals; empty once their rows are launched
  std::array<StepBatch, 2> batches_;
  std::uint64_t num_launched_ = 0;
  int in_flight_ = 0;
  StepResult result_;
};

}  // namespace tl
