// The outputs of earlier requests, kept in bounded memory and separately by cache_salt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drafts/suffix_automaton.h"

namespace tl {

// The outputs of one cache_salt, in two automata: when the newer one is full, it replaces the older one. So at least
// the latest `max_outputs` / 2 outputs are kept. A long output is added in small parts, so that no step waits for it.
class EarlierOutputs {
 public:
  // Keeps at most `max_outputs` outputs (at least 2) and `max_tokens` tokens, plus at most `max_tokens` not yet added.
  EarlierOutputs(int max_outputs, std::size_t max_tokens) : max_outputs_(max_outputs), max_tokens_(max_tokens) {}

  void add(std::span<const std::int32_t> tokens);
  // Adds up to `most` queued tokens to the automaton.
  void take_in(int most);
  std::size_t num_tokens() const { return newer_->num_tokens() + older_->num_tokens() + num_queued_; }
  const std::shared_ptr<SuffixAutomaton>& newer() const { return newer_; }
  const std::shared_ptr<SuffixAutomaton>& older() const { return older_; }

 private:
  const int max_outputs_;
  const std::size_t max_tokens_;
  std::shared_ptr<SuffixAutomaton> newer_ = std::make_shared<SuffixAutomaton>(),
                                   older_ = std::make_shared<SuffixAutomaton>();
  int num_outputs_ = 0;  // outputs that newer_ has, at least in part
  std::deque<std::vector<std::int32_t>> queue_;
  std::size_t num_queued_ = 0, next_ = 0;  // next_: index into the first output of queue_
};

// The outputs of all salts. If there are more than kMaxSalts salts or more than `max_tokens` tokens in all, the outputs
// of the least recently used salt are dropped.
class OutputsBySalt {
 public:
  static constexpr std::size_t kMaxSalts = 256;
  // `max_outputs`: the most outputs of a salt, at least 2.
  explicit OutputsBySalt(int max_outputs, std::size_t max_tokens = kMaxTokens)
      : max_outputs_(max_outputs), max_tokens_(max_tokens) {}

  std::shared_ptr<EarlierOutputs> of(const std::string& salt);
  void add(const std::string& salt, std::span<const std::int32_t> tokens);
  std::size_t num_tokens() const;

 private:
  // The default limit of tokens, of about 100 bytes each. A salt may have an eighth of it.
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 20;

  void drop();

  using Entry = std::pair<std::string, std::shared_ptr<EarlierOutputs>>;
  const int max_outputs_;
  const std::size_t max_tokens_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_salt_;
};

}  // namespace tl
