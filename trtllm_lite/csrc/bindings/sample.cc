#include "sample.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "bindings/bindings.h"
#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

template <typename T>
void expect_rows(const char* name, const Column<T>& column, std::size_t rows) {
  if (column.size() == rows) return;
  throw ArgumentError(std::string(name) + ": expected one value for each of " + std::to_string(rows) + " rows, found " +
                      std::to_string(column.size()) + "; pass as many as logits has rows");
}

Tokens sample(const Logits& logits, const Column<float>& temperature, const Column<std::int32_t>& top_k,
              const Column<float>& top_p, const Column<float>& min_p, const Column<std::uint64_t>& seeds,
              const Column<std::uint64_t>& offsets) {
  const std::size_t rows = logits.shape(0);
  const std::size_t vocab = logits.shape(1);
  if (vocab == 0) throw ArgumentError("logits: expected at least one column, found none; pass the executor's logits");
  expect_rows("temperature", temperature, rows);
  expect_rows("top_k", top_k, rows);
  expect_rows("top_p", top_p, rows);
  expect_rows("min_p", min_p, rows);
  expect_rows("seeds", seeds, rows);
  expect_rows("offsets", offsets, rows);
  auto tokens = std::make_unique<std::int32_t[]>(rows);
  {
    nb::gil_scoped_release release;
    RowSampler sampler;
    for (std::size_t row = 0; row < rows; ++row) {
      const SampleParams params{temperature.data()[row], top_k.data()[row], top_p.data()[row],
                                min_p.data()[row],       seeds.data()[row], offsets.data()[row]};
      const auto number = static_cast<std::int64_t>(row);
      check_sample_params(params, number);
      tokens[row] = sampler.sample({logits.data() + row * vocab, vocab}, params, number);
    }
  }
  std::int32_t* data = tokens.release();
  const nb::capsule owner(data,
                          [](void* p) noexcept { std::unique_ptr<std::int32_t[]>(static_cast<std::int32_t*>(p)); });
  return Tokens(data, {rows}, owner);
}

}  // namespace

void bind_sample(nb::module_& module) {
  module.def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
             nb::arg("top_k").noconvert(), nb::arg("top_p").noconvert(), nb::arg("min_p").noconvert(),
             nb::arg("seeds").noconvert(), nb::arg("offsets").noconvert());
}

}  // namespace tl
