// KvCacheManager: properties under random operations, and each guarantee on its own.
#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <variant>

#include "cache_specs.h"
#include "caches/kv_cache_manager.h"
#include "check.h"

namespace {

using tl::CopyKind;
using tl::KvCacheManager;
using tl::KvSequence;
using Tokens = std::vector<std::int32_t>;

constexpr int kMostDrafts = 3;

// Sequences over fake memory: the content of every block is known, as are the tokens that every sequence must read.
class Model {
 public:
  Model(std::uint64_t seed, tl::KvManagerConfig config)
      : random_(seed),
        config_(config),
        cache_(config),
        device_(static_cast<std::size_t>(config.num_blocks), Tokens(config.tokens_per_block, -7)),
        host_(static_cast<std::size_t>(config.num_host_blocks), Tokens(config.tokens_per_block, -7)),
        last_use_(static_cast<std::size_t>(config.num_blocks), 0),
        last_save_(last_use_.size(), 0) {}

  void random_operation() {
    if (config_.slabs.max_lent > 0) lend();
    switch (draw(11)) {
      case 0:
      case 1:
        open();
        break;
      case 2:
      case 3:
      case 4:
      case 5:
        if (auto* s = pick()) write(*s);
        break;
      case 6:
        if (auto* s = pick(); s != nullptr && cache_.geometry().can_fork()) fork(*s);
        break;
      case 7:
        if (auto* s = pick()) std::holds_alternative<KvSequence>(s->handle) ? swap_out(*s) : swap_in(*s);
        break;
      case 8:
        while (!live_.empty() && draw(3)) live_.erase(std::next(live_.begin(), draw(std::ssize(live_))));
        break;
      case 9:
        if (auto* s = pick()) settle(*s);
        break;
      default:
        if (launched_ > ended_) cache_.step_ended(++ended_);
        break;
    }
    cache_.check_integrity();
    for (const Live& live : live_) check_content(live);
  }

  void finish() {
    live_.clear();
    cache_.step_launched(++launched_);
    cache_.step_ended(launched_);
    if (const std::optional<int> slab = cache_.go_on_lending()) lent_.push_back(*slab);
    CHECK(std::ssize(lent_) == cache_.lent().num_lent() && !cache_.lent().leaving());
    for (const int slab : lent_) cache_.give_back(slab);
    cache_.check_integrity();
    CHECK(cache_.device().num_ready() == config_.num_blocks);
    CHECK(cache_.host().num_ready() == config_.num_host_blocks);
  }

  const tl::KvCacheCounters& counters() const { return cache_.counters(); }
  int num_tenants = 2;
  int num_kept = 0;  // states kept for other sequences
  int num_lent = 0;  // slabs of memory lent

 private:
  struct Live {
    std::variant<KvSequence, tl::HostSequence> handle;
    Tokens tokens;  // known tokens; those before length() are in the cache
    std::vector<std::uint64_t> hashes;
    std::string salt;
    Tokens drafts = {};  // draft tokens that a step in flight writes after `tokens`
    int farthest = 0;    // end of the positions that were ever written
    bool may_be_late = false;
    tl::TokenChain chain() { return {tokens, hashes, salt}; }
  };

