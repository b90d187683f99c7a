// Images of random extents through csrc/media, in memory of exactly their size, under the sanitizers. Exits with 1 and
// a line on stderr where two implementations have different results.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "media/cut_patches.h"
#include "media/resize.h"

namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937;

int number(Random& random, int least, int most) { return std::uniform_int_distribution(least, most)(random); }

int side(Random& random) { return number(random, 0, 1) == 0 ? number(random, 1, 4) : number(random, 1, 200); }

Bytes noise(Random& random, std::size_t size) {
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

void resize_by_all(Random& random) {
  const int height = side(random), width = side(random), new_height = side(random), new_width = side(random);
  const Bytes image = noise(random, std::size_t{3} * height * width);
  const auto filter = static_cast<tl::Filter>(number(random, 1, 5));
  Bytes expected;
  for (int i = 0; tl::weighted_sum(i) != nullptr; ++i) {
    Bytes found(std::size_t{3} * new_height * new_width);
    tl::resize(image.data(), height, width, found.data(), new_height, new_width, filter, tl::weighted_sum(i));
    if (i > 0 && found != expected) {
      std::fprintf(stderr, "implementation %d differs from the first one\n", i);
      std::exit(1);
    }
    expected = found;
  }
}

void cut(Random& random) {
  const int merge = number(random, 1, 3), size = number(random, 1, 20), margin = number(random, 0, 9);
  const int rows = merge * number(random, 0, 5), columns = merge * number(random, 0, 5);
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{3} * columns * size + margin;
  const std::ptrdiff_t used = rows == 0 ? 0 : rows * size * row_bytes - margin;
  const Bytes tile = noise(random, static_cast<std::size_t>(used));
  Bytes patches(std::size_t{3} * rows * columns * size * size);
  tl::cut_patches(tile.data(), row_bytes, rows, columns, size, merge, patches.data());
}

}  // namespace

int main() {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    resize_by_all(random);
    cut(random);
  }
  return 0;
}
