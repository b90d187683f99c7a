// Bindings of functions that read the bodies of HTTP requests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/buffer_view.h"
#include "text/byte_counts.h"
#include "text/prompt_field.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Ids = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
using Prompt = std::variant<Ids, std::pair<std::size_t, std::size_t>>;  // token ids, or the range of a text
using Found = std::tuple<std::size_t, std::size_t, bool, std::size_t, std::vector<Prompt>>;

// Moves the ids into an array.
Ids array_of(std::vector<std::int64_t>&& ids) {
  auto* kept = new std::vector<std::int64_t>(std::move(ids));
  const nb::capsule owner(kept, [](void* owned) noexcept { delete static_cast<std::vector<std::int64_t>*>(owned); });
  return {kept->data(), {kept->size()}, owner};
}

std::optional<Found> find_in_body(const Buffer& body, std::string_view name, std::size_t most) {
  const BufferView view(body);
  std::optional<PromptField> field;
  {
    const nb::gil_scoped_release release;
    field = find_prompts(view.text(), name, most);
  }
  if (!field) return std::nullopt;
  std::vector<Prompt> prompts;
  prompts.reserve(field->prompts.size());
  for (FoundPrompt& prompt : field->prompts) {
    if (prompt.is_text) {
      prompts.emplace_back(std::pair(prompt.begin, prompt.end));
    } else {
      prompts.emplace_back(array_of(std::move(prompt.ids)));
    }
  }
  return Found(field->begin, field->end, field->is_list, field->num_prompts, std::move(prompts));
}

nb::typed<nb::tuple, std::size_t, nb::ellipsis> count_in(const Buffer& data, std::string_view bytes) {
  const BufferView view(data);
  nb::list counts;
  for (const char byte : bytes) counts.append(count_byte(view.text(), byte));
  return nb::tuple(counts);
}

}  // namespace

void bind_requests(nb::module_& module) {
  module.def("find_prompts", &find_in_body, nb::arg("body"), nb::arg("name"), nb::arg("most"), R"(
      Find the prompts in the field ``name`` of the JSON object ``body``; at most the first ``most`` are returned.

      Returns (begin, end, is_list, num_prompts, prompts): the field's value is ``body[begin:end]``, either one prompt
      or a list of ``num_prompts``. A prompt is an array of token ids, int64[len], or for a text the range (begin,
      end) of its JSON in ``body``. None if ``body`` is not an object with exactly one such field, or its value is
      neither a prompt nor a list of prompts. Other JSON in ``body`` and the contents of strings are not checked. The
      GIL is released.)");
  module.def("count_bytes", &count_in, nb::arg("data"), nb::arg("characters"),
             "The number of times that ``data`` contains each of the ASCII ``characters``.");
}

}  // namespace tl