  int draw(std::int64_t n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  Live* pick() { return live_.empty() ? nullptr : &*std::next(live_.begin(), draw(std::ssize(live_))); }

  // A small alphabet, so that sequences share prefixes by chance.
  void add_tokens(Tokens& tokens, int count) {
    for (int i = 0; i < count; ++i) tokens.push_back(draw(8) == 0 ? draw(2) : 0);
  }

  // Sends a slab of memory on its way, goes on with one, or brings one back, before a step is prepared.
  void lend() {
    if (std::ranges::find(last_save_, launched_ + 1) != last_save_.end()) cache_.step_launched(++launched_);
    const tl::LentSlabs& lent = cache_.lent();
    const bool has_room = lent.num_lent() < config_.slabs.max_lent && !lent.leaving();
    const std::optional<int> next = lent.choose(cache_.device());
    if (has_room && draw(6) == 0 && next && lent.num_present(*next, cache_.device()) <= cache_.num_unreferenced()) {
      cache_.begin_lending(*next);
    }
    if (const std::optional<int> slab = cache_.go_on_lending()) {
      lent_.push_back(*slab);
      ++num_lent;
      for (auto [block, last] = lent.blocks_of(*slab); block <= last; ++block) {
        CHECK(last_use_[block] <= ended_ && last_save_[block] <= ended_);
        std::ranges::fill(device_[block], -9);
      }
    }
    if (!lent_.empty() && draw(8) == 0) {
      const int place = draw(std::ssize(lent_));
      cache_.give_back(lent_[static_cast<std::size_t>(place)]);
      lent_.erase(lent_.begin() + place);
    }
  }

  void open() {
    Tokens tokens;
    add_tokens(tokens, 1 + draw(5 * config_.tokens_per_block));
    std::vector<tl::CopyOrder> copies;
    Live fresh{
        KvSequence(cache_.open({tokens, scratch_, ""}, {}, 0, copies)), tokens, {}, std::to_string(draw(num_tenants))};
    tl::PrefixHit hit = cache_.find_prefix(fresh.chain(), 1 << 30);
    const int length = hit.num_blocks * config_.tokens_per_block, num_tokens = static_cast<int>(std::ssize(tokens));
    CHECK(length < num_tokens);
    const int num_needed = cache_.geometry().num_needed(length, num_tokens) - hit.num_held + hit.num_unreferenced;
    if (has_states() && (num_needed > cache_.device().num_ready() || !cache_.has_run_beside(hit))) hit = {};
    if (hit.num_unreferenced > cache_.device().num_ready()) hit = {};
    fresh.handle = cache_.open(fresh.chain(), hit, std::ssize(tokens), copies);
    check_fresh({}, states(std::get<KvSequence>(fresh.handle)));
    execute(copies);
    if (!copies.empty()) launch(std::get<KvSequence>(fresh.handle));  // nobody closes a sequence before its first step
    live_.push_back(std::move(fresh));
  }

  void write(Live& live) {
    auto* kv = std::get_if<KvSequence>(&live.handle);
    if (kv == nullptr) return;
    settle(live);
    const int begin = cache_.length(*kv);
    if (begin == std::ssize(live.tokens)) add_tokens(live.tokens, 1 + draw(3));
    const int known =
        begin + 1 + draw(std::min<std::int64_t>(std::ssize(live.tokens) - begin, config_.max_step_tokens));
    Tokens drafts;
    if (known == std::ssize(live.tokens) && !has_states())
      add_tokens(drafts, std::min(draw(kMostDrafts + 1), config_.max_step_tokens - (known - begin)));
    const int end = known + static_cast<int>(drafts.size());
    const Tokens before = held(*kv);
    const int num_missing = cache_.num_missing(*kv, end);
    std::vector<tl::CopyOrder> copies;
    if (cache_.can_keep_state(*kv) && draw(4) > 0) {
      cache_.keep_state(*kv, copies);
      execute(std::exchange(copies, {}));
      ++num_kept;
    }
    if (!cache_.reserve(*kv, end, copies)) {
      CHECK(copies.empty() && before == held(*kv));
      return;
    }
    CHECK(std::ssize(held(*kv)) == std::ssize(before) + num_missing);
    live.farthest = std::max(live.farthest, end);
    CHECK(cache_.num_held_blocks(*kv) <=
          cache_.geometry().most_blocks(std::max(end - begin, 2 + kMostDrafts), live.farthest));
    check_fresh(before, held(*kv));
    execute(copies);
    for_each_group([&](int group) {
      if (is_state(spec(group))) return write_state(*kv, group, live.tokens, begin, end);
      for (int p = begin; p < end; ++p) {
        const int block = cache_.blocks(*kv, group)[p / config_.tokens_per_block];
        CHECK(cache_.device().refcount(block) == 1);
        device_[block][p % config_.tokens_per_block] = p < known ? live.tokens[p] : drafts[p - known];
      }
    });
    live.may_be_late = known == std::ssize(live.tokens) && draw(3) == 0 && !has_states();
    cache_.advance(*kv, end - begin, end - known + (live.may_be_late ? 1 : 0));
    live.drafts = drafts;
    cache_.commit(*kv, live.chain(), launched_ + 1);
    launch(*kv);
    cache_.leave_behind(*kv, launched_);
  }

  const tl::CacheSpec& spec(int group) const { return config_.groups[static_cast<std::size_t>(group)]; }
  bool has_states() const { return std::ranges::any_of(config_.groups, is_state); }

  // Each block of a state has the same number, which the tokens before `begin` have left there.
  void write_state(const KvSequence& kv, int group, const Tokens& tokens, int begin, int end) {
    const int first = cache_.blocks(kv, group).front();
    for (int block = first; block < first + spec(group).blocks; ++block) {
      CHECK(cache_.device().refcount(block) == 1);
      std::int32_t& state = device_[block][0];
      CHECK(begin == 0 || state == state_after(std::span(tokens).first(begin)));
      state = state_after(std::span(tokens).first(end));
    }
  }

  // Some draft tokens turn out to be right, and the others are rolled back; a late row rolls back all of them and the
  // token before them.
  void settle(Live& live) {
    const bool is_late = std::exchange(live.may_be_late, false) && draw(2) == 0;
    const auto num_kept = is_late ? 0 : draw(std::ssize(live.drafts) + 1);
    const int num_wrong = static_cast<int>(std::ssize(live.drafts) - num_kept) + (is_late ? 1 : 0);
    std::visit([&](const auto& handle) { cache_.settle(handle, num_wrong); }, live.handle);
    if (const auto* kv = std::get_if<KvSequence>(&live.handle)) cache_.leave_behind(*kv, launched_);
    live.tokens.insert(live.tokens.end(), live.drafts.begin(), live.drafts.begin() + num_kept);
    live.drafts.clear();
  }

  void fork(Live& live) {
    auto* kv = std::get_if<KvSequence>(&live.handle);
    if (kv == nullptr) return;
    settle(live);
    live_.push_back({cache_.fork(*kv), live.tokens, live.hashes, live.salt, {}, live.farthest});
  }

  void swap_out(Live& live) {
    std::vector<tl::CopyOrder> copies;
    auto host = cache_.swap_out(std::get<KvSequence>(live.handle), copies);
    if (!host) return;
    execute(copies);
    live.handle = std::move(*host);
  }

  void swap_in(Live& live) {
    settle(live);
    auto& host = std::get<tl::HostSequence>(live.handle);
    const tl::PrefixHit hit = cache_.find_prefix(live.chain(), cache_.length(host), cache_.length(host));
    Tokens before;
    for (const Tokens& blocks : hit.tables) before.insert(before.end(), blocks.begin(), blocks.end());  // no states
    std::vector<tl::CopyOrder> copies;
    auto kv = cache_.swap_in(host, hit, copies);
    if (!kv) return;
    check_fresh(before, held(*kv));
    execute(copies);
    launch(*kv);
    live.handle = std::move(*kv);
  }

  void execute(const std::vector<tl::CopyOrder>& copies) {
    for (const auto& copy : copies) {
      const Tokens& src = (copy.kind == CopyKind::kHostToDevice ? host_ : device_)[copy.src];
      (copy.kind == CopyKind::kDeviceToHost ? host_ : device_)[copy.dst] = src;
      if (copy.kind == CopyKind::kDeviceToHost) last_save_[copy.src] = launched_ + 1;
      if (copy.kind == CopyKind::kDeviceToDevice) last_use_[copy.src] = launched_ + 1;
      if (copy.kind != CopyKind::kDeviceToHost) last_use_[copy.dst] = launched_ + 1;
    }
  }

  // Checks that no step in flight uses blocks that were not in the table before. The step in preparation may have moved
  // their content to the host.
  void check_fresh(const Tokens& before, const Tokens& blocks) const {
    for (const std::int32_t block : blocks) {
      if (std::ranges::find(before, block) != before.end()) continue;
      CHECK(last_use_[block] <= ended_ && (last_save_[block] <= ended_ || last_save_[block] == launched_ + 1));
    }
  }
  // Starts a step that reads and writes the sequence; at most two steps are in flight.
  void launch(const KvSequence& kv) {
    if (launched_ - ended_ == 2) cache_.step_ended(++ended_);
    cache_.step_launched(++launched_);
    for (const std::int32_t block : held(kv)) last_use_[block] = launched_;
  }

  template <typename Fn>
  void for_each_group(Fn&& call) const {
    for (int group = 0; group < cache_.geometry().num_groups(); ++group) call(group);
  }
  // Returns the blocks of states.
  Tokens states(const KvSequence& kv) const {
    Tokens blocks;
    for_each_group([&](int group) {
      if (!is_state(spec(group)) || cache_.blocks(kv, group).empty()) return;
      for (int i = 0; i < spec(group).blocks; ++i) blocks.push_back(cache_.blocks(kv, group).front() + i);
    });
    return blocks;
  }
  // Returns the blocks of all groups.
  Tokens held(const KvSequence& kv) const {
    Tokens blocks;
    for_each_group([&](int group) {
      for (const std::int32_t block : cache_.blocks(kv, group).subspan(cache_.first_block(kv, group))) {
        for (int i = 0; i < spec(group).blocks; ++i) blocks.push_back(block + i);
      }
    });
    return blocks;
  }

  template <typename Memory>
  void check_state(const Memory& memory, std::span<const std::int32_t> table, int group, const Live& live,
                   int length) const {
    if (length == 0) return;
    CHECK(std::ssize(table) == 1);
    for (int i = 0; i < spec(group).blocks; ++i) {
      CHECK(memory[table.front() + i][0] == state_after(std::span(live.tokens).first(length)));
    }
  }

  void check_content(const Live& live) const {
    std::visit(
        [&](const auto& handle) {
          const auto& memory = std::is_same_v<std::decay_t<decltype(handle)>, KvSequence> ? device_ : host_;
          for_each_group([&](int group) {
            const int window = spec(group).window, length = cache_.length(handle);
            if (is_state(spec(group))) return check_state(memory, cache_.blocks(handle, group), group, live, length);
            const int next = length - cache_.num_unsettled(handle);  // the first token that may be computed next
            for (int p = window > 0 ? std::max(next - window + 1, 0) : 0; p < length; ++p) {
              const int block = cache_.blocks(handle, group)[p / config_.tokens_per_block];
              const auto num_known = std::ssize(live.tokens);
              CHECK(memory[block][p % config_.tokens_per_block] ==
                    (p < num_known ? live.tokens[p] : live.drafts[p - num_known]));
            }
          });
        },
        live.handle);
  }

  std::mt19937_64 random_;
  tl::KvManagerConfig config_;
  KvCacheManager cache_;
  std::vector<Tokens> device_, host_;
  std::vector<std::uint64_t> last_use_, last_save_;  // by block: the last step that uses it, or copies it to the host
  std::vector<std::uint64_t> scratch_;
  std::list<Live> live_;
  std::vector<int> lent_;
  std::uint64_t launched_ = 0, ended_ = 0;
};

// A cache with one step at a time, for tests of single guarantees.
struct Simple {
  explicit Simple(tl::KvManagerConfig config) : cache(config) {}

