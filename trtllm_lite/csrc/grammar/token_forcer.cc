#include "grammar/token_forcer.h"

#include <algorithm>
#include <utility>

namespace tl::llguidance {
namespace {

// About the most bytes that the tokens of a draft have; it would be useless to spell more.
constexpr std::size_t kMostBytes = 96;

}  // namespace

bool ByteForcer::ends(std::int32_t token) const {
  return std::ranges::count(tools_->end_ids, static_cast<std::uint32_t>(token)) > 0;
}

// An end token adds nothing to the text.
void ByteForcer::accept(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (ends(token)) continue;
    const std::string_view bytes = tools_->texts->text(token);
    text_.append(bytes);
    layout_.append(bytes);
    last_ = bytes;
  }
}

std::vector<std::int32_t> ByteForcer::forced_tokens(int most) {
  std::string piece;
  TextLayout::Place place = layout_.place();
  while (piece.size() < kMostBytes) {
    const std::string bytes = next_bytes(place);
    if (bytes.empty()) break;
    text_.append(bytes);
    TextLayout::advance(place, bytes);
    piece += bytes;
  }
  if (piece.empty()) return {};
  text_.take_back(piece.size());
  std::vector<std::int32_t> tokens = tools_->spelling.of(last_, piece);
  if (std::ssize(tokens) > most) tokens.resize(static_cast<std::size_t>(most));
  return tokens;
}

// The bytes that follow those predicted already; empty if unknown.
std::string ByteForcer::next_bytes(const TextLayout::Place& place) {
  std::string bytes = text_.forced();
  if (!bytes.empty()) return bytes;
  const std::optional<char> next = text_.forced_but_for_space();
  if (!next) return {};
  const std::optional<std::string> space = layout_.space_before(*next, place);
  if (!space) return {};
  bytes = *space + *next;
  return text_.num_allowed(bytes) == bytes.size() ? bytes : std::string();
}

int ByteForcer::num_allowed(std::span<const std::int32_t> tokens) {
  std::size_t num_bytes = 0;
  int num = 0;
  for (const std::int32_t token : tokens) {
    if (ends(token)) {
      num += text_.may_end() ? 1 : 0;
      break;
    }
    const std::string_view bytes = tools_->texts->text(token);
    if (bytes.empty() || text_.num_allowed(bytes) < bytes.size()) break;
    text_.append(bytes);
    num_bytes += bytes.size();
    ++num;
  }
  text_.take_back(num_bytes);
  return num;
}

}  // namespace tl::llguidance
