"""Declares the inputs and outputs of the models in a Triton repository.

The names are those of Triton's TensorRT-LLM backend. Its ensemble and its model ``tensorrt_llm`` have two names for
some things, such as ``top_k`` and ``runtime_top_k``.
"""

from dataclasses import dataclass

ANY = -1  # an extent of any size


@dataclass(frozen=True)
class Tensor:
    """An input or output. ``dtype`` is Triton's name; ``dims`` are the extents after the first, which is always 1."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False


@dataclass(frozen=True)
class Option:
    """An optional input of the ensemble, which is passed to ``tensorrt_llm`` under the name ``inner``."""

    name: str
    dtype: str
    inner: str
    dims: tuple[int, ...] = (1,)

    @property
    def outer_tensor(self) -> Tensor:
        """The ensemble's input."""
        return Tensor(self.name, self.dtype, self.dims, optional=True)

    @property
    def inner_tensor(self) -> Tensor:
        """The input of ``tensorrt_llm``."""
        return Tensor(self.inner, self.dtype, self.dims, optional=True)


def _same(name: str, dtype: str, dims: tuple[int, ...] = (1,)) -> Option:
    return Option(name, dtype, name, dims)


OPTIONS = (
    Option("max_tokens", "INT32", "request_output_len"),
    Option("min_tokens", "INT32", "min_length"),
    Option("top_k", "INT32", "runtime_top_k"),
    Option("top_p", "FP32", "runtime_top_p"),
    _same("temperature", "FP32"),
    _same("repetition_penalty", "FP32"),
    _same("presence_penalty", "FP32"),
    _same("frequency_penalty", "FP32"),
    _same("random_seed", "UINT64"),
    _same("end_id", "INT32"),
    _same("pad_id", "INT32"),
    _same("stop_words", "STRING", (ANY,)),
    _same("bad_words", "STRING", (ANY,)),
    _same("beam_width", "INT32"),
    Option("length_penalty", "FP32", "len_penalty"),
    _same("early_stopping", "BOOL"),
    _same("num_return_sequences", "INT32"),
    Option("stream", "BOOL", "streaming"),
    _same("exclude_input_in_output", "BOOL"),
    _same("return_log_probs", "BOOL"),
    _same("return_context_logits", "BOOL"),
    _same("return_generation_logits", "BOOL"),
    _same("guided_decoding_guide_type", "STRING"),
    _same("guided_decoding_guide", "STRING"),
)

PROMPT = Tensor("text_input", "STRING")

# Words as token ids, for clients of tensorrt_llm itself: token ids in the first row, in the second the end of each
# word, then -1.
STOP_WORD_IDS = Tensor("stop_words_list", "INT32", (2, ANY), optional=True)
BAD_WORD_IDS = Tensor("bad_words_list", "INT32", (2, ANY), optional=True)

INPUT_IDS = Tensor("input_ids", "INT32", (ANY,))
INPUT_LENGTHS = Tensor("input_lengths", "INT32")

# The outputs of each sequence in a response. Logits and log probabilities are empty unless they are requested.
OUTPUT_IDS = Tensor("output_ids", "INT32", (ANY, ANY))
PROMPT_IDS = Tensor("prompt_ids", "INT32", (ANY,))  # the prompt's part of output_ids, or empty
GENERATED_TEXT = Tensor("generated_text", "STRING", (ANY,))
OUTPUTS = (
    OUTPUT_IDS,
    Tensor("sequence_length", "INT32", (ANY,)),
    Tensor("cum_log_probs", "FP32", (ANY,)),
    Tensor("output_log_probs", "FP32", (ANY, ANY)),
    Tensor("context_logits", "FP32", (ANY, ANY)),
    Tensor("generation_logits", "FP32", (ANY, ANY, ANY)),
    Tensor("finish_reason", "STRING", (ANY,)),
)
TEXT_OUTPUT = Tensor("text_output", "STRING", (ANY,))

# The tensors of preprocessing and postprocessing have names in capitals.
QUERY = Tensor("QUERY", "STRING")
INPUT_ID = Tensor("INPUT_ID", "INT32", (ANY,))
REQUEST_INPUT_LEN = Tensor("REQUEST_INPUT_LEN", "INT32")
POST_PROMPT = Tensor("PROMPT_IDS", "INT32", (ANY,))
POST_TEXT = Tensor("GENERATED_TEXT", "STRING", (ANY,))
OUTPUT = Tensor("OUTPUT", "STRING", (ANY,))
