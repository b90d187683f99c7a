// Carries rows to the next stage, and tokens back to the first, between processes. A sender copies its data and sends
// the copy on a separate stream, so that it can go on to the next step while the receiver still computes. A receiver
// receives on its compute stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ranks/nccl_pair.h"
#include "cuda/ranks/stage_link.h"

namespace tl::cuda {

// Memory for copies of data until they have been sent.
class Outbox {
 public:
  // At most `num_places` messages of up to `num_bytes` may be under way. The data is computed on the executor's stream
  // and goes to all `receivers`.
  Outbox(const CudaExecutor& executor, std::vector<std::unique_ptr<NcclPair>> receivers, std::size_t num_bytes,
         std::size_t num_places);
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Enqueues the sending of the pieces after the work on the executor's stream. Its device must be current.
  void send(std::span<const Piece> pieces);
  std::span<const std::unique_ptr<NcclPair>> receivers() const { return receivers_; }

 private:
  struct Place {
    DeviceBuffer bytes;
    OwnedEvent filled, sent;
  };

  const CudaExecutor& executor_;
  std::vector<std::unique_ptr<NcclPair>> receivers_;
  OwnedStream stream_;
  std::vector<Place> places_;
  std::size_t num_sent_ = 0;
};

// A rank's rows, ordered by name.
class NcclRows {
 public:
  // `tensors`: tensors of the executor's plan by name.
  NcclRows(const CudaExecutor& executor, const std::map<std::string, int>& tensors);

  std::vector<Piece> pieces(std::int64_t num_tokens) const;

 private:
  std::vector<std::pair<DevicePtr, std::size_t>> rows_;  // (address, bytes of a row)
};

class NcclRowSink final : public RowSink {
 public:
  NcclRowSink(const CudaExecutor& executor, std::unique_ptr<NcclPair> receiver);
  void send(std::int64_t num_tokens) override { outbox_.send(rows_.pieces(num_tokens)); }
  NcclPair* receiver() const { return outbox_.receivers().front().get(); }

 private:
  const NcclRows rows_;
  Outbox outbox_;
};

class NcclRowSource final : public RowSource {
 public:
  NcclRowSource(const CudaExecutor& executor, std::unique_ptr<NcclPair> sender);
  void receive(std::int64_t num_tokens) override { sender_->transfer(rows_.pieces(num_tokens), stream_); }
  NcclPair* sender() const { return sender_.get(); }

 private:
  const NcclRows rows_;
  std::unique_ptr<NcclPair> sender_;
  const Stream stream_;
};

// The last token that each slot's sequence sampled, in the state of the rank.
Piece last_tokens(const CudaExecutor& executor);

}  // namespace tl::cuda
