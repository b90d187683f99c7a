// Lets tests drive the KV cache manager without an engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "bindings/testing/testing.h"
#include "caches/kv_cache_manager.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Tokens = std::vector<std::int32_t>;
using Copy = std::tuple<std::string, std::int32_t, std::int32_t>;

std::vector<Copy> described(const std::vector<CopyOrder>& copies) {
  std::vector<Copy> out;
  for (const auto& [kind, src, dst] : copies) {
    const char* name = kind == CopyKind::kDeviceToDevice ? "device_to_device"
                       : kind == CopyKind::kDeviceToHost ? "device_to_host"
                                                         : "host_to_device";
    out.emplace_back(name, src, dst);
  }
  return out;
}

// A KvCacheManager whose sequences are numbered for Python. Every write, every swap and every beginning that copies is
// a step of its own.
class NumberedKvCache {
 public:
  NumberedKvCache(int num_blocks, int num_host_blocks, int tokens_per_block, bool enable_block_reuse)
      : cache_({.num_blocks = num_blocks,
                .num_host_blocks = num_host_blocks,
                .tokens_per_block = tokens_per_block,
                .enable_block_reuse = enable_block_reuse}) {}

  // Returns the number, and the copies to be made first. What is cached is left unused if there are too few blocks.
  std::tuple<int, std::vector<Copy>> open(Tokens tokens, std::string salt) {
    std::vector<std::uint64_t> hashes;
    const TokenChain chain{tokens, hashes, salt};
    PrefixHit hit = cache_.find_prefix(chain, std::ssize(tokens));
    if (hit.num_unreferenced > cache_.device().num_ready()) hit = {};
    std::vector<CopyOrder> copies;
    KvSequence kv = cache_.open(chain, hit, std::ssize(tokens), copies);
    if (!copies.empty()) launch();
    return {add({std::move(kv), std::move(tokens), std::move(hashes), std::move(salt)}), described(copies)};
  }

  int fork(int number) {
    const Numbered& from = at(number);
    return add({cache_.fork(std::get<KvSequence>(from.handle)), from.tokens, from.hashes, from.salt});
  }

  void append(int number, const Tokens& tokens) {
    Numbered& sequence = at(number);
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  }

  // Returns the copies to be made before writing, or nothing if there are too few blocks.
  std::optional<std::vector<Copy>> write(int number, int num_tokens) {
    Numbered& sequence = at(number);
    const auto& kv = std::get<KvSequence>(sequence.handle);
    const int end = cache_.length(kv) + num_tokens;
    if (num_tokens < 1 || end > std::ssize(sequence.tokens)) throw std::invalid_argument("only known tokens");
    std::vector<CopyOrder> copies;
    if (!cache_.reserve(kv, end, copies)) return std::nullopt;
    cache_.advance(kv, num_tokens);
    cache_.commit(kv, sequence.chain(), launched_ + 1);
    launch();
    return described(copies);
  }

  std::optional<std::vector<Copy>> swap_out(int number) {
    Numbered& sequence = at(number);
    std::vector<CopyOrder> copies;
    std::optional<HostSequence> host = cache_.swap_out(std::get<KvSequence>(sequence.handle), copies);
    if (!host) return std::nullopt;
    sequence.handle = std::move(*host);
    launch();
    return described(copies);
  }

  std::optional<std::vector<Copy>> swap_in(int number) {
    Numbered& sequence = at(number);
    auto& host = std::get<HostSequence>(sequence.handle);
    std::vector<CopyOrder> copies;
    const PrefixHit hit = cache_.find_prefix(sequence.chain(), cache_.length(host));
    std::optional<KvSequence> kv = cache_.swap_in(host, hit, copies);
    if (!kv) return std::nullopt;
    sequence.handle = std::move(*kv);
    launch();
    return described(copies);
  }

  void close(int number) {
    at(number);
    sequences_.erase(number);
  }
  void forget(int number) { cache_.forget(at(number).chain()); }
  // Ends the oldest step in flight.
  void end_step() {
    if (ended_ < launched_) cache_.step_ended(++ended_);
  }

  std::vector<std::int32_t> blocks(int number) {
    return std::visit(
        [&](const auto& handle) {
          const auto blocks = cache_.blocks(handle);
          return std::vector<std::int32_t>(blocks.begin(), blocks.end());
        },
        at(number).handle);
  }
  int length(int number) {
    return std::visit([&](const auto& handle) { return cache_.length(handle); }, at(number).handle);
  }