  // Returns a sequence whose tokens are written and committed.
  KvSequence sequence(Tokens tokens, const std::string& salt = "") {
    std::vector<std::uint64_t> hashes;
    const tl::TokenChain chain{tokens, hashes, salt};
    KvSequence kv = cache.open(chain, cache.find_prefix(chain, 1 << 30), std::ssize(tokens), copies);
    CHECK(cache.reserve(kv, std::ssize(tokens), copies));
    cache.advance(kv, static_cast<int>(std::ssize(tokens)) - cache.length(kv));
    cache.commit(kv, chain, ++step);
    cache.leave_behind(kv, step);
    cache.step_launched(step);
    cache.step_ended(step);
    return kv;
  }
  void end_step() {
    cache.step_launched(++step);
    cache.step_ended(step);
  }
  std::int64_t copies_of(CopyKind kind) const {
    return std::ranges::count_if(copies, [&](const tl::CopyOrder& copy) { return copy.kind == kind; });
  }
  int hits(Tokens tokens, const std::string& salt = "") {
    std::vector<std::uint64_t> hashes;
    return cache.find_prefix({tokens, hashes, salt}, 1 << 30).num_blocks;
  }

  KvCacheManager cache;
  std::vector<tl::CopyOrder> copies;
  std::uint64_t step = 0;
};

Tokens iota(int n, int first = 0) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(random_operations_keep_every_invariant) {
  std::int64_t hit_tokens = 0, evicted = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Model model(seed, {.num_blocks = 6 + static_cast<int>(seed) * 2,
                       .num_host_blocks = static_cast<int>(seed % 3) * 6,
                       .tokens_per_block = 1 + static_cast<int>(seed % 4),
                       .enable_block_reuse = seed % 6 != 5});
    for (int i = 0; i < 400; ++i) model.random_operation();
    model.finish();
    hit_tokens += model.counters().hit_tokens;
    evicted += model.counters().evicted_blocks;
  }
  CHECK(hit_tokens > 2000 && evicted > 100);  // the test reaches the cases it is meant to test
}

// Cache groups: windows shorter than a block, of several blocks, or longer than any sequence; one group of each kind,
// and several together.
TEST(random_operations_on_several_cache_groups) {
  const std::vector<std::vector<int>> windows{{0, 5}, {0, 1, 9}, {0, 0, 4, 4, 4}, {7}, {12, 3}, {0, 1000}};
  std::int64_t hit_tokens = 0, evicted = 0;
  for (std::uint64_t seed = 0; seed < rounds(36); ++seed) {
    const auto groups = with_windows(windows[seed % windows.size()]);
    Model model(seed, {.num_blocks = static_cast<int>(std::ssize(groups)) * (8 + static_cast<int>(seed)),
                       .num_host_blocks = static_cast<int>(seed / 6 % 3) * 12,
                       .tokens_per_block = 1 + static_cast<int>(seed / 6 % 4),
                       .enable_block_reuse = seed % 7 != 6,
                       .groups = groups,
                       .max_step_tokens = seed % 5 == 4 ? 1000 : 1 + static_cast<int>(seed % 5) * 3});
    for (int i = 0; i < 250; ++i) model.random_operation();
    model.finish();
    hit_tokens += model.counters().hit_tokens;
    evicted += model.counters().evicted_blocks;
  }
  CHECK(reaches(hit_tokens, 1200) && reaches(evicted, 100));
}

// States take runs of blocks, and single blocks fill what runs leave.
TEST(random_operations_on_states) {
  std::int64_t hit_tokens = 0, evicted = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < rounds(48); ++seed) {
    auto groups = with_windows(seed % 3 == 2 ? std::vector<int>{0, 5} : std::vector<int>{0});
    groups.push_back(with_states(1 + static_cast<int>(seed % 6)));
    Model model(seed, {.num_blocks = 30 + static_cast<int>(seed),
                       .num_host_blocks = static_cast<int>(seed / 6 % 3) * 12,
                       .tokens_per_block = 1 + static_cast<int>(seed / 6 % 4),
                       .enable_block_reuse = seed % 7 != 6,
                       .groups = groups,
                       .max_step_tokens = seed % 5 == 4 ? 1000 : 1 + static_cast<int>(seed % 5) * 3});
    for (int i = 0; i < 250; ++i) model.random_operation();
    model.finish();
    hit_tokens += model.counters().hit_tokens;
    evicted += model.counters().evicted_blocks;
    kept += model.num_kept;
  }
  CHECK(reaches(hit_tokens, 320) && reaches(evicted, 100) && reaches(kept, 200));
}

