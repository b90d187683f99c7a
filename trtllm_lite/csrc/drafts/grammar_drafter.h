// Drafts the tokens that grammars force.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "drafts/drafter.h"
#include "grammar/grammar.h"
#include "schedule/request.h"

namespace tl {

// Where a grammar forces the next tokens, these are the drafts. Otherwise, and for requests without a grammar, another
// drafter proposes drafts, which end before the first that the grammar forbids.
class GrammarDrafter final : public Drafter {
 public:
  using GrammarOf = std::function<std::shared_ptr<const Grammar>(const Request&)>;  // null: the request has no grammar
  // `other` may be null: then there are only forced drafts.
  GrammarDrafter(GrammarOf grammar_of, std::shared_ptr<Drafter> other)
      : grammar_of_(std::move(grammar_of)), other_(std::move(other)) {}

  std::unique_ptr<DraftState> start(const Request& request) override;
  double relative_cost() const override { return other_ ? other_->relative_cost() : 0; }
  void look_at(const StepBatch& batch, std::span<DraftTask> tasks) override;
  DraftTimes draft(std::span<DraftTask> tasks) override;
  void launched(const StepBatch& batch) override {
    if (other_) other_->launched(batch);
  }
  void end(DraftState& state, std::span<const std::int32_t> generated) override;

 private:
  const GrammarOf grammar_of_;
  const std::shared_ptr<Drafter> other_;
};

}  // namespace tl
