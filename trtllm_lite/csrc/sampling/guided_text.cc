#include "sampling/guided_text.h"

namespace tl {
namespace {

constexpr std::size_t kWordBits = 32;

bool allows(std::span<const std::uint32_t> mask, std::int32_t token) {
  const auto id = static_cast<std::size_t>(token);
  return (mask[id / kWordBits] >> (id % kWordBits) & 1) != 0;
}

}  // namespace

void GuidedText::fill_masks(std::span<const std::int32_t> drafts, std::size_t num_words,
                            std::span<std::uint32_t> masks) {
  matcher_->accept(drawn_);
  drawn_.clear();
  std::size_t num_tried = 0;
  while (true) {
    const auto mask = masks.subspan(num_tried * num_words, num_words);
    matcher_->fill_mask(mask);
    if (num_tried == drafts.size() || !allows(mask, drafts[num_tried])) break;
    matcher_->accept(drafts.subspan(num_tried, 1));
    ++num_tried;
  }
  if (num_tried > 0) matcher_->roll_back(num_tried);
}

}  // namespace tl
