#include "engine/low_rank_parts.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>

#include "engine/call.h"
#include "errors.h"
#include "low_rank_schema.h"

namespace tl {
namespace {

// Indices in the order of the schema.
enum Attribute : std::size_t { kFirstPart, kNumParts, kMaxLowRank, kFirstEnd, kSecondEnd, kThirdEnd };

void add_call(const ResolvedCall& call, const Plan& plan, LowRankShapes* shapes) {
  const auto value = [&](Attribute name) { return call.attributes[name].i; };
  const PlanTensor& x = plan.tensors[static_cast<std::size_t>(call.inputs[low_rank::kX])];
  if (value(kFirstPart) != std::ssize(shapes->parts)) {
    throw EngineError("operator LowRank: expected projections numbered in order, number " +
                      std::to_string(shapes->parts.size()) + " next, found " + std::to_string(value(kFirstPart)));
  }
  if (shapes->max_rank != 0 && shapes->max_rank != value(kMaxLowRank)) {
    throw EngineError("operator LowRank: expected max_rank " + std::to_string(shapes->max_rank) + ", found " +
                      std::to_string(value(kMaxLowRank)));
  }
  if (x.shape[1].symbol) throw EngineError("operator LowRank: expected the same number of in_features in every step");
  shapes->max_rank = value(kMaxLowRank);
  const std::int64_t ends[] = {value(kFirstEnd), value(kSecondEnd), value(kThirdEnd)};
  for (std::int64_t part = 0; part < value(kNumParts); ++part) {
    const std::int64_t begin = part == 0 ? 0 : ends[part - 1];
    shapes->parts.push_back({x.shape[1].value, ends[part] - begin, DType::kFloat32});
  }
}

[[noreturn]] void fail(std::size_t number, const std::string& message) {
  throw EngineError("plan.cuda.adapted[" + std::to_string(number) + "]: " + message);
}

bool has_shape(const PlanTensor& slots, std::initializer_list<std::int64_t> of_slot) {
  const auto same = [](const Dim& dim, std::int64_t extent) { return dim == Dim{extent, std::nullopt}; };
  return slots.kind == TensorKind::kAdapter && slots.shape.size() == of_slot.size() + 1 &&
         std::equal(slots.shape.begin() + 1, slots.shape.end(), of_slot.begin(), of_slot.end(), same);
}

void add_slots(const AdaptedProduct& product, std::size_t number, const Plan& plan, LowRankShapes* shapes) {
  const auto tensor = [&](int index) -> const PlanTensor& { return plan.tensors[static_cast<std::size_t>(index)]; };
  const PlanTensor &a = tensor(product.a), &b = tensor(product.b), &ranks = tensor(product.ranks);
  if (a.shape.size() != 3 || b.shape.size() != 3) fail(number, "expected a and b of three axes");
  const std::int64_t in = a.shape[2].value, rank = b.shape[2].value, parts = std::ssize(product.widths);
  std::int64_t out = 0;
  for (const std::int64_t width : product.widths) out += width;
  const bool is_half = item_size(a.dtype) == 2 && a.dtype == b.dtype;
  if (!is_half || !has_shape(a, {parts * rank, in}) || !has_shape(b, {out, rank})) {
    fail(number, "expected a [num_loras, parts * max_rank, in] and b [num_loras, out, max_rank] of 16 bits");
  }
  if (ranks.dtype != DType::kInt32 || !has_shape(ranks, {parts})) fail(number, "expected ranks [num_loras, parts]");
  if (rank % 8 != 0 || (shapes->max_rank != 0 && shapes->max_rank != rank)) {
    fail(number, "expected the same max_rank for all projections, a multiple of 8, found " + std::to_string(rank));
  }
  shapes->max_rank = rank;
  for (const std::int64_t width : product.widths) shapes->parts.push_back({in, width, a.dtype});
}

}  // namespace

LowRankShapes low_rank_shapes(const Plan& plan) {
  LowRankShapes shapes;
  if (plan.cuda) {
    for (std::size_t i = 0; i < plan.cuda->adapted.size(); ++i) add_slots(plan.cuda->adapted[i], i, plan, &shapes);
  }
  for (const Program& program : plan.programs) {
    for (const Instruction& instruction : program.instructions) {
      const auto* call = std::get_if<CallInstruction>(&instruction);
      if (call != nullptr && call->op == "LowRank") add_call(resolve(*call), plan, &shapes);
    }
  }
  return shapes;
}

}  // namespace tl
