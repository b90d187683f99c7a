"""Finds or makes the engine that LLM's arguments ask for, loads it, and checks it against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.common.vocabulary import AUTO, AUTO_16_BITS, CPU, KV_CACHE_DTYPES
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine_cache import Conversion, Recipe
from trtllm_lite.errors import ArgumentError, EngineError, shown
from trtllm_lite.runtime.api.build_names import named_as_arguments
from trtllm_lite.runtime.api.engine_checks import check_divided, check_engine, check_ignored, check_lora, check_qformat
from trtllm_lite.runtime.session.device import check_num_threads
from trtllm_lite.runtime.session.embedder import Embedder
from trtllm_lite.runtime.session.limits import RunnerOptions
from trtllm_lite.runtime.session.opening import open_model
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.runtime.values import check_flag, check_positive, check_text
from trtllm_lite.workflows.cached_engine import chosen_target, open_cached


@dataclass(frozen=True, kw_only=True)
class WantedEngine:
    """The arguments of LLM about the engine. Raises ArgumentError for values of the wrong types."""

    model: str | Path
    target: str | None
    dtype: str
    ignore_config_keys: Sequence[str]
    dequantize: bool
    qformat: str | None
    group_size: int | None
    gather_context_logits: bool
    enable_prompt_embeds: bool
    deterministic: bool
    max_lora_rank: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    moe_expert_parallel_size: int | None

    def __post_init__(self) -> None:
        for name in ("gather_context_logits", "enable_prompt_embeds", "deterministic", "dequantize"):
            check_flag(name, getattr(self, name))
        check_text("model", self.model, "a directory, a GGUF file or a hub id such as org/model", str | Path)
        check_text("target", self.target, "auto, cpu or GPU architectures such as sm_90", str | None)
        check_text("dtype", self.dtype, "auto, float32, float16 or bfloat16", str)
        check_text("qformat", self.qformat, "a way to quantize, such as int8_wo", str | None)
        check_positive("group_size", self.group_size)
        keys: Any = self.ignore_config_keys
        if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
            raise ArgumentError(f"ignore_config_keys is {shown(keys)}: expected a list of keys of the model's files")

    def open(self, options: RunnerOptions) -> tuple[Path, Session | Embedder]:
        """The engine's directory, and the loaded engine: ``model`` itself, or an engine that is made from it once.

        Raises ArgumentError if the engine differs from the arguments, and the errors of making and loading it.
        """
        if _is_engine(Path(self.model)):
            directory, opened = Path(self.model), open_model(self.model, 0, options)
        else:
            with named_as_arguments():
                target = chosen_target(str(self.model), self.target)
                check_num_threads(options.num_threads, on_gpu=target.names != (CPU,))
                recipe = self._recipe(options, ",".join(target.names), target.device_memory)
                directory, opened = open_cached(
                    str(self.model), recipe, lambda path: open_model(path, 0, options), str(target)
                )
        self._check(opened.manifest)
        return directory, opened

    def _recipe(self, options: RunnerOptions, target: str, device_memory: int | None) -> Recipe:
        """How the engine is made, for the limits that it will run with."""
        speculation = options.speculation
        limits = {
            "max_batch_size": options.max_batch_size,
            "max_input_len": options.max_input_len,
            "max_seq_len": options.max_seq_len,
            "max_num_tokens": options.max_num_tokens,
            "max_draft_len": None if speculation is None else speculation.num_speculative_tokens,
            "max_lora_rank": self.max_lora_rank,
            "tp_size": self.tensor_parallel_size,
            "pp_size": self.pipeline_parallel_size,
            "moe_ep_size": self.moe_expert_parallel_size,
        }
        dtype = AUTO_16_BITS if self.dtype == AUTO and target != CPU else self.dtype
        conversion = Conversion(dtype, tuple(sorted(set(self.ignore_config_keys))), self.dequantize)
        flags = self._flags(self.deterministic and target != CPU)  # CPU engines are always deterministic
        cache = options.kv_cache
        quantization: dict[str, Any] = {"qformat": self.qformat, "group_size": self.group_size}
        if cache.dtype in KV_CACHE_DTYPES:
            quantization |= {"kv_cache_dtype": cache.dtype, "key_cache_dtype": cache.key_cache_dtype}
        given = {name: value for name, value in quantization.items() if value is not None}
        caches = {"kv_cache_dtype": cache.dtype, "key_cache_dtype": cache.key_cache_dtype}
        caches |= {} if cache.state_dtype is None else {"state_dtype": cache.state_dtype}
        return Recipe(target, conversion, limits, cache.tokens_per_block, flags, device_memory, given, **caches)

    def _flags(self, deterministic: bool) -> Mapping[str, bool]:
        return {
            "gather_context_logits": self.gather_context_logits,
            "enable_prompt_embeds": self.enable_prompt_embeds,
            "deterministic": deterministic,
        }

    def _check(self, manifest: Manifest) -> None:
        check_qformat(manifest, self.qformat)
        check_engine(manifest, self.target, self.dtype, self._flags(self.deterministic))
        check_ignored(manifest, self.ignore_config_keys)
        check_lora(manifest, self.max_lora_rank)
        check_divided("tensor_parallel_size", self.tensor_parallel_size, manifest.mapping.tp_size)
        check_divided("pipeline_parallel_size", self.pipeline_parallel_size, manifest.mapping.pp_size)
        check_divided("moe_expert_parallel_size", self.moe_expert_parallel_size, manifest.mapping.moe_ep_size)


def open_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer in the directory of a model or a checkpoint, read as in conversions, or of an engine.

    Raises ConvertError for damaged or unsupported files, EngineError if there is no tokenizer, or no package that
    conversions need.
    """
    if _is_engine(directory):
        return Tokenizer.from_files(directory)
    try:
        from trtllm_lite.convert.tokenizers.files import read_tokenizer
    except ModuleNotFoundError as error:
        raise EngineError(
            f"{directory} is no engine, and reading another tokenizer than an engine's needs {error.name}: pip install "
            "'trtllm_lite[build]', or pass the directory of an engine"
        ) from error
    text, settings = read_tokenizer(directory)
    if text is None:
        raise EngineError(f"{directory} holds no tokenizer.json: pass a directory that does")
    return Tokenizer.from_text(text, settings)


def _is_engine(path: Path) -> bool:
    try:
        return (path / ENGINE_FILE).is_file()
    except OSError:  # opening the path as a model raises the error
        return False
