// The whole test framework: named tests, and checks that abort with their place so that sanitizers print a stack.
#pragma once

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

// The message of the exception of type E that `call` throws.
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

// Runs the named test, or all.
inline int run_tests(int argc, char** argv) {
  int num_run = 0;
  for (const Test& test : all_tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    test.run();
    ++num_run;
  }
  return num_run > 0 ? 0 : 2;
}

#define TEST_MAIN \
  int main(int argc, char** argv) { return run_tests(argc, argv); }
