// A compiled network that another library runs, with the caches of its sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "batching/device_executor.h"

namespace tl {

// Tokens for consecutive rows of the caches, each of which holds a sequence. Either one row gets any number of tokens,
// or each row gets one.
struct NetworkStep {
  bool generation;                               // each row gets one token
  std::int64_t first_row;                        // of the caches
  std::span<const std::int32_t> past_lens;       // [rows], tokens that the caches hold already
  std::span<const std::int32_t> token_ids;       // [rows * tokens of each]
  std::span<const std::int32_t> logits_indices;  // the token_ids behind which logits are computed, one at least
  std::span<const std::int32_t> outputs;         // the rows of the table that get them; empty: nobody wants them
};

// Where logits go: float32[rows, vocab_size].
struct LogitsTable {
  float* values;
  std::size_t rows, vocab_size;
};

class Network {
 public:
  virtual ~Network() = default;

  // Appends tokens to sequences, and writes the rows of logits that are wanted. Throws LimitError for a step that the
  // network was not compiled for, DeviceError.
  virtual void step(const NetworkStep& step, const LogitsTable& logits) = 0;
  // Each of these copies a whole row of all caches, in the order of the plan's tensors, and throws DeviceError.
  virtual void copy_row(std::int64_t src, std::int64_t dst) = 0;
  virtual void save_row(std::int64_t row, std::span<std::byte> out) = 0;
  virtual void load_row(std::int64_t row, std::span<const std::byte> data) = 0;
  virtual MemoryUse memory() const = 0;
};

}  // namespace tl
