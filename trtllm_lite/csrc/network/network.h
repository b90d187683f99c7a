// A compiled network that another library runs, with the caches of its sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/device_executor.h"

namespace tl {

// Tokens for consecutive rows of the caches; a row holds a sequence. Either one row gets any number of tokens, or each
// row gets one.
struct NetworkStep {
  bool generation;                               // each row gets one token
  std::int64_t first_row;                        // first row of the caches
  std::span<const std::int32_t> past_lens;       // [rows], tokens already in the caches
  std::span<const std::int32_t> token_ids;       // [rows * tokens per row]
  std::span<const std::int32_t> logits_indices;  // tokens for which logits are computed; at least one
  std::span<const std::int32_t> outputs;         // rows of the table that receive the logits; empty: not wanted
};

// The destination of logits: float32[rows, vocab_size].
struct LogitsTable {
  float* values;
  std::size_t rows, vocab_size;
};

class Network {
 public:
  virtual ~Network() = default;

  // Appends tokens to sequences and writes the wanted rows of logits. Throws LimitError if the network was not compiled
  // for such a step, DeviceError.
  virtual void step(const NetworkStep& step, const LogitsTable& logits) = 0;
  // save_row, load_row and copy_row copy a whole row of all caches, in the order of the plan's tensors. They throw
  // DeviceError.
  virtual void copy_row(std::int64_t src, std::int64_t dst) = 0;
  virtual void save_row(std::int64_t row, std::span<std::byte> out) = 0;
  virtual void load_row(std::int64_t row, std::span<const std::byte> data) = 0;
  virtual MemoryUse memory() const = 0;
};

}  // namespace tl
