// A device whose KV blocks hold token ids. Each sampled token is a function of the whole history that the device reads
// through the block tables, so any wrong sharing, copy, eviction, swap or order shows as a wrong token; most errors
// show earlier, as a failed CHECK.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache_specs.h"
#include "check.h"
#include "executor/step.h"
#include "fake_model.h"

struct FakeShape {
  int num_slots = 8;
  int num_blocks = 64;
  int num_host_blocks = 0;
  int tokens_per_block = 4;
  std::vector<tl::CacheSpec> groups{{}};
  int num_stages = 1;
};

// A step is executed as late as the contract allows: when its results are awaited, after the launch of the next step.
// With several stages no row is late, unless only the results tell which rows are late.
class FakeExecutor : public tl::StepExecutor {
 public:
  explicit FakeExecutor(const FakeShape& shape)
      : shape_(shape),
        device_(static_cast<std::size_t>(shape.num_blocks * block_size()), -7),
        host_(static_cast<std::size_t>(shape.num_host_blocks * block_size()), -7),
        slots_(static_cast<std::size_t>(shape.num_slots)),
        launch_tables_(static_cast<std::size_t>(shape.num_slots)) {
    for (SlotState& slot : slots_) slot.tables.resize(shape.groups.size());
    for (auto& tables : launch_tables_) tables.resize(shape.groups.size());
  }

  // Hooks that inject faults; any may throw. `row_error` may also return an error message for one row.
  std::function<void(const tl::StepBatch&)> on_launch = [](const tl::StepBatch&) {};
  std::function<void(const tl::StepBatch&)> on_wait = [](const tl::StepBatch&) {};
  std::function<std::string(const tl::StepRow&)> row_error = [](const tl::StepRow&) { return std::string(); };
  std::function<void(int, const tl::SlotParams*)> on_set_slot = [](int, const tl::SlotParams*) {};
  // Returns whether a row with a grammar skips its step.
  std::function<bool(const tl::StepRow&)> is_late = [](const tl::StepRow&) { return false; };
  bool late_with_results = false;
  // Returns whether the masks of a slot's late row are ready; called after each step.
  std::function<bool(int)> is_woken = [](int) { return true; };
  double seconds_per_token = 0, seconds_per_copy = 0;
  // Takes the memory of blocks away, so that no step may touch it, or brings it back with other content.
  void take_away(std::pair<std::int32_t, std::int32_t> blocks) {
    for (std::int32_t i = blocks.first; i <= blocks.second; ++i) {
      for (const Flight& flight : flights_) CHECK(!flight.touched.device.contains(i));
      std::ranges::fill(block(device_, i), -9);
      ++absent_[i];
    }
  }
  void bring_back(std::pair<std::int32_t, std::int32_t> blocks) {
    for (std::int32_t i = blocks.first; i <= blocks.second; ++i) --absent_[i];
  }

  int num_slots() const override { return shape_.num_slots; }
  int num_stages() const override { return shape_.num_stages; }
  int num_in_flight() const { return static_cast<int>(flights_.size()); }

  void set_slot(int slot, std::shared_ptr<const tl::SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt) override {
    for (const Flight& flight : flights_) {
      for (const tl::StepRow& row : flight.batch->rows) CHECK(row.slot != slot && row.request_slot != slot);
    }
    on_set_slot(slot, params.get());
    slots_[slot].params = std::dynamic_pointer_cast<const FakeParams>(params);
    slots_[slot].tokens.assign(tokens.begin(), tokens.end());
    slots_[slot].num_prompt = num_prompt;
    slots_[slot].beams.clear();
  }

  void launch(const tl::StepBatch& batch) override {
    CHECK(batch.step > last_step_ && !batch.empty() && num_in_flight() <= shape_.num_stages);
    last_step_ = batch.step;
    const Touched touched = touched_by(batch);
    for (const Flight& flight : flights_) check_no_conflict(flight, batch);
    for (const tl::StepRow& row : batch.rows) check_sampled_before(row);
    on_launch(batch);
    flights_.push_back({&batch, digest(batch), touched, {}});
    if (flights_.size() == 1 && !late_with_results) choose_late(flights_.front());
  }

