// Bindings of detokenization.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "text/text_pump.h"
#include "text/text_stream.h"

namespace nb = nanobind;

namespace tl {
namespace {

using PromptIds = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::str text_object(std::string_view text) {
  PyObject* object = PyUnicode_DecodeUTF8(text.data(), std::ssize(text), nullptr);
  if (object == nullptr) nb::raise_python_error();
  return nb::steal<nb::str>(object);
}

// Refers to memory of the Python string.
std::string_view view_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) nb::raise_python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::int32_t token_of(nb::handle token) {
  const long value = PyLong_AsLong(token.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return static_cast<std::int32_t>(value);
}

void init_token_bytes(TokenBytes* self, const nb::typed<nb::dict, nb::str, int>& vocabulary,
                      const nb::typed<nb::dict, int, nb::str>& added_tokens,
                      const std::vector<std::uint32_t>& special_ids,
                      const std::vector<std::tuple<std::string, std::string, std::string>>& replacements,
                      ByteSpelling bytes, std::string separator, std::string stripped, int max_stripped) {
  TokenBytes::Vocabulary tokens;
  tokens.reserve(vocabulary.size() + added_tokens.size());
  for (const auto [token, id] : vocabulary) tokens.emplace_back(nb::cast<std::uint32_t>(id), view_of(token));
  for (const auto [id, token] : added_tokens) tokens.emplace_back(nb::cast<std::uint32_t>(id), view_of(token));
  DecoderRules rules{.replacements = {},
                     .bytes = bytes,
                     .separator = std::move(separator),
                     .stripped = std::move(stripped),
                     .max_stripped = max_stripped};
  for (const auto& [pattern, content, content_of_first] : replacements) {
    rules.replacements.push_back({pattern, content, content_of_first});
  }
  const nb::gil_scoped_release release;  // the caller keeps the dictionaries whose strings `tokens` refers to
  new (self) TokenBytes(tokens, special_ids, std::move(rules));
}

void init_text_stream(TextStream* self, std::shared_ptr<TokenBytes> tokens, const PromptIds& prompt_ids,
                      std::shared_ptr<StopWords> stop_words, std::shared_ptr<Thoughts> thoughts, bool skips_special,
                      bool returns_text, int min_tokens, bool includes_stop) {
  const nb::gil_scoped_release release;
  new (self)
      TextStream(std::move(tokens), {prompt_ids.data(), prompt_ids.size()}, std::move(stop_words), std::move(thoughts),
                 {.skips_special = skips_special,
                  .returns_text = returns_text,
                  .min_tokens = min_tokens,
                  .includes_stop = includes_stop});
}

std::optional<std::variant<nb::str, nb::typed<nb::tuple, std::int32_t, nb::ellipsis>>> match_of(
    const TextStream& stream) {
  if (const std::string* text = stream.matched_text()) return text_object(*text);
  if (const StopWords::Tokens* tokens = stream.matched_sequence()) return nb::tuple(nb::cast(*tokens));
  return std::nullopt;
}

std::string text_of(TextStream& stream, const std::vector<std::int32_t>& tokens, bool ends) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) stream.push(tokens[i], ends && i + 1 == tokens.size(), text);
  stream.finish(text);
  return text;
}

std::string finish_stream(TextStream& stream) {
  std::string text;
  stream.finish(text);
  return text;
}

using Pieces = nb::typed<nb::list, nb::typed<nb::list, nb::str>>;

// Converts to a list of pieces for each run.
Pieces lists_of(const TextPieces& pieces) {
  Pieces all;
  std::size_t begin = 0, piece = 0;
  for (const std::size_t num_pieces : pieces.num_pieces) {
    nb::list own;
    for (std::size_t i = 0; i < num_pieces; ++i) {
      const std::size_t end = pieces.ends[piece++];
      own.append(text_object(std::string_view(pieces.text).substr(begin, end - begin)));
      begin = end;
    }
    all.append(std::move(own));
  }
  return all;
}

std::tuple<Pieces, std::vector<std::size_t>, std::vector<std::pair<std::size_t, std::string>>> push_all(
    TextPump& pump, const nb::typed<nb::list, TextStream>& streams,
    const nb::typed<nb::list, nb::typed<nb::list, int>>& tokens, const std::vector<std::size_t>& ending) {
  if (streams.size() != tokens.size()) {
    throw std::invalid_argument("push: expected as many streams as lists of tokens, found " +
                                std::to_string(streams.size()) + " and " + std::to_string(tokens.size()));
  }
  std::vector<TokenRunOf> runs;
  std::vector<std::int32_t> all_tokens;
  runs.reserve(streams.size());
  all_tokens.reserve(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const auto own = nb::cast<nb::list>(tokens[i]);
    for (const nb::handle token : own) all_tokens.push_back(token_of(token));
    runs.push_back({nb::cast<TextStream*>(streams[i]), own.size(), false});
  }
  for (const std::size_t run : ending) runs.at(run).ends = true;
  TextPieces pieces;
  {
    const nb::gil_scoped_release release;
    pieces = pump.push(runs, all_tokens, TokenGaps::Clock::now());
  }
  return {lists_of(pieces), pieces.stopped, pieces.failed};
}

