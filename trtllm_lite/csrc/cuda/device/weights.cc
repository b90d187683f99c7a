#include "cuda/device/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "cuda/device/random_values.h"
#include "engine/checks/plan_check.h"
#include "errors.h"
#include "host/cpu_count.h"
#include "host/thread_pool.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kWeightAlignment = 256;
constexpr std::size_t kMaxStagingBytes = std::size_t{8} << 20;
constexpr std::size_t kNumStagingBuffers = 4;
constexpr std::int64_t kCopyBytes = std::int64_t{1} << 20;  // bytes that a thread copies at a time into a staging
                                                            // buffer
constexpr int kMaxCopyThreads = 8;

// Page-locked buffers used in turn: the device reads some while threads fill another. Page-locking takes time, so a
// buffer is never larger than all the weights.
class Staging {
 public:
  Staging(std::size_t total_bytes, Stream stream)
      : buffer_bytes_(std::min(total_bytes, kMaxStagingBytes)),
        stream_(stream),
        pool_(std::min(resolve_num_threads(0), kMaxCopyThreads)) {
    for (Buffer& buffer : buffers_) {
      buffer = {PinnedBuffer(buffer_bytes_, "staging of weights", "free host memory"), make_event(), false};
    }
  }

  void send(DevicePtr to, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::span<const std::byte> chunk = bytes.first(std::min(bytes.size(), buffer_bytes_));
      Buffer& buffer = next();
      fill(buffer.memory.data(), chunk);
      driver().check(driver().copy_to_device(to, buffer.memory.data(), chunk.size(), stream_), "copying weights");
      driver().check(driver().event_record(buffer.read.get(), stream_), "copying weights");
      buffer.in_use = true;
      to += chunk.size();
      bytes = bytes.subspan(chunk.size());
    }
  }

 private:
  struct Buffer {
    PinnedBuffer memory;
    OwnedEvent read;
    bool in_use = false;
  };

  Buffer& next() {
    Buffer& buffer = buffers_[position_];
    position_ = (position_ + 1) % buffers_.size();
    if (buffer.in_use) driver().check(driver().event_synchronize(buffer.read.get()), "copying weights");
    return buffer;
  }

  void fill(std::byte* to, std::span<const std::byte> from) {
    const auto size = static_cast<std::int64_t>(from.size());
    pool_.parallel_for((size + kCopyBytes - 1) / kCopyBytes, [&](std::int64_t task, int) {
      const std::int64_t begin = task * kCopyBytes;
      std::memcpy(to + begin, from.data() + begin, static_cast<std::size_t>(std::min(kCopyBytes, size - begin)));
    });
  }

  std::size_t buffer_bytes_;
  Stream stream_;
  ThreadPool pool_;
  std::array<Buffer, kNumStagingBuffers> buffers_;
  std::size_t position_ = 0;
};

// Whether `numbers` are the scales or offsets ([PREFIX.]NAME_scale, NAME_offset) of a weight NAME with 8-bit elements.
bool are_of_bytes(const Plan& plan, const PlanTensor& numbers) {
  const std::string_view weight = std::string_view(numbers.name).substr(0, numbers.name.rfind('_'));
  return std::ranges::any_of(plan.tensors, [&](const PlanTensor& tensor) {
    return bits_of(tensor.dtype) == 8 && weight.ends_with(tensor.name);
  });
}

// The constant that an engine without weights gets as a vector, indices or scales. Scales give bytes and nibbles the
// deviation of weights. Empty for other tensors, whose values are random.
std::optional<float> constant_of(const Plan& plan, const PlanTensor& tensor) {
  if (tensor.layout == Layout::kRows8) {
    const bool of_bytes = are_of_bytes(plan, tensor);
    if (tensor.name.ends_with("_offset")) return of_bytes ? 0.0f : kNibbleOffset;
    return of_bytes ? kByteScale : kNibbleScale;
  }
  if (tensor.name.find("weight_scale") != std::string::npos) return kByteScale;
  if (tensor.dtype == DType::kInt32 || tensor.name.ends_with("bias")) return 0.0f;
  return tensor.dtype == DType::kFloat32 ? std::optional(1.0f) : std::nullopt;
}

}  // namespace

Weights::Weights(const Device& device, const Engine& engine, Stream stream) {
  const Plan& plan = engine.plan_for(TargetKind::kCuda);
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
  for (const PlanTensor& tensor : plan.tensors) {
    offsets.push_back(total);
    if (tensor.kind != TensorKind::kWeight) continue;
    const auto bytes = static_cast<std::size_t>(max_bytes(plan, tensor));
    // The size is checked here too, because engines without weights have no file that bounds it.
    const std::size_t padded = (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
    if (__builtin_add_overflow(total, padded, &total)) {
      throw EngineError("weights: expected tensors that fit in memory, found more than 2^64 bytes of them");
    }
  }
  buffer_ = DeviceBuffer(device, total, "weights", "use a GPU with more memory");
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const bool is_weight = plan.tensors[i].kind == TensorKind::kWeight;
    addresses_.push_back(is_weight ? buffer_.address() + offsets[i] : 0);
  }
  if (engine.manifest().stripped) {
    make_up(device, engine, stream);
  } else {
    upload(engine, stream);
  }
  driver().check(driver().stream_synchronize(stream), "copying weights");
}

void Weights::upload(const Engine& engine, Stream stream) const {
  Staging staging(buffer_.size(), stream);
  const Plan& plan = engine.plan_for(TargetKind::kCuda);
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    if (addresses_[i] != 0) staging.send(addresses_[i], engine.weight(plan.tensors[i].name));
  }
  driver().check(driver().stream_synchronize(stream), "copying weights");
}

void Weights::make_up(const Device& device, const Engine& engine, Stream stream) const {
  const Plan& plan = engine.plan_for(TargetKind::kCuda);
  std::map<std::pair<DType, Layout>, RandomValues> values;  // made for the first weight of its kind
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    if (addresses_[i] == 0) continue;
    const auto bytes = static_cast<std::size_t>(max_bytes(plan, plan.tensors[i]));
    const DType dtype = plan.tensors[i].dtype;
    if (const std::optional<float> value = constant_of(plan, plan.tensors[i])) {
      driver().check(driver().fill_words(addresses_[i], word_of(*value, dtype), bytes / sizeof(float), stream),
                     "making up weights");
      continue;
    }
    const Layout layout = plan.tensors[i].layout;
    const auto& of_kind = values.try_emplace({dtype, layout}, device, dtype, layout, kMadeUpDeviation, stream);
    of_kind.first->second.fill(addresses_[i], bytes, stream);
  }
  driver().check(driver().stream_synchronize(stream), "making up weights");
}

}  // namespace tl::cuda
