#include "drafts/grammar_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tl {
namespace {

// The state of a request under a grammar.
class GuidedState : public DraftState {
 public:
  GuidedState(std::unique_ptr<TokenForcer> forcer, std::unique_ptr<DraftState> of_other)
      : other(std::move(of_other)), forcer_(std::move(forcer)) {
    proposes = other != nullptr;
    forces = true;
  }

  // Looks for up to `num` forced tokens. Returns whether there is at least one.
  bool look(const Request& request, int num) {
    use(request, [&] { forced = forcer_->forced_tokens(num); });
    return !forced.empty();
  }
  int num_allowed(const Request& request, const TokenRun& drafts) {
    int num = drafts.size();
    use(request, [&] { num = forcer_->num_allowed({drafts.begin(), static_cast<std::size_t>(drafts.size())}); });
    return num;
  }

  const std::unique_ptr<DraftState> other;  // the other drafter's state; null if it does not draft for this request
  std::vector<std::int32_t> forced;
  int most = 0;  // the task's `most`, while it is hidden from the other drafter

 private:
  // If a text exceeds the limits of the grammar library, it gets no more forced drafts; sampling reports the error.
  template <typename Do>
  void use(const Request& request, Do&& what) {
    forced.clear();
    if (!forcer_) return;
    try {
      forcer_->accept(std::span(request.tokens).subspan(static_cast<std::size_t>(request.num_prompt + num_accepted_)));
      num_accepted_ = static_cast<int>(request.tokens.size()) - request.num_prompt;
      what();
    } catch (const GrammarError&) {
      forcer_.reset();
    }
  }

  std::unique_ptr<TokenForcer> forcer_;  // null after an error
  int num_accepted_ = 0;
};

GuidedState* guided(const Request& request) {
  return request.draft_state->forces ? static_cast<GuidedState*>(request.draft_state.get()) : nullptr;
}

bool is_forced(const DraftTask& task) { return task.forced.value_or(false); }

std::size_t most_of(const DraftTask& task) { return static_cast<std::size_t>(task.most); }

void hide_forced(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) {
    if (is_forced(task)) guided(task.request)->most = std::exchange(task.most, 0);
  }
}

void show_forced(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) {
    if (!is_forced(task)) continue;
    task.most = guided(task.request)->most;
    task.num_behind = 0;
  }
}

}  // namespace

std::unique_ptr<DraftState> GrammarDrafter::start(const Request& request) {
  std::unique_ptr<DraftState> others = other_ ? other_->start(request) : nullptr;
  const std::shared_ptr<const Grammar> grammar = grammar_of_(request);
  std::unique_ptr<TokenForcer> forcer = grammar ? grammar->start_forcer() : nullptr;
  if (!forcer) return others;
  return std::make_unique<GuidedState>(std::move(forcer), std::move(others));
}

// The other drafter sees all tasks, but is asked for no drafts where forced tokens are known.
void GrammarDrafter::look_at(const StepBatch& batch, std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) {
    GuidedState* const state = guided(task.request);
    if (state == nullptr) continue;
    task.state = state->other.get();
    if (task.most > 0 && task.request.forced_rest == 0) task.forced = state->look(task.request, task.most);
  }
  if (!other_) return;
  hide_forced(tasks);
  other_->look_at(batch, tasks);
  show_forced(tasks);
}

DraftTimes GrammarDrafter::draft(std::span<DraftTask> tasks) {
  DraftTimes times;
  if (other_) {
    hide_forced(tasks);
    times = other_->draft(tasks);
    show_forced(tasks);
  }
  for (DraftTask& task : tasks) {
    GuidedState* const state = guided(task.request);
    if (state == nullptr) continue;
    if (!is_forced(task)) {
      if (!task.drafts.empty()) task.drafts.cut(state->num_allowed(task.request, task.drafts));
      continue;
    }
    for (const std::int32_t token : std::span(state->forced).first(std::min(state->forced.size(), most_of(task)))) {
      task.drafts.push_back(token);
    }
  }
  return times;
}

void GrammarDrafter::end(DraftState& state, std::span<const std::int32_t> generated) {
  if (!state.forces) return other_->end(state, generated);
  if (const auto& own = static_cast<GuidedState&>(state); own.other) other_->end(*own.other, generated);
}

}  // namespace tl
