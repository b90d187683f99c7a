// Programs of Rowwise in C++: words in postfix notation, parsed into steps.
//
// Everything has internal linkage, because kernels are compiled for several instruction sets.
#pragma once

namespace tl::rowwise {

constexpr int kMaxSteps = 64;
constexpr int kMaxDepth = 8;  // the most values on the stack

enum class Operation {
  kRow,
  kVector,
  kConstant,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kNeg,
  kTanh,
  kGelu,
  kGeluTanh,
  kSilu,
  kSigmoid,
  kRelu,
  kExp,
  kSqrt,
  kReciprocal,
};

// `index`: number among the rows, vectors or constants.
struct Step {
  Operation operation;
  int index;
};

// `problem`: what is wrong with the text; null if nothing is.
struct Program {
  Step steps[kMaxSteps];
  int size = 0;
  const char* problem = nullptr;
};

struct Word {
  const char* text;
  Operation operation;
  int arity;
};

constexpr Word kWords[] = {
    {"add", Operation::kAdd, 2},         {"sub", Operation::kSub, 2},   {"mul", Operation::kMul, 2},
    {"div", Operation::kDiv, 2},         {"neg", Operation::kNeg, 1},   {"tanh", Operation::kTanh, 1},
    {"gelu", Operation::kGelu, 1},       {"silu", Operation::kSilu, 1}, {"gelu_tanh", Operation::kGeluTanh, 1},
    {"sigmoid", Operation::kSigmoid, 1}, {"relu", Operation::kRelu, 1}, {"reciprocal", Operation::kReciprocal, 1},
    {"exp", Operation::kExp, 1},         {"sqrt", Operation::kSqrt, 1},
};

[[maybe_unused]] static bool is_word(const char* text, int length, const char* word) {
  for (int i = 0; i < length; ++i) {
    if (word[i] == 0 || word[i] != text[i]) return false;
  }
  return word[length] == 0;
}

// Reads x, v or c followed by one or two digits. Returns false if the text is something else.
[[maybe_unused]] static bool read_operand(const char* text, int length, Step* step) {
  if (length < 2 || length > 3) return false;
  step->index = 0;
  for (int i = 1; i < length; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    step->index = step->index * 10 + (text[i] - '0');
  }
  step->operation = text[0] == 'x' ? Operation::kRow : text[0] == 'v' ? Operation::kVector : Operation::kConstant;
  return text[0] == 'x' || text[0] == 'v' || text[0] == 'c';
}

// Reads one word. Returns the number of values it takes, or -1 if there is no such word.
[[maybe_unused]] static int read_word(const char* text, int length, Step* step) {
  if (read_operand(text, length, step)) return 0;
  for (const Word& word : kWords) {
    if (!is_word(text, length, word.text)) continue;
    *step = {word.operation, 0};
    return word.arity;
  }
  return -1;
}

// `text` is zero-terminated. A program without a problem is one expression: every operation has its values, at most
// kMaxDepth values are on the stack at a time, and one is left.
[[maybe_unused]] static Program parse(const char* text) {
  Program program;
  const auto fail = [&](const char* problem) {
    program.problem = problem;
    return program;
  };
  int depth = 0;
  while (true) {
    int length = 0;
    while (text[length] != 0 && text[length] != ' ') ++length;
    if (program.size == kMaxSteps) return fail("at most 64 words");
    const int arity = read_word(text, length, &program.steps[program.size]);
    if (arity < 0) return fail("operands x0, v0, c0, .. and known operations, separated by single spaces");
    ++program.size;
    if (depth < arity) return fail("as many values before an operation as it takes");
    depth += 1 - arity;
    if (depth > kMaxDepth) return fail("at most 8 values that wait for an operation");
    if (text[length] == 0) break;
    text += length + 1;
  }
  return depth == 1 ? program : fail("one value at the end");
}

}  // namespace tl::rowwise