// The device holds few sequences, and the host what the others leave behind.
TEST(random_operations_move_prefixes_to_the_host) {
  std::int64_t from_host = 0, states_from_host = 0, evicted = 0;
  int num_lent = 0;
  for (std::uint64_t seed = 0; seed < rounds(48); ++seed) {
    auto groups = with_windows(seed % 3 == 2 ? std::vector<int>{0, 5} : std::vector<int>{0});
    if (seed % 2 == 0) groups.push_back(with_states(1 + static_cast<int>(seed % 5)));
    const tl::SlabLayout slabs{.block_bytes = 2, .slab_bytes = 3, .max_lent = seed % 4 < 2 ? 0 : 2};
    Model model(seed, {.num_blocks = 30 + static_cast<int>(seed % 8),
                       .num_host_blocks = 60 + static_cast<int>(seed % 3) * 60,
                       .tokens_per_block = 1 + static_cast<int>(seed % 2),
                       .groups = groups,
                       .slabs = slabs});
    model.num_tenants = 8;
    for (int i = 0; i < 1000; ++i) model.random_operation();
    model.finish();
    from_host += model.counters().host_tokens.front();
    if (seed % 2 == 0) states_from_host += model.counters().host_tokens.back();
    evicted += model.counters().evicted_blocks;
    num_lent += model.num_lent;
  }
  CHECK(reaches(from_host, 800) && reaches(states_from_host, 240) && reaches(evicted, 800) && reaches(num_lent, 400));
}

