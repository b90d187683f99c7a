#include "bindings/network.h"

#include <utility>

#include "bindings/python_calls.h"

namespace nb = nanobind;

namespace tl {
namespace {

class PythonNetwork final : public Network {
 public:
  explicit PythonNetwork(nb::object object) : object_(std::move(object)), memory_(memory_use(object_.attr("memory"))) {}
  ~PythonNetwork() override {
    const nb::gil_scoped_acquire acquire;
    object_.reset();
  }

  void step(const NetworkStep& step, const LogitsTable& logits) override {
    call_python([&] {
      const std::size_t rows = step.past_lens.size();
      object_.attr("step")(step.generation, step.first_row, array_over(step.past_lens),
                           array_over(step.token_ids.data(), rows, step.token_ids.size() / rows),
                           array_over(step.logits_indices), array_over(step.outputs),
                           array_over(logits.values, logits.rows, logits.vocab_size));
    });
  }
  void copy_row(std::int64_t src, std::int64_t dst) override {
    call_python([&] { object_.attr("copy_row")(src, dst); });
  }
  void save_row(std::int64_t row, std::span<std::byte> out) override {
    auto* const data = reinterpret_cast<std::uint8_t*>(out.data());
    call_python([&] { object_.attr("save_row")(row, array_over(data, out.size())); });
  }
  void load_row(std::int64_t row, std::span<const std::byte> bytes) override {
    const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    call_python([&] { object_.attr("load_row")(row, array_over(data, bytes.size())); });
  }
  MemoryUse memory() const override { return memory_; }

 private:
  nb::object object_;
  MemoryUse memory_;
};

}  // namespace

std::unique_ptr<Network> borrow_network(const std::optional<PyNetwork>& object) {
  return object ? std::make_unique<PythonNetwork>(*object) : nullptr;
}

}  // namespace tl