  void wait(tl::StepResult& result) override {
    CHECK(!flights_.empty());
    const tl::StepBatch& batch = *flights_.front().batch;
    CHECK(digest(batch) == flights_.front().digest);  // the batch must not have changed since its launch
    if (late_with_results) choose_late(flights_.front());
    const std::vector<std::size_t> late = std::move(flights_.front().late);
    flights_.pop_front();
    if (num_broken_ > 0) {
      --num_broken_;
      throw tl::StepError("the step before it failed");
    }
    num_broken_ = flights_.size();  // if this step throws, nothing that the next step reads is valid
    on_wait(batch);
    num_broken_ = 0;
    for (const tl::CopyOrder& copy : batch.copies) execute(copy);
    for (const tl::TableUpdate& update : batch.table_updates) set_entry(slots_[update.slot].tables, update);
    result.rows.clear();
    result.rows.resize(batch.rows.size());
    for (std::size_t i = 0; i < batch.rows.size(); ++i) write(batch, i);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) check_history(batch, i);
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
      result.rows[i].is_late = std::ranges::find(late, i) != late.end();
      if (!result.rows[i].is_late) finish(batch, i, result.rows[i]);
      if (result.rows[i].is_late) late_slots_.insert(batch.rows[i].slot);
    }
    result.woken_slots.clear();
    std::erase_if(late_slots_, [&](int slot) {
      if (!is_woken(slot)) return false;
      result.woken_slots.push_back(slot);
      return true;
    });
    if (!flights_.empty() && !late_with_results) choose_late(flights_.front());
    result.compute_seconds = seconds_per_token * static_cast<double>(batch.token_ids.size());
    result.copy_seconds = seconds_per_copy * static_cast<double>(batch.copies.size());
  }

  std::span<const std::size_t> late_rows() const override { return flights_.back().late; }
  bool says_late_with_results() const override { return late_with_results; }

 private:
  static constexpr int kStates = 16;  // more than the tokens of a step that may be taken back

  using Tables = std::vector<std::vector<std::int32_t>>;  // one per cache group
  struct SlotState {
    std::shared_ptr<const FakeParams> params;
    std::vector<std::int32_t> tokens;  // the expected history: tokens from the host and tokens sampled here
    int num_prompt = 0;
    std::vector<Tokens> beams;  // histories of a search's beams, once its prompt is computed
    Tables tables;
  };
  // State by block: the slot whose row uses it; kCopy if only a copy uses it, or kSaved if that is one to the host,
  // after which the block may belong to any slot; kShared if rows of several slots use it.
  static constexpr int kCopy = -1, kShared = -2, kSaved = -3;
  struct Touched {
    std::map<int, int> device, written;
    std::set<int> host;
  };
  struct Flight {
    const tl::StepBatch* batch;
    std::uint64_t digest;
    Touched touched;
    std::vector<std::size_t> late;  // rows chosen as late when the previous step has finished
  };

  void choose_late(Flight& flight) {
    if (shape_.num_stages > 1 && !late_with_results) return;
    for (std::size_t i = 0; i < flight.batch->rows.size(); ++i) {
      const tl::StepRow& row = flight.batch->rows[i];
      const FakeParams* params = slots_[row.request_slot].params.get();
      if (row.sample && params != nullptr && params->guided && is_late(row)) flight.late.push_back(i);
    }
  }

  // Returns the first position that the row's tokens attend to in a group.
  int first_visible(const tl::StepRow& row, std::size_t group) const {
    const int window = shape_.groups[group].window;
    return window > 0 ? std::max(row.past_len - window + 1, 0) : 0;
  }

  static void set_entry(Tables& tables, const tl::TableUpdate& update) {
    auto& table = tables.at(update.group);
    if (update.index >= std::ssize(table)) table.resize(update.index + 1, -1);
    table[update.index] = update.block;
  }

  // Returns the blocks that the batch reads and writes, by the block tables as they will be when it runs.
  Touched touched_by(const tl::StepBatch& batch) {
    Touched touched;
    for (const tl::CopyOrder& copy : batch.copies) {
      const int use = copy.kind == tl::CopyKind::kDeviceToHost ? kSaved : kCopy;
      if (copy.kind != tl::CopyKind::kHostToDevice) touched.device[copy.src] = use;
      if (copy.kind != tl::CopyKind::kDeviceToHost) touched.device[copy.dst] = touched.written[copy.dst] = kCopy;
      if (copy.kind == tl::CopyKind::kHostToDevice) touched.host.insert(copy.src);
      if (copy.kind == tl::CopyKind::kDeviceToHost) CHECK(touched.host.insert(copy.dst).second);
    }
    for (const tl::TableUpdate& update : batch.table_updates) set_entry(launch_tables_[update.slot], update);
    std::set<int> seen;
    for (const tl::StepRow& row : batch.rows) {
      CHECK(seen.insert(row.slot).second && row.num_tokens >= 1);
      const int end = row.past_len + row.num_tokens;
      const auto touch = [&](int block, bool is_written) {
        const auto [entry, first] = touched.device.emplace(block, row.slot);
        if (!first) entry->second = entry->second == kCopy || entry->second == kSaved ? row.slot : kShared;
        if (is_written) touched.written[block] = row.slot;
      };
      for (std::size_t group = 0; group < shape_.groups.size(); ++group) {
        const auto& table = launch_tables_[row.slot][group];
        if (is_state(shape_.groups[group])) {
          for (int i = 0; i < shape_.groups[group].blocks; ++i) touch(table.at(0) + i, true);
          continue;
        }
        for (int i = first_visible(row, group) / shape_.tokens_per_block; i * shape_.tokens_per_block < end; ++i) {
          touch(table.at(i), (i + 1) * shape_.tokens_per_block > row.past_len);
        }
      }
    }
    for (const auto& [block, slot] : touched.device) CHECK(!absent_.contains(block) || absent_.at(block) == 0);
    // Rows of a step run in parallel: no row may read what another row writes.
    for (const auto& [block, slot] : touched.written) CHECK(slot == kCopy || touched.device[block] == slot);
    launch_touched_ = touched;
    return touched;
  }

  // With n stages, a row must come at least n steps after the step that samples its input token.
  void check_sampled_before(const tl::StepRow& row) const {
    for (std::size_t i = 0; i < flights_.size(); ++i) {
      if (static_cast<int>(flights_.size() - i) >= shape_.num_stages) continue;
      for (const tl::StepRow& other : flights_[i].batch->rows) CHECK(other.slot != row.slot || !other.sample);
    }
  }

  // Blocks that a step in flight still uses are not given to any other sequence.
  void check_no_conflict(const Flight& flight, const tl::StepBatch& batch) const {
    for (const auto& [block, slot] : launch_touched_.written) {
      const auto used = flight.touched.device.find(block);
      CHECK(used == flight.touched.device.end() || used->second == slot || used->second == kSaved);
    }
    for (const tl::CopyOrder& copy : batch.copies) {
      if (copy.kind == tl::CopyKind::kDeviceToHost) CHECK(!flight.touched.host.contains(copy.dst));
    }
  }

  // A block has room for its tokens, and for the states after several.
  int block_size() const { return shape_.tokens_per_block + kStates; }

  std::span<std::int32_t> block(std::vector<std::int32_t>& memory, int index) const {
    return std::span(memory).subspan(static_cast<std::size_t>(index * block_size()), block_size());
  }

  void execute(const tl::CopyOrder& copy) {
    const auto src = block(copy.kind == tl::CopyKind::kHostToDevice ? host_ : device_, copy.src);
    const auto dst = block(copy.kind == tl::CopyKind::kDeviceToHost ? host_ : device_, copy.dst);
    std::copy(src.begin(), src.end(), dst.begin());
  }

  // Returns the index of the beam that a row computes; 0 for rows outside of a search.
  static std::size_t beam_of(const tl::StepBatch& batch, std::size_t index) {
    std::size_t first = index;
    while (first > 0 && batch.rows[first - 1].request_slot == batch.rows[index].request_slot) --first;
    return index - first;
  }

  // Returns the tokens that the row's sequence must consist of.
  const Tokens& tokens_of(const tl::StepBatch& batch, std::size_t index) const {
    const SlotState& request = slots_[batch.rows[index].request_slot];
    return request.beams.empty() ? request.tokens : request.beams.at(beam_of(batch, index));
  }

  std::int32_t& cached(const tl::StepRow& row, std::size_t group, int position) {
    const int index = slots_[row.slot].tables[group].at(position / shape_.tokens_per_block);
    return block(device_, index)[position % shape_.tokens_per_block];
  }

  void write(const tl::StepBatch& batch, std::size_t index) {
    const tl::StepRow& row = batch.rows[index];
    const Tokens& tokens = tokens_of(batch, index);
    for (int i = 0; i < row.num_tokens; ++i) {
      const int position = row.past_len + i;
      std::int32_t token = batch.token_ids.at(row.first_token + i);
      if (token == tl::kLastSampled) {
        CHECK(position + 1 == std::ssize(tokens) && position >= slots_[row.slot].num_prompt);
        token = tokens.back();
      }
      if (i < row.num_tokens - row.num_drafts) CHECK(token == tokens.at(position));
      for (std::size_t group = 0; group < shape_.groups.size(); ++group) {
        if (is_state(shape_.groups[group])) {
          add_to_state(row, group, position, token);
        } else {
          cached(row, group, position) = token;
        }
      }
    }
  }

  // Each block of a state has the same numbers: the state after each of the last tokens, so that drafts can be taken
  // back.
  std::int32_t& state(int index, int position) {
    return block(device_, index)[static_cast<std::size_t>(shape_.tokens_per_block + position % kStates)];
  }

  void add_to_state(const tl::StepRow& row, std::size_t group, int position, std::int32_t token) {
    const int first = slots_[row.slot].tables[group].at(0);
    for (int i = first; i < first + shape_.groups[group].blocks; ++i) {
      state(i, position) = position == 0 ? state_after({&token, 1}) : state_after({&token, 1}, state(i, position - 1));
    }
  }

  void check_state(const tl::StepRow& row, std::size_t group, std::span<const std::int32_t> tokens) {
    const int first = slots_[row.slot].tables[group].at(0), last = static_cast<int>(tokens.size()) - 1;
    for (int i = first; i < first + shape_.groups[group].blocks; ++i) CHECK(state(i, last) == state_after(tokens));
  }

  void check_history(const tl::StepBatch& batch, std::size_t index) {
    const tl::StepRow& row = batch.rows[index];
    const Tokens& tokens = tokens_of(batch, index);
    const int end = row.past_len + row.num_tokens - row.num_drafts;
    CHECK(end <= std::ssize(tokens) && row.sample == (end == std::ssize(tokens)));
    CHECK(row.num_drafts >= 0 && (row.num_drafts == 0 || (row.sample && row.decodes())));
    for (std::size_t group = 0; group < shape_.groups.size(); ++group) {
      if (is_state(shape_.groups[group])) {
        check_state(row, group, std::span(tokens).first(end));
        continue;
      }
      for (int p = first_visible(row, group); p < end; ++p) CHECK(cached(row, group, p) == tokens[p]);
    }
  }

  void finish(const tl::StepBatch& batch, std::size_t index, tl::RowResult& result) {
    const tl::StepRow& row = batch.rows[index];
    SlotState& request = slots_[row.request_slot];
    const bool is_search = request.params != nullptr && request.params->num_beams > 0;
    if (beam_of(batch, index) > 0) return;
    CHECK(is_search || row.slot == row.request_slot);
    result.error = row_error(row);
    if (request.params != nullptr && request.params->prompt_outputs) {
      auto outputs = std::make_unique<FakeOutputs>();
      const int end = std::min(row.past_len + row.num_tokens, request.num_prompt);
      for (int p = std::max(row.past_len, row.outputs_from); p < end; ++p) outputs->positions.push_back(p);
      result.outputs = std::move(outputs);
    }
    if (!row.sample) return;
    if (is_search) return search(row, request, result);
    CHECK(row.num_generated == std::ssize(request.tokens) - request.num_prompt);
    const std::int32_t* drafts = batch.token_ids.data() + row.first_token + row.num_tokens - row.num_drafts;
    for (int i = 0; i <= row.num_drafts; ++i) {
      const int errs_on = request.params ? request.params->errs_on : 0;
      const std::int32_t right = next_token(request.params ? request.params->seed : 0, request.tokens);
      request.tokens.push_back(errs_on > 0 && right % errs_on == 0 ? (right + 1) % kVocab : right);
      result.tokens.push_back(request.tokens.back());
      if (i < row.num_drafts && drafts[i] != request.tokens.back()) break;
    }
  }

  static void search(const tl::StepRow& row, SlotState& request, tl::RowResult& result) {
    if (request.beams.empty()) request.beams.push_back(request.tokens);
    CHECK(row.num_generated == std::ssize(request.beams[0]) - request.num_prompt);
    result.moves = fake_moves(*request.params, request.beams, row.num_generated);
    if (result.moves.empty()) {
      if (!result.outputs) result.outputs = std::make_unique<FakeOutputs>();
      dynamic_cast<FakeOutputs&>(*result.outputs).found = request.beams;
    } else {
      request.beams = moved(request.beams, result.moves);
    }
  }

  static std::uint64_t digest(const tl::StepBatch& batch) {
    std::uint64_t hash = batch.step;
    const auto add = [&](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3ull; };
    for (const auto& copy : batch.copies) add(static_cast<int>(copy.kind)), add(copy.src), add(copy.dst);
    for (const auto& update : batch.table_updates)
      add(update.slot), add(update.group), add(update.index), add(update.block);
    for (const auto& row : batch.rows) {
      for (const int value :
           {row.slot, row.request_slot, row.first_token, row.num_tokens, row.num_drafts, row.past_len})
        add(value);
    }
    for (const std::int32_t token : batch.token_ids) add(token);
    return hash;
  }

  FakeShape shape_;
  std::vector<std::int32_t> device_, host_;
  std::vector<SlotState> slots_;
  std::vector<Tables> launch_tables_;
  Touched launch_touched_;
  std::deque<Flight> flights_;
  std::set<int> late_slots_;
  std::map<int, int> absent_;  // by block: parts of its memory that are away
  std::size_t num_broken_ = 0;
  std::uint64_t last_step_ = 0;
};