// Blocks lie in several slabs, slabs in several blocks, and states in runs of blocks.
TEST(random_operations_while_memory_is_lent) {
  int num_lent = 0;
  std::int64_t evicted = 0;
  for (std::uint64_t seed = 0; seed < rounds(48); ++seed) {
    auto groups = with_windows(seed % 3 == 2 ? std::vector<int>{0, 5} : std::vector<int>{0});
    if (seed % 4 == 3) groups.push_back(with_states(1 + static_cast<int>(seed % 6)));
    Model model(seed, {.num_blocks = 36 + static_cast<int>(seed),
                       .num_host_blocks = static_cast<int>(seed / 6 % 3) * 12,
                       .tokens_per_block = 1 + static_cast<int>(seed / 6 % 4),
                       .groups = groups,
                       .slabs = {.block_bytes = 1 + static_cast<int>(seed % 5),
                                 .slab_bytes = 2 + static_cast<int>(seed % 11),
                                 .max_lent = 2}});
    for (int i = 0; i < 250; ++i) model.random_operation();
    model.finish();
    num_lent += model.num_lent;
    evicted += model.counters().evicted_blocks;
  }
  CHECK(reaches(num_lent, 300) && reaches(evicted, 100));
}

// A prefix that new sequences find again and again leaves memory that is on its way.
TEST(a_shared_prefix_does_not_keep_memory_from_leaving) {
  Simple simple({.num_blocks = 8, .tokens_per_block = 4, .slabs = {.block_bytes = 1, .slab_bytes = 4, .max_lent = 1}});
  const Tokens prefix = iota(12);
  std::vector<KvSequence> sequences;
  sequences.push_back(simple.sequence(prefix));
  const int slab = *simple.cache.lent().choose(simple.cache.device());
  simple.cache.begin_lending(slab);
  std::optional<int> left = simple.cache.go_on_lending();
  for (int i = 0; i < 9 && !left; ++i) {  // each sequence begins before the last one ends
    sequences.push_back(simple.sequence(prefix));
    sequences.erase(sequences.begin());
    left = simple.cache.go_on_lending();
  }
  CHECK(left == slab);
}

