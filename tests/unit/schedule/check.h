// The whole test framework: named tests, and checks that abort where they fail, so that sanitizers print a stack.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

#define TEST(name)                                                                \
  static void name();                                                             \
  static const bool name##_listed = (all_tests().push_back({#name, name}), true); \
  static void name()

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                               \
    }                                                                             \
  } while (false)

// Aborts unless `call` throws an exception of type E whose message contains `part`.
#define CHECK_THROWS(E, call, part)                                                              \
  do {                                                                                           \
    bool thrown = false;                                                                         \
    try {                                                                                        \
      (void)(call);                                                                              \
    } catch (const E& error) {                                                                   \
      thrown = true;                                                                             \
      if (!std::strstr(error.what(), part)) std::fprintf(stderr, "message: %s\n", error.what()); \
      CHECK(std::strstr(error.what(), part));                                                    \
    }                                                                                            \
    CHECK(thrown && #E);                                                                         \
  } while (false)

// Return how many random rounds of a test to run, and whether a numbered case runs: a quarter of them unless
// TRTLLM_LITE_ALL_ROUNDS is set.
inline bool runs_all_rounds() { return std::getenv("TRTLLM_LITE_ALL_ROUNDS") != nullptr; }
inline std::uint64_t rounds(std::uint64_t all) { return runs_all_rounds() ? all : (all + 3) / 4; }
inline bool is_due(int number) { return runs_all_rounds() || number % 4 == number / 4 % 4; }

// Returns whether a count exceeds `all` after all rounds, or about a quarter of `all` after a quarter of the rounds.
inline bool reaches(std::uint64_t count, std::uint64_t all) { return count > (runs_all_rounds() ? all : all / 4 - 1); }

// Runs the one test with the given name, or all tests.
inline int run_tests(int argc, char** argv) {
  std::size_t num_run = 0;
  for (const Test& test : all_tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    test.run();
    ++num_run;
  }
  return num_run == (argc > 1 ? 1 : all_tests().size()) ? 0 : 2;
}

#define TEST_MAIN \
  int main(int argc, char** argv) { return run_tests(argc, argv); }
