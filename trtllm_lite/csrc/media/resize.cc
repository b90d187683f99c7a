#include "media/resize.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tl {
namespace {

// Pixels across a row are weighed in blocks of rows that are turned: a block has a column's pixels of all rows next to
// each other, so that columns are summed as rows are. kBlockRows pixels leave room for the byte that follows a pixel of
// 3 bytes when 4 are copied.
constexpr std::ptrdiff_t kColumnBytes = 128;
constexpr int kBlockRows = 42;
constexpr int kRowsAtOnce = 14;  // of a block, so that caches hold where all of them are read or written

struct Image {
  std::uint8_t* pixels;
  std::ptrdiff_t row_bytes;  // more than those of pixels: a byte after the last pixel may be overwritten
};

void turn_rows(const std::uint8_t* rows, int num_rows, int width, std::uint8_t* block) {
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{3} * width;
  for (int begin = 0; begin < num_rows; begin += kRowsAtOnce) {
    const int end = std::min(begin + kRowsAtOnce, num_rows);
    for (int x = 0; x < width - 1; ++x) {
      for (int y = begin; y < end; ++y) {
        std::memcpy(block + x * kColumnBytes + 3 * y, rows + y * row_bytes + 3 * x, 4);
      }
    }
    const int x = width - 1;  // nothing may follow the last pixel of an image
    for (int y = begin; y < end; ++y) {
      std::memcpy(block + x * kColumnBytes + 3 * y, rows + y * row_bytes + 3 * x, 3);
    }
  }
}

void turn_back(const std::uint8_t* block, int num_rows, int width, std::uint8_t* rows, std::ptrdiff_t row_bytes) {
  for (int begin = 0; begin < num_rows; begin += kRowsAtOnce) {
    const int end = std::min(begin + kRowsAtOnce, num_rows);
    for (int x = 0; x < width; ++x) {
      for (int y = begin; y < end; ++y) {
        std::memcpy(rows + y * row_bytes + 3 * x, block + x * kColumnBytes + 3 * y, 4);
      }
    }
  }
}

class Resizing {
 public:
  Resizing(Filter filter, WeightedSum weighted_sum) : filter_(filter), weighted_sum_(weighted_sum) {}

  void across(const std::uint8_t* image, int height, int width, int new_width, const Image& out) const {
    const AxisWeights weights(width, new_width, filter_);
    std::vector<std::uint8_t> block(kColumnBytes * width);
    std::vector<std::uint8_t> new_block(kColumnBytes * new_width);
    for (int top = 0; top < height; top += kBlockRows) {
      const int num_rows = std::min(kBlockRows, height - top);
      turn_rows(image + std::ptrdiff_t{3} * top * width, num_rows, width, block.data());
      for (int x = 0; x < new_width; ++x) {
        weighted_sum_(block.data() + weights.first(x) * kColumnBytes, kColumnBytes, weights.count(x), weights.digits(x),
                      new_block.data() + x * kColumnBytes, 3 * num_rows);
      }
      turn_back(new_block.data(), num_rows, new_width, out.pixels + top * out.row_bytes, out.row_bytes);
    }
  }

  void down(const std::uint8_t* image, std::ptrdiff_t row_bytes, int height, int width, int new_height,
            std::uint8_t* out) const {
    const AxisWeights weights(height, new_height, filter_);
    const std::ptrdiff_t new_row_bytes = std::ptrdiff_t{3} * width;
    for (int y = 0; y < new_height; ++y) {
      weighted_sum_(image + weights.first(y) * row_bytes, row_bytes, weights.count(y), weights.digits(y),
                    out + y * new_row_bytes, new_row_bytes);
    }
  }

 private:
  Filter filter_;
  WeightedSum weighted_sum_;
};

// Pillow 13 resizes a column first where that shortens it by more than twice as much as a row.
bool is_column_first(int height, int width, int new_height, int new_width) {
  return new_height < height && std::int64_t{height} - new_height > 2 * (std::int64_t{width} - new_width);
}

}  // namespace

void resize(const std::uint8_t* image, int height, int width, std::uint8_t* out, int new_height, int new_width,
            Filter filter, WeightedSum weighted_sum) {
  const Resizing resizing(filter, weighted_sum);
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{3} * width;
  const std::ptrdiff_t new_row_bytes = std::ptrdiff_t{3} * new_width;
  if (new_width == width) {
    if (new_height != height) return resizing.down(image, row_bytes, height, width, new_height, out);
    std::memcpy(out, image, height * row_bytes);
    return;
  }
  const bool column_first = new_height != height && is_column_first(height, width, new_height, new_width);
  std::vector<std::uint8_t> shorter;
  if (column_first) {
    shorter.resize(new_height * row_bytes);
    resizing.down(image, row_bytes, height, width, new_height, shorter.data());
    image = shorter.data();
    height = new_height;
  }
  std::vector<std::uint8_t> narrower(height * (new_row_bytes + 1));
  resizing.across(image, height, width, new_width, {narrower.data(), new_row_bytes + 1});
  if (new_height != height) {
    return resizing.down(narrower.data(), new_row_bytes + 1, height, new_width, new_height, out);
  }
  for (int y = 0; y < height; ++y) {
    std::memcpy(out + y * new_row_bytes, narrower.data() + y * (new_row_bytes + 1), new_row_bytes);
  }
}

}  // namespace tl