// The entry of a shared block is lost with the entry before it, and the block is then entered again.
TEST(sequences_that_share_a_block_may_commit_it_after_different_ones) {
  Simple simple({.num_blocks = 8, .tokens_per_block = 2, .slabs = {.block_bytes = 1, .slab_bytes = 1, .max_lent = 1}});
  KvCacheManager& cache = simple.cache;
  const Tokens tokens = iota(4);
  std::vector<std::uint64_t> hashes;
  const tl::TokenChain chain{tokens, hashes, ""};
  const KvSequence first = cache.open(chain, {}, 4, simple.copies);
  CHECK(cache.reserve(first, 4, simple.copies));
  cache.advance(first, 4);
  const KvSequence second = cache.fork(first);
  cache.commit(first, chain, 1);
  cache.begin_lending(cache.blocks(first)[0]);  // each slab is a block
  const KvSequence third = simple.sequence({0, 1, 7, 7});
  cache.commit(second, chain, 1);
  cache.check_integrity();
  CHECK(simple.hits(iota(5)) == 2);
}

// The block that was released longest ago lies beside the newest one.
TEST(a_run_with_a_new_block_is_kept_for_longer) {
  tl::BlockPool pool(6, 2);
  for (int i = 0; i < 6; ++i) pool.set_cached(pool.allocate(), true);
  for (const std::int32_t block : {0, 2, 3, 4, 5, 1}) pool.release(block, 0);
  for (const std::int32_t first : {2, 4, 0}) CHECK(pool.allocate_run() == first);
}

TEST(states_fill_a_cache_of_the_size_of_a_batch) {
  const std::vector<tl::CacheSpec> groups{{}, with_states(7)};
  Simple simple({.num_blocks = 5 * (7 + 3), .tokens_per_block = 4, .groups = groups});
  for (int round = 0; round < 3; ++round) {
    std::vector<KvSequence> sequences;
    for (int i = 0; i < 5; ++i) sequences.push_back(simple.sequence(iota(12, 100 * i)));
    CHECK(simple.cache.device().num_ready() == 0 && !simple.cache.has_runs());
  }
}

// A chain and its state leave the device for those of other sequences, and are found as if they had stayed.
TEST(evicted_prefixes_come_back_from_the_host) {
  const std::vector<tl::CacheSpec> groups{{}, with_states(3)};
  const tl::KvManagerConfig config{.num_blocks = 12, .num_host_blocks = 30, .tokens_per_block = 4, .groups = groups};
  Simple simple(config);
  KvCacheManager& cache = simple.cache;
  for (int i = 0; i < 4; ++i) {
    const KvSequence kv = simple.sequence(iota(8, 100 * i));
    CHECK(cache.can_keep_state(kv));
    cache.keep_state(kv, simple.copies);
    simple.end_step();
  }
  CHECK(cache.counters().evicted_blocks == 0 && simple.copies_of(CopyKind::kDeviceToHost) >= 4 * 5 - 12);
  for (int i = 0; i < 4; ++i) CHECK(simple.hits(iota(9, 100 * i)) == 2);
  const std::int64_t num_back = simple.copies_of(CopyKind::kHostToDevice);
  const KvSequence first = simple.sequence(iota(9));
  CHECK(cache.length(first) == 9 && simple.copies_of(CopyKind::kHostToDevice) == num_back + 2 + 3);
  CHECK((cache.counters().host_tokens == std::vector<std::int64_t>{8, 8}) && cache.counters().hit_tokens == 8);
  cache.check_integrity();
}

TEST(a_full_host_loses_what_came_first) {
  Simple simple({.num_blocks = 2, .num_host_blocks = 4, .tokens_per_block = 4});
  for (int i = 0; i < 4; ++i) simple.sequence(iota(8, 100 * i));
  CHECK(simple.cache.counters().evicted_blocks == 2);
  for (int i = 0; i < 4; ++i) CHECK(simple.hits(iota(9, 100 * i)) == (i == 0 ? 0 : 2));
  // Requests that are swapped out need the room more.
  KvSequence kv = simple.sequence(iota(8, 900));
  std::optional<tl::HostSequence> host = simple.cache.swap_out(kv, simple.copies);
  CHECK(host && simple.cache.counters().evicted_blocks == 2 + 2 + 2);
  simple.cache.check_integrity();
}

TEST(what_a_failed_step_moved_is_forgotten) {
  Simple simple({.num_blocks = 2, .num_host_blocks = 4, .tokens_per_block = 4});
  simple.sequence(iota(8));
  simple.sequence(iota(8, 100));  // its step moves the first one
  CHECK(simple.hits(iota(9)) == 2);
  simple.cache.forget_written_since(simple.step);
  CHECK(simple.hits(iota(9)) == 0 && simple.cache.host().num_ready() == 4);
  simple.cache.check_integrity();
}

