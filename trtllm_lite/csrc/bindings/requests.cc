// Bindings of functions that read the bodies of HTTP requests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/buffer_view.h"
#include "text/byte_counts.h"
#include "text/prompt_field.h"

namespace nb = nanobind;

namespace tl {
namespace {

// Moves the ids into an array.
nb::object array_of(std::vector<std::int64_t>&& ids) {
  auto* kept = new std::vector<std::int64_t>(std::move(ids));
  const nb::capsule owner(kept, [](void* owned) noexcept { delete static_cast<std::vector<std::int64_t>*>(owned); });
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::object find_in_body(nb::handle body, std::string_view name, std::size_t most) {
  const BufferView view(body);
  std::optional<PromptField> field;
  {
    const nb::gil_scoped_release release;
    field = find_prompts(view.text(), name, most);
  }
  if (!field) return nb::none();
  nb::list prompts;
  for (FoundPrompt& prompt : field->prompts) {
    prompts.append(prompt.is_text ? nb::make_tuple(prompt.begin, prompt.end) : array_of(std::move(prompt.ids)));
  }
  return nb::make_tuple(field->begin, field->end, field->is_list, field->num_prompts, prompts);
}

nb::tuple count_in(nb::handle data, std::string_view bytes) {
  const BufferView view(data);
  nb::list counts;
  for (const char byte : bytes) counts.append(count_byte(view.text(), byte));
  return nb::tuple(counts);
}

}  // namespace

void bind_requests(nb::module_& module) {
  module.def("find_prompts", &find_in_body, nb::arg("body"), nb::arg("name"), nb::arg("most"));
  module.def("count_bytes", &count_in, nb::arg("data"), nb::arg("characters"));
}

}  // namespace tl
