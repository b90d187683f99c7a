#include "engine/low_rank_parts.h"

#include <string>

#include "engine/call.h"
#include "errors.h"
#include "low_rank_schema.h"

namespace tl {
namespace {

// Positions in the order of the schema.
enum Attribute : std::size_t { kFirstPart, kNumParts, kMaxRank, kFirstEnd, kSecondEnd, kThirdEnd };

void add_call(const ResolvedCall& call, const Plan& plan, LowRankShapes* shapes) {
  const auto value = [&](Attribute name) { return call.attributes[name].i; };
  const PlanTensor& x = plan.tensors[static_cast<std::size_t>(call.inputs[low_rank::kX])];
  if (value(kFirstPart) != std::ssize(shapes->parts)) {
    throw EngineError("operator LowRank: expected projections numbered in order, number " +
                      std::to_string(shapes->parts.size()) + " next, found " + std::to_string(value(kFirstPart)));
  }
  if (shapes->max_rank != 0 && shapes->max_rank != value(kMaxRank)) {
    throw EngineError("operator LowRank: expected max_rank " + std::to_string(shapes->max_rank) + ", found " +
                      std::to_string(value(kMaxRank)));
  }
  if (x.shape[1].symbol) throw EngineError("operator LowRank: expected as many in_features in every step");
  shapes->max_rank = value(kMaxRank);
  const std::int64_t ends[] = {value(kFirstEnd), value(kSecondEnd), value(kThirdEnd)};
  for (std::int64_t part = 0; part < value(kNumParts); ++part) {
    const std::int64_t begin = part == 0 ? 0 : ends[part - 1];
    shapes->parts.push_back({x.shape[1].value, ends[part] - begin});
  }
}

}  // namespace

LowRankShapes low_rank_shapes(const Plan& plan) {
  LowRankShapes shapes;
  for (const Program& program : plan.programs) {
    for (const Instruction& instruction : program.instructions) {
      const auto* call = std::get_if<CallInstruction>(&instruction);
      if (call != nullptr && call->op == "LowRank") add_call(resolve(*call), plan, &shapes);
    }
  }
  return shapes;
}

}  // namespace tl