// Blocks whose content the step in preparation copies to the host may be taken by that step alone, and lent by none,
// until it has ended.
TEST(blocks_that_a_copy_still_reads_are_held_back) {
  tl::BlockPool pool(2);
  const std::int32_t block = pool.allocate();
  pool.release(block, 0);
  pool.hold_back(block, 7);
  CHECK(pool.num_ready() == 1 && pool.num_unreferenced() == 2 && !pool.is_ready(block));
  pool.check_integrity();
  pool.step_ended(6);
  CHECK(!pool.is_ready(block));
  pool.step_ended(7);
  CHECK(pool.is_ready(block));
}

TEST(a_windowed_group_keeps_what_its_window_reaches) {
  Simple simple({.num_blocks = 40, .tokens_per_block = 4, .groups = with_windows({0, 6})});
  const KvSequence kv = simple.sequence(iota(21));
  CHECK(simple.cache.num_held_blocks(kv) == 6 + 2);  // the windowed group holds positions 16 to 20: blocks 4 and 5
  CHECK(simple.cache.first_block(kv, 1) == 4);
  CHECK(simple.cache.num_used_blocks(kv) == 8 && simple.cache.num_claimed() == 8);
}

TEST(a_prefix_ends_where_a_window_is_still_there) {
  Simple simple({.num_blocks = 20, .tokens_per_block = 4, .groups = with_windows({0, 5})});
  {
    const KvSequence kv = simple.sequence(iota(21));
  }
  CHECK(simple.hits(iota(21)) == 5 && simple.hits(iota(13)) == 3);
  // Blocks that fell out of the window first are evicted first: 0 to 3 of the windowed group.
  {
    const KvSequence other = simple.sequence(iota(25, 100));
  }
  CHECK(simple.hits(iota(21)) == 5 && simple.hits(iota(13)) == 0);
  std::vector<std::uint64_t> hashes;
  Tokens tokens = iota(21);
  const tl::PrefixHit hit = simple.cache.find_prefix({tokens, hashes, ""}, 1 << 30);
  CHECK(hit.tables[0].size() == 5 && hit.tables[1].size() == 1 && hit.num_held == 6 && hit.num_unreferenced == 6);
}

TEST(blocks_of_a_windowed_group_are_claimed_by_each_holder) {
  Simple simple({.num_blocks = 40, .tokens_per_block = 4, .groups = with_windows({0, 6})});
  const KvSequence kv = simple.sequence(iota(21));
  const KvSequence fork = simple.cache.fork(kv);
  CHECK(simple.cache.device().num_unreferenced() == 40 - 8 && simple.cache.num_claimed() == 8 + 2);
  simple.cache.check_integrity();
}

TEST(the_last_prompt_token_is_never_reused) {
  Simple simple({.num_blocks = 16, .tokens_per_block = 4});
  const KvSequence kv = simple.sequence(iota(8));
  CHECK(simple.hits(iota(8)) == 1);
  CHECK(simple.hits(iota(9)) == 2);
  CHECK(simple.hits(iota(4)) == 0);
}

TEST(tenants_do_not_share) {
  Simple simple({.num_blocks = 16, .tokens_per_block = 4});
  const KvSequence kv = simple.sequence(iota(9), "one");
  CHECK(simple.hits(iota(9), "one") == 2);
  CHECK(simple.hits(iota(9), "two") == 0 && simple.hits(iota(9)) == 0);
}

TEST(equal_hashes_of_different_content_do_not_share) {
  Simple simple({.num_blocks = 16, .tokens_per_block = 4});
  Tokens first = iota(9), second = iota(9, 100), third = iota(9);
  third[6] = 99;  // same first block, different second block
  std::vector<std::uint64_t> forged{42, 42};
  const tl::TokenChain chain{first, forged, "tenant"};
  KvSequence kv = simple.cache.open(chain, {}, 9, simple.copies);
  CHECK(simple.cache.reserve(kv, 9, simple.copies));
  simple.cache.advance(kv, 9);
  simple.cache.commit(kv, chain, 0);
  CHECK(simple.cache.find_prefix(chain, 9).num_blocks == 2);
  CHECK(simple.cache.find_prefix({second, forged, "tenant"}, 9).num_blocks == 0);
  CHECK(simple.cache.find_prefix({first, forged, "other"}, 9).num_blocks == 0);
  CHECK(simple.cache.find_prefix({third, forged, "tenant"}, 9).num_blocks == 1);
}

