#include "media/resize.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "media/transpose_pixels.h"

namespace tl {
namespace {

// Pixels across a row are weighed in blocks of rows that are transposed: a block has a column's pixels of all rows next
// to each other, so that columns are summed as rows are.
constexpr int kBlockRows = 40;
constexpr std::ptrdiff_t kColumnBytes = 128;
constexpr int kNewColumns = 64;  // of a block, so that caches hold the columns that these are made of
constexpr std::ptrdiff_t kCacheLine = 64;
static_assert(3 * kBlockRows + kRoom <= kColumnBytes);

using Bytes = std::unique_ptr<std::uint8_t[]>;

Bytes uninitialized(std::ptrdiff_t size) { return std::make_unique_for_overwrite<std::uint8_t[]>(size); }

// An image with kRoom bytes after each row, or more.
struct RoomyImage {
  RoomyImage(int height, int width)
      : row_bytes((std::ptrdiff_t{3} * width + kRoom + kCacheLine - 1) / kCacheLine * kCacheLine),
        pixels(uninitialized(height * row_bytes)) {}

  std::ptrdiff_t row_bytes;
  Bytes pixels;
};

class Resizing {
 public:
  Resizing(Filter filter, WeightedSum weighted_sum) : filter_(filter), weighted_sum_(weighted_sum) {}

  void across(const std::uint8_t* image, int height, int width, int new_width, const RoomyImage& out) const {
    const AxisWeights weights(width, new_width, filter_);
    int most = 0;
    for (int x = 0; x < new_width; x += kNewColumns) most = std::max(most, columns_of(weights, x, new_width));
    const Bytes block = uninitialized(kColumnBytes * most);
    const Bytes new_block = uninitialized(kColumnBytes * kNewColumns);
    const std::ptrdiff_t row_bytes = std::ptrdiff_t{3} * width;
    for (int top = 0; top < height; top += kBlockRows) {
      const int num_rows = std::min(kBlockRows, height - top);
      for (int left = 0; left < new_width; left += kNewColumns) {
        const int first = weights.first(left);
        const int num_columns = columns_of(weights, left, new_width);
        transpose_pixels(image + top * row_bytes + std::ptrdiff_t{3} * first, row_bytes, num_rows, num_columns,
                         first + num_columns + 2 <= width, block.get(), kColumnBytes);
        const int num_new = std::min(kNewColumns, new_width - left);
        for (int x = 0; x < num_new; ++x) {
          weighted_sum_(block.get() + (weights.first(left + x) - first) * kColumnBytes, kColumnBytes,
                        weights.count(left + x), weights.digits(left + x), new_block.get() + x * kColumnBytes,
                        3 * num_rows);
        }
        transpose_pixels(new_block.get(), kColumnBytes, num_new, num_rows, true,
                         out.pixels.get() + top * out.row_bytes + std::ptrdiff_t{3} * left, out.row_bytes);
      }
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
  // How many columns make up the new ones of a block that begins with the new column `left`.
  static int columns_of(const AxisWeights& weights, int left, int new_width) {
    const int last = std::min(left + kNewColumns, new_width) - 1;
    return weights.first(last) + weights.count(last) - weights.first(left);
  }

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
  Bytes shorter;
  if (column_first) {
    shorter = uninitialized(new_height * row_bytes);
    resizing.down(image, row_bytes, height, width, new_height, shorter.get());
    image = shorter.get();
    height = new_height;
  }
  const RoomyImage narrower(height, new_width);
  resizing.across(image, height, width, new_width, narrower);
  if (new_height != height) {
    return resizing.down(narrower.pixels.get(), narrower.row_bytes, height, new_width, new_height, out);
  }
  for (int y = 0; y < height; ++y) {
    std::memcpy(out + y * new_row_bytes, narrower.pixels.get() + y * narrower.row_bytes, new_row_bytes);
  }
}

}  // namespace tl