  const KvCacheManager& cache() const { return cache_; }

 private:
  struct Numbered {
    std::variant<KvSequence, HostSequence> handle;
    Tokens tokens;
    std::vector<std::uint64_t> hashes;
    std::string salt;
    TokenChain chain() { return {tokens, hashes, salt}; }
  };

  Numbered& at(int number) {
    const auto found = sequences_.find(number);
    if (found == sequences_.end()) throw std::invalid_argument("no sequence " + std::to_string(number));
    return found->second;
  }
  int add(Numbered sequence) {
    sequences_.emplace(++last_number_, std::move(sequence));
    return last_number_;
  }
  void launch() { cache_.step_launched(++launched_); }

  KvCacheManager cache_;
  std::map<int, Numbered> sequences_;
  int last_number_ = 0;
  std::uint64_t launched_ = 0, ended_ = 0;
};

}  // namespace

void bind_kv_cache(nb::module_& module) {
  nb::class_<NumberedKvCache>(module, "KvCacheBookkeeping", R"(
      The paged KV cache's bookkeeping alone, for tests: csrc/caches/kv_cache_manager.h states its contract.

      Sequences are identified by number. Every write, every swap and every opening that copies is a step, in flight
      until :meth:`end_step`. A copy is (kind, source block, target block), kind being ``device_to_device``, ``device_to_host`` or
      ``host_to_device``. A number of no open sequence, or a sequence in the wrong memory, raises ValueError or
      RuntimeError.)")
      .def(nb::init<int, int, int, bool>(), nb::kw_only(), nb::arg("num_blocks"), nb::arg("num_host_blocks"),
           nb::arg("tokens_per_block"), nb::arg("enable_block_reuse"))
      .def(
          "open", &NumberedKvCache::open, nb::arg("tokens"), nb::arg("salt"),
          "Open a sequence of known tokens; those found in the cache count as written (``length``). Returns its number "
          "and the copies to carry out first.")
      .def("fork", &NumberedKvCache::fork, nb::arg("sequence"),
           "Open another sequence with the content of ``sequence``.")
      .def("append", &NumberedKvCache::append, nb::arg("sequence"), nb::arg("tokens"), "Add known tokens.")
      .def("write", &NumberedKvCache::write, nb::arg("sequence"), nb::arg("num_tokens"), R"(
          Makes room for the next known tokens; returns the copies to carry out first. None: blocks are missing.)")
      .def("swap_out", &NumberedKvCache::swap_out, nb::arg("sequence"),
           "Moves a sequence to the host; None: blocks are missing there.")
      .def("swap_in", &NumberedKvCache::swap_in, nb::arg("sequence"),
           "Moves a sequence back to the device; None: blocks are missing.")
      .def("close", &NumberedKvCache::close, nb::arg("sequence"))
      .def("forget", &NumberedKvCache::forget, nb::arg("sequence"),
           "Keep later sequences from sharing this one's blocks.")
      .def("end_step", &NumberedKvCache::end_step, "End the oldest step in flight, if there is one.")
      .def("blocks", &NumberedKvCache::blocks, nb::arg("sequence"),
           "The sequence's blocks, in the memory that the sequence is in.")
      .def("length", &NumberedKvCache::length, nb::arg("sequence"), "The number of written tokens.")
      .def(
          "refcount", [](const NumberedKvCache& c, int block) { return c.cache().device().refcount(block); },
          nb::arg("block"), "The number of sequences that hold a device block.")
      .def_prop_ro(
          "num_ready", [](const NumberedKvCache& c) { return c.cache().device().num_ready(); },
          "Device blocks that can be handed out now, those with cached content included.")
      .def_prop_ro(
          "num_host_ready", [](const NumberedKvCache& c) { return c.cache().host().num_ready(); },
          "Host blocks that can be handed out now, those with cached content included.")
      .def_prop_ro(
          "evicted_blocks", [](const NumberedKvCache& c) { return c.cache().counters().evicted_blocks; },
          "Cached blocks given up so far.")
      .def(
          "check_integrity", [](const NumberedKvCache& c) { c.cache().check_integrity(); },
          "Raises RuntimeError naming the first contradiction.");
}

}  // namespace tl