TEST(equal_blocks_behind_different_prefixes_do_not_share) {
  Simple simple({.num_blocks = 16, .tokens_per_block = 4});
  std::vector<std::uint64_t> forged{42, 42};
  Tokens one = iota(9), two = iota(9, 100);
  for (Tokens* tokens : {&one, &two}) {
    const tl::TokenChain chain{*tokens, forged, ""};
    KvSequence kv = simple.cache.open(chain, {}, 9, simple.copies);
    CHECK(simple.cache.reserve(kv, 9, simple.copies));
    simple.cache.advance(kv, 9);
    simple.cache.commit(kv, chain, 0);
  }
  Tokens crossed = iota(9);
  std::copy(two.begin() + 4, two.end(), crossed.begin() + 4);  // the first block of `one`, the second block of `two`
  CHECK(simple.cache.find_prefix({crossed, forged, ""}, 9).num_blocks == 1);
  Tokens shifted(one.begin() + 4, one.end());  // the second block of `one` as a first block
  CHECK(simple.cache.find_prefix({shifted, forged, ""}, 5).num_blocks == 0);
}

TEST(eviction_takes_least_recently_used_leaves_first) {
  Simple simple({.num_blocks = 6, .tokens_per_block = 2});
  {
    const KvSequence old = simple.sequence(iota(6));
  }
  {
    const KvSequence newer = simple.sequence(iota(6, 50));
  }
  CHECK(simple.hits(iota(7)) == 3 && simple.hits(iota(7, 50)) == 3);
  const KvSequence one = simple.sequence(iota(2, 90));
  CHECK(simple.hits(iota(7)) == 2 && simple.hits(iota(7, 50)) == 3);  // the last block was evicted, not the first
  {
    const KvSequence again = simple.sequence(iota(5));
  }  // two blocks are used again, one more is evicted
  const KvSequence two = simple.sequence(iota(2, 80));
  CHECK(simple.hits(iota(5)) >= 1 && simple.hits(iota(7, 50)) == 2);
}

TEST(a_fork_copies_only_the_block_it_writes) {
  Simple simple({.num_blocks = 8, .tokens_per_block = 4});
  const KvSequence kv = simple.sequence(iota(6));
  const KvSequence fork = simple.cache.fork(kv);
  CHECK(std::ranges::equal(simple.cache.blocks(kv), simple.cache.blocks(fork)));
  CHECK(simple.cache.take_first_change(fork, 0) == 0);
  CHECK(simple.cache.reserve(fork, 7, simple.copies) && simple.copies.size() == 1);
  CHECK(simple.copies[0].src == simple.cache.blocks(kv)[1] && simple.copies[0].dst == simple.cache.blocks(fork)[1]);
  CHECK(simple.cache.blocks(kv)[0] == simple.cache.blocks(fork)[0]);
  CHECK(simple.cache.take_first_change(fork, 0) == 1);
  CHECK(simple.cache.reserve(kv, 7, simple.copies) && simple.copies.size() == 1);  // the block is no longer shared
  simple.cache.check_integrity();
}

TEST(blocks_return_when_the_steps_that_use_them_have_ended) {
  Simple simple({.num_blocks = 4, .tokens_per_block = 4});
  simple.cache.step_launched(1);
  simple.cache.step_launched(2);
  {
    Tokens tokens = iota(16);
    std::vector<std::uint64_t> hashes;
    const KvSequence kv = simple.cache.open({tokens, hashes, ""}, {}, 16, simple.copies);
    CHECK(simple.cache.reserve(kv, 16, simple.copies));
  }
  CHECK(simple.cache.device().num_ready() == 0 && simple.cache.device().num_unreferenced() == 4);
  simple.cache.step_ended(1);
  CHECK(simple.cache.device().num_ready() == 0);
  simple.cache.step_ended(2);
  CHECK(simple.cache.device().num_ready() == 4);
}

TEST(blocks_the_step_in_preparation_writes_are_not_shared_yet) {
  Simple simple({.num_blocks = 8, .tokens_per_block = 4});
  Tokens tokens = iota(9);
  std::vector<std::uint64_t> hashes;
  const tl::TokenChain chain{tokens, hashes, ""};
  const KvSequence kv = simple.cache.open(chain, {}, 9, simple.copies);
  CHECK(simple.cache.reserve(kv, 9, simple.copies));
  simple.cache.advance(kv, 9);
  simple.cache.commit(kv, chain, 1);
  CHECK(simple.cache.find_prefix(chain, 9).being_written && simple.cache.find_prefix(chain, 9).num_blocks == 0);
  simple.cache.step_launched(1);
  CHECK(!simple.cache.find_prefix(chain, 9).being_written && simple.cache.find_prefix(chain, 9).num_blocks == 2);
  simple.cache.forget_written_since(1);
  CHECK(simple.cache.find_prefix(chain, 9).num_blocks == 0);
}

TEST(an_impossible_config_is_refused) {
  CHECK_THROWS(std::invalid_argument, KvCacheManager({.num_blocks = 0}), "num_blocks >= 1");
}

}  // namespace
