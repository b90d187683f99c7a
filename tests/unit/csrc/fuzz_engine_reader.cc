// Opens each engine file named on the command line and prints whether it is accepted, or why not. A test builds this
// with AddressSanitizer and feeds it mutated engines: whatever the bytes are, it must say one or the other.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/engine.h"
#include "errors.h"

namespace {

// Copies the file to a heap block of exactly its size: a read past the end is detected, unlike in a mapping.
std::vector<std::byte> read_file(const char* path) {
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::byte> bytes = read_file(argv[i]);
    try {
      tl::read_engine(bytes, 1);
      std::printf("%s: accepted\n", argv[i]);
    } catch (const tl::EngineError& error) {
      std::printf("%s: rejected: %s\n", argv[i], error.what());
    }
  }
  return 0;
}