std::pair<std::vector<std::uint64_t>, double> gaps_of(const TextPump& pump) {
  const TokenGaps gaps = pump.gaps();
  return {gaps.counts(), gaps.seconds()};
}

void bind_text_stream(nb::module_& module) {
  nb::class_<TextStream>(module, "TextStream",
                         "Turns the tokens of one sequence into pieces of text, none of which is ever taken back.")
      .def("__init__", &init_text_stream, nb::arg("tokens").none(), nb::arg("prompt_ids").noconvert(),
           nb::arg("stop_words"), nb::kw_only(), nb::arg("thoughts").none() = nb::none(),
           nb::arg("skips_special") = true, nb::arg("returns_text") = true, nb::arg("min_tokens") = 0,
           nb::arg("includes_stop") = false, R"(
               ``prompt_ids`` decide whether the text starts with a space; their own text is no part of a piece.

               Without ``tokens`` there is no text, and only stop sequences are found. With ``thoughts``, which need
               ``tokens``, stop words are found only in the answer after the thoughts. With ``skips_special`` special
               tokens print nothing. Without ``returns_text`` the text is only searched for stop words. A stop word
               that is complete before ``min_tokens`` tokens does not count. With ``includes_stop`` the text keeps its
               stop word.)")
      .def("finish", &finish_stream, nb::call_guard<nb::gil_scoped_release>(), R"(
          The text that was held back when generation ended inside a possible stop word or an incomplete character.)")
      .def("text_of", &text_of, nb::arg("tokens"), nb::kw_only(), nb::arg("ends"),
           nb::call_guard<nb::gil_scoped_release>(), R"(
               The text of tokens up to the end of the stream; ``ends``: the last token, such as an end token, ends
               it.)")
      .def_prop_ro("match", &match_of, "The stop word that has ended the text.");
}

void bind_text_pump(nb::module_& module) {
  nb::class_<TextPump>(module, "TextPump", R"(
      Makes the texts of many streams at once, and counts the gaps between the deliveries of each.)")
      .def(nb::init<std::vector<double>>(), nb::arg("gap_bounds"),
           "``gap_bounds`` are upper bounds of buckets in seconds, ascending.")
      .def("push", &push_all, nb::arg("streams"), nb::arg("tokens"), nb::arg("ending") = std::vector<std::size_t>(),
           R"(
               Add each list of ``tokens`` to the stream of the same index; one thread pushes to a stream at a time.

               ``ending`` are the indices of streams whose last token, such as an end token, ends the text. Returns
               for each stream a piece of text for every token, up to a stop word; the indices of streams that a stop
               word ended; and the indices of streams that failed, each with the reason, which have no pieces. The GIL
               is released.)")
      .def("gaps", &gaps_of, R"(
          Histogram of gaps between deliveries: counts by bucket, the last above all bounds, and their sum in seconds.

          A delivery is a call of :meth:`push` with tokens for a stream; the first delivery of a stream ends no gap.)");
}

}  // namespace

void bind_text(nb::module_& module) {
  nb::enum_<ByteSpelling>(module, "ByteSpelling", "How the tokens of a vocabulary spell bytes: see token_bytes.h.")
      .value("NONE", ByteSpelling::kNone)
      .value("ALPHABET", ByteSpelling::kAlphabet)
      .value("FALLBACK", ByteSpelling::kFallback);
  nb::class_<TokenBytes>(module, "TokenBytes",
                         "The text that each token of a tokenizer adds. Any number of streams may share it.")
      .def("__init__", &init_token_bytes, nb::arg("vocabulary"), nb::arg("added_tokens"), nb::arg("special_ids"),
           nb::kw_only(), nb::arg("replacements"), nb::arg("bytes"), nb::arg("separator"), nb::arg("stripped"),
           nb::arg("max_stripped"), R"(
               For an id in both, the text in ``added_tokens`` counts. token_bytes.h explains the keyword arguments.

               Raises EngineError for ids above 2**24 - 1, or texts of more than a gigabyte.)");
  nb::class_<StopWords>(module, "StopWords",
                        "The stop words of a request: texts, and sequences of token ids; none of them is empty.")
      .def(nb::init<std::vector<std::string>, std::vector<StopWords::Tokens>>(), nb::arg("texts"), nb::arg("sequences"),
           nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Thoughts>(module, "Thoughts", "Markers of the end of thoughts, after which answers begin (thoughts.h).")
      .def(nb::init<const std::vector<std::string>&, const std::vector<std::vector<std::string>>&>(), nb::arg("starts"),
           nb::arg("ends"), R"(
               Any of ``starts`` begins thoughts; without any, thoughts begin with the text.

               They end after one text from each entry of ``ends``, one after the other.)");
  bind_text_stream(module);
  bind_text_pump(module);
}

}  // namespace tl
