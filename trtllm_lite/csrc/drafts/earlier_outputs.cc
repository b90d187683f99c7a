#include "drafts/earlier_outputs.h"

#include <algorithm>
#include <numeric>

namespace tl {

void EarlierOutputs::add(std::span<const std::int32_t> tokens) {
  const std::size_t most = max_tokens_ / 2;
  if (tokens.size() > most) tokens = tokens.last(most);
  if (tokens.empty()) return;
  queue_.emplace_back(tokens.begin(), tokens.end());
  num_queued_ += tokens.size();
  while (num_queued_ > max_tokens_) {
    num_queued_ -= queue_.front().size() - next_;
    queue_.pop_front();
    next_ = 0;
  }
}

void EarlierOutputs::take_in(int most) {
  for (; most > 0 && !queue_.empty(); --most) {
    const std::vector<std::int32_t>& output = queue_.front();
    if (next_ == 0) {
      if (num_outputs_ == max_outputs_ / 2 || newer_->num_tokens() + output.size() > max_tokens_ / 2) {
        older_ = std::exchange(newer_, std::make_shared<SuffixAutomaton>());
        num_outputs_ = 0;
      }
      newer_->begin_text();
      ++num_outputs_;
    }
    newer_->append(output[next_]);
    --num_queued_;
    if (++next_ < output.size()) continue;
    queue_.pop_front();
    next_ = 0;
  }
}

std::shared_ptr<EarlierOutputs> OutputsBySalt::of(const std::string& salt) {
  const auto found = by_salt_.find(salt);
  if (found != by_salt_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
  } else {
    entries_.emplace_front(salt, std::make_shared<EarlierOutputs>(max_outputs_, max_tokens_ / 8));
    by_salt_.emplace(salt, entries_.begin());
  }
  drop();
  return entries_.front().second;
}

void OutputsBySalt::add(const std::string& salt, std::span<const std::int32_t> tokens) {
  of(salt)->add(tokens);
  drop();
}

void OutputsBySalt::drop() {
  while (num_tokens() > max_tokens_ || entries_.size() > kMaxSalts) {
    by_salt_.erase(entries_.back().first);
    entries_.pop_back();
  }
}

std::size_t OutputsBySalt::num_tokens() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::size_t{0},
                         [](std::size_t sum, const Entry& entry) { return sum + entry.second->num_tokens(); });
}

}  // namespace tl
