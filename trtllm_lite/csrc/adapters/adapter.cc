#include "adapters/adapter.h"

#include <algorithm>
#include <utility>

#include "errors.h"
#include "host/cpu_count.h"
#include "host/thread_pool.h"

namespace tl {
namespace {

using Pairs = std::map<std::int64_t, LowRankPair>;

constexpr int kMaxThreads = 8;
constexpr std::int64_t kTaskElements = std::int64_t{1} << 18;
constexpr std::size_t kMatrixAlignment = 64;

// A matrix to be converted to the engine's type. Only B is transposed, for CPUs.
struct Conversion {
  std::string tensor;  // its name in the file
  StoredMatrix from;
  float scale = 1.0f;
  DType dtype = DType::kFloat32;
  bool transposes = false;
  std::byte* to = nullptr;
};

// Rows of a matrix that a thread converts at a time.
struct Task {
  const Conversion* conversion;
  std::int64_t first;
  std::int64_t count;
  bool is_finite = true;
};

std::string to_string(std::int64_t rows, std::int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

void check_extents(const std::string& name, const StoredMatrix& found, std::int64_t rows, std::int64_t columns) {
  if (found.rows == rows && found.columns == columns) return;
  throw LimitError("adapter: expected " + name + " of extents " + to_string(rows, columns) + ", found " +
                   to_string(found.rows, found.columns) + ": take an adapter of this model");
}

void check(const LowRankPair& pair, const LowRankShape& shape, std::int64_t max_rank) {
  const std::int64_t rank = pair.a.rows;
  if (rank < 1 || rank > max_rank) {
    throw LimitError("adapter: expected a rank of 1 to " + std::to_string(max_rank) + ", found " +
                     std::to_string(rank) + ": build the engine with a larger --max_lora_rank");
  }
  check_extents("A", pair.a, rank, shape.in_features);
  check_extents("B", pair.b, shape.out_features, rank);
}

const LowRankShape& shape_of(const LowRankShapes& shapes, std::int64_t number) {
  if (number >= 0 && number < std::ssize(shapes.parts)) return shapes.parts[static_cast<std::size_t>(number)];
  throw LimitError("adapter: expected projection numbers below " + std::to_string(shapes.parts.size()) + ", found " +
                   std::to_string(number) + ": build the engine with --max_lora_rank");
}

std::size_t bytes_of(const StoredMatrix& matrix, DType dtype) {
  const auto bytes = static_cast<std::size_t>(matrix.rows * matrix.columns * item_size(dtype));
  return (bytes + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
}

std::size_t checked_bytes(const LowRankShapes& shapes, const Pairs& pairs) {
  std::size_t bytes = 0;
  for (const auto& [number, pair] : pairs) {
    const LowRankShape& shape = shape_of(shapes, number);
    check(pair, shape, shapes.max_rank);
    bytes += bytes_of(pair.a, shape.dtype) + bytes_of(pair.b, shape.dtype);
  }
  return bytes;
}

std::vector<Task> tasks_of(const std::vector<Conversion>& conversions) {
  std::vector<Task> tasks;
  for (const Conversion& conversion : conversions) {
    const std::int64_t rows = conversion.from.rows;
    const std::int64_t at_once = std::max(kTaskElements / conversion.from.columns, std::int64_t{1});
    for (std::int64_t first = 0; first < rows; first += at_once) {
      tasks.push_back({&conversion, first, std::min(at_once, rows - first)});
    }
  }
  return tasks;
}

bool run(const Task& task) {
  const auto& [tensor, from, scale, dtype, transposes, to] = *task.conversion;
  if (transposes) return transpose_rows(from, task.first, task.count, scale, reinterpret_cast<float*>(to));
  return convert_rows(from, task.first, task.count, scale, dtype, to);
}

void convert(const std::vector<Conversion>& conversions) {
  std::vector<Task> tasks = tasks_of(conversions);
  if (tasks.empty()) return;
  const auto num_tasks = static_cast<std::int64_t>(tasks.size());
  ThreadPool pool(static_cast<int>(std::min(std::int64_t{std::min(resolve_num_threads(0), kMaxThreads)}, num_tasks)));
  pool.parallel_for(num_tasks, [&](std::int64_t number, int) {
    Task& task = tasks[static_cast<std::size_t>(number)];
    task.is_finite = run(task);
  });
  const auto bad = std::ranges::find(tasks, false, &Task::is_finite);
  if (bad == tasks.end()) return;
  throw EngineError("expected adapter_model.safetensors to be a whole safetensors file, found elements of '" +
                    bad->conversion->tensor +
                    "' that are not finite: save the adapter again with PEFT's save_pretrained");
}

}  // namespace

Adapter::Adapter(LowRankShapes shapes, const Pairs& pairs, std::string key)
    : shapes_(std::move(shapes)),
      values_(checked_bytes(shapes_, pairs), AnonymousMemory::Pages::kDefault, "adapter", "lower max_cpu_loras"),
      parts_(shapes_.parts.size()),
      half_parts_(shapes_.parts.size()),
      key_(std::move(key)) {
  std::vector<Conversion> conversions;
  std::byte* to = values_.data();
  for (const auto& [number, pair] : pairs) {
    const auto index = static_cast<std::size_t>(number);
    const DType dtype = shapes_.parts[index].dtype;
    const bool is_float = dtype == DType::kFloat32;
    std::byte *a = to, *b = a + bytes_of(pair.a, dtype);
    to = b + bytes_of(pair.b, dtype);
    conversions.push_back({pair.name + ".lora_A.weight", pair.a, 1.0f, dtype, false, a});
    conversions.push_back({pair.name + ".lora_B.weight", pair.b, pair.scale, dtype, is_float, b});
    if (is_float) {
      parts_[index] = {reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), pair.a.rows};
    } else {
      half_parts_[index] = {a, b, pair.a.rows};
    }
  }
  convert(conversions);
}

void Adapter::check_made_for(const LowRankShapes& shapes) const {
  if (shapes_ == shapes) return;
  throw LimitError("expected an adapter that was made for this engine, found one for another: make it again");
}

}  // namespace tl
