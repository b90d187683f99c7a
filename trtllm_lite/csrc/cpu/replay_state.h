// What a recurrent layer keeps of a sequence in each head: plugins/replay.py says why, and in which order.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"
#include "cpu/state_spans.h"

namespace tl::TL_ISA {

// Extents of the state of a head, of `size` elements of the type `dtype`. All but the matrix are float32.
struct ReplayShape {
  std::int64_t key_dim, value_dim, decay_dim, replayed, taken_back, size;
  DType dtype;

  std::int64_t slots() const { return replayed + taken_back; }
  std::int64_t words() const { return dtype == DType::kFloat32 ? size : size / 2; }
  std::int64_t matrix_words() const {
    return dtype == DType::kFloat32 ? key_dim * value_dim : (key_dim * value_dim + 1) / 2;
  }
};

// Calls use(elements) with `matrix` as a pointer to elements of `dtype`.
template <typename Use>
TL_INLINE void with_elements(DType dtype, float* matrix, const Use& use) {
  switch (dtype) {
    case DType::kBFloat16:
      return use(reinterpret_cast<BFloat16*>(matrix));
    case DType::kFloat16:
      return use(reinterpret_cast<Float16*>(matrix));
    default:
      return use(matrix);
  }
}

// The state of a head of a sequence, and where the step's tokens lie in it.
class ReplayState {
 public:
  // `state`: where that of the head begins.
  ReplayState(const ReplayShape& shape, float* state, const StateSpan& span)
      : shape_(shape), state_(state), keys_(state + shape.matrix_words()), past_(span.past), end_(span.end()) {
    length_ = past_ > 0 ? static_cast<std::int64_t>(*length_place()) : 0;
    const std::int64_t settled = past_ + (span.count > shape.taken_back ? span.count - shape.taken_back : 0);
    const std::int64_t whole = settled / shape.replayed * shape.replayed;
    next_length_ = whole > length_ ? whole : length_;
  }

  // The tokens in the stored matrix before the step and after it.
  std::int64_t length() const { return length_; }
  std::int64_t next_length() const { return next_length_; }
  // Whether the token at a position comes with the step; earlier ones are in the state.
  bool is_new(std::int64_t position) const { return position >= past_; }
  // Whether a step's token stays in the state behind the matrix.
  bool keeps(std::int64_t position) const { return is_new(position) && position >= next_length_; }
  std::int64_t end() const { return end_; }

  // The elements of the matrix, of the type of the shape.
  float* matrix() const { return state_; }
  float* key(std::int64_t position) const { return keys_ + slot(position) * shape_.key_dim; }
  float* update(std::int64_t position) const {
    return keys_ + shape_.slots() * shape_.key_dim + slot(position) * shape_.value_dim;
  }
  float* decay(std::int64_t position) const {
    return keys_ + shape_.slots() * (shape_.key_dim + shape_.value_dim) + slot(position) * shape_.decay_dim;
  }
  void store_length() const { *length_place() = static_cast<float>(next_length_); }

 private:
  std::int64_t slot(std::int64_t position) const { return position % shape_.slots(); }
  float* length_place() const {
    return keys_ + shape_.slots() * (shape_.key_dim + shape_.value_dim + shape_.decay_dim);
  }

  const ReplayShape& shape_;
  float* const state_;
  float* const keys_;  // behind the matrix, whose last word may have room for another element
  const std::int64_t past_, end_;
  std::int64_t length_, next_length_;
};

}  // namespace tl::TL_ISA
