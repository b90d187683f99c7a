#include "ranks/check_ranks.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/module.h"
#include "errors.h"
#include "ranks/place.h"

namespace tl {
namespace {

constexpr const char* kRemedy = "copy the directory again or build it again";

void check_count(std::int64_t expected, std::size_t found, const std::string& of_what) {
  if (std::cmp_equal(found, expected)) return;
  throw EngineError("expected the engines of all " + std::to_string(expected) + " ranks" + of_what + ", found " +
                    std::to_string(found) + ": pass the directory that build wrote");
}

std::string rank_text(const RankMapping& mapping, std::int64_t rank) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(num_ranks(mapping));
}

void check_rank(const RankMapping& found, const RankMapping& first, std::int64_t rank) {
  if (found.tp_size == first.tp_size && found.pp_size == first.pp_size && found.rank == rank) return;
  throw EngineError("expected the engine of " + rank_text(first, rank) + ", found " + rank_text(found, found.rank) +
                    ": " + kRemedy);
}

bool has_ports_of(const Engine& one, const Engine& other) {
  const Module &own = only_module(one.manifest()), &its = only_module(other.manifest());
  return own.kind == its.kind && std::ranges::equal(own.inputs, its.inputs, is_same) &&
         std::ranges::equal(own.outputs, its.outputs, is_same);
}

// Checks the ranks of a stage, which are numbered from `first` on.
void check_parts(std::span<const Engine* const> parts, const RankMapping& mapping, std::int64_t first) {
  for (std::size_t part = 0; part < parts.size(); ++part) {
    check_rank(parts[part]->manifest().mapping, mapping, first + static_cast<std::int64_t>(part));
    const bool is_alike =
        parts[part]->plan_json() == parts.front()->plan_json() && has_ports_of(*parts[part], *parts.front());
    if (!is_alike) {
      throw EngineError("rank " + std::to_string(first + static_cast<std::int64_t>(part)) +
                        " has another plan than rank " + std::to_string(first) +
                        ", so it comes from another build: build the engine again");
    }
  }
}

// Whether blocks have the same numbers in both stages.
bool counts_alike(const Engine& one, const Engine& other) {
  const auto& a = one.manifest().limits;
  const auto& b = other.manifest().limits;
  const KvCache &own = one.manifest().kv_cache, &its = other.manifest().kv_cache;
  const bool same_limits = a.max_batch_size == b.max_batch_size && a.max_seq_len == b.max_seq_len &&
                           a.max_num_tokens == b.max_num_tokens && a.max_draft_len == b.max_draft_len;
  const auto same_tables = [](const CacheGroup& left, const CacheGroup& right) {
    return left.kind == right.kind && left.window == right.window && left.blocks == right.blocks;
  };
  return same_limits && own.tokens_per_block == its.tokens_per_block && own.num_blocks == its.num_blocks &&
         std::ranges::equal(own.groups, its.groups, same_tables);
}

void check_link(const Engine& sender, const Engine& receiver) {
  const std::vector<Port> sent = ports(only_module(sender.manifest()).outputs, false);
  const std::vector<Port> received = ports(only_module(receiver.manifest()).inputs, false);
  if (std::ranges::equal(sent, received, is_same) && counts_alike(sender, receiver)) return;
  throw EngineError(
      "stage " + std::to_string(stage_of(receiver.manifest().mapping)) +
      " does not take what the previous stage sends, so it comes from another build: build the engine again");
}

}  // namespace

void check_stage(std::span<const Engine* const> engines) {
  if (engines.empty()) throw EngineError("expected the engines of a stage, found none");
  const RankMapping& mapping = engines.front()->manifest().mapping;
  check_count(mapping.tp_size, engines.size(), " of a stage");
  check_parts(engines, mapping, stage_of(mapping) * mapping.tp_size);
}

void check_ranks(std::span<const Engine* const> engines) {
  if (engines.empty()) throw EngineError("expected the engines of all ranks, found none");
  const RankMapping& mapping = engines.front()->manifest().mapping;
  check_count(num_ranks(mapping), engines.size(), "");
  const auto tp_size = static_cast<std::size_t>(mapping.tp_size);
  for (std::size_t first = 0; first < engines.size(); first += tp_size) {
    check_parts(engines.subspan(first, tp_size), mapping, static_cast<std::int64_t>(first));
    if (first > 0) check_link(*engines[first - tp_size], *engines[first]);
  }
}

}  // namespace tl
