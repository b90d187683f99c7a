"""Writes a checkpoint directory: the network, the weights tensor by tensor, config and tokenizer."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite import __version__
from trtllm_lite.common.files import PRODUCER_PREFIX, atomic_directory, require_space
from trtllm_lite.common.vocabulary import IMAGE_PROCESSOR_FILE, PROMPT_SETTING, VISION_TOWER
from trtllm_lite.convert.fields.generation import read_token_ids, sampling_defaults
from trtllm_lite.convert.mapping import MappedModel, Partners, map_model, map_tower, open_source
from trtllm_lite.convert.matching import fold
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.rounding import cast, overflows
from trtllm_lite.convert.sources.safetensors_file import Layout, TensorInfo, plan_layout, write_safetensors
from trtllm_lite.convert.sources.source import without_config_keys
from trtllm_lite.convert.tokenizers.files import TOKENIZER_FILE
from trtllm_lite.convert.tokenizers.settings import SETTINGS_FILE
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.config import NETWORK_FILE, WEIGHTS_FILE, ModelConfig
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.dtypes import DTYPE_NAMES, ONNX
from trtllm_lite.network.encoder import Encoder
from trtllm_lite.network.verifier import load_network
from trtllm_lite.network.weight_expression import Read

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Converted:
    """The written checkpoint: ``config`` is that of config.json.

    ``quantization`` describes how matrices are quantized, and is empty if none is. ``is_text_part`` is true if other
    parts of the source were left out, ``has_tower`` if its vision tower was converted as well.
    """

    config: ModelConfig
    quantization: str
    is_text_part: bool = False
    has_tower: bool = False

    def describe(self) -> str:
        """Describe how the matrices are stored, and of what parts of the model they are."""
        matrices = f"matrices in {self.config.dtype}"
        matrices = f"quantized as {self.quantization}, other {matrices}" if self.quantization else matrices
        matrices = f"{matrices}, with its vision tower" if self.has_tower else matrices
        return f"{matrices}, the text model alone" if self.is_text_part else matrices


def convert_checkpoint(
    model_dir: str,
    output_dir: Path,
    dtype: str = "auto",
    progress: Progress | None = None,
    ignore_config_keys: Collection[str] = (),
    dequantize: bool = False,
    *,
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
    draft_model_dir: str | None = None,
    target_model_dir: str | None = None,
    text_only: bool = False,
) -> Converted:
    """Convert a Hugging Face directory, a GGUF file or a hub id into the checkpoint directory ``output_dir``.

    ``dtype`` is the storage type of matrices: float32, float16, bfloat16, or auto for the source's own (float16 for
    quantized GGUF files), or auto_16_bits, which is auto, but bfloat16 instead of float32. Matrices that a GGUF file
    stores in blocks keep their blocks and scales, unless ``dequantize`` expands them to ``dtype``. Vectors are always
    float32. ``progress`` is called with (tensor name, bytes done, bytes in all) after each tensor.
    ``ignore_config_keys`` are taken out of the model's config and its other files (see :class:`IgnoredKeys`): keys that
    are not supported and that the user knows not to matter. ``revision`` is a commit, branch or tag of a model of the
    hub; with ``sha256``, checksums of files by name, other files are refused.

    With ``draft_model_dir``, an EAGLE-3 head, the network also makes the features that this head drafts from. When a
    head itself is converted, ``target_model_dir`` is its model, which supplies the embedding that the head lacks. For a
    model with its own drafting layer (MTP), both are the model itself: with ``draft_model_dir`` the network makes the
    features that the layer drafts from, with ``target_model_dir`` the network is that of the layer.

    Weights are computed one at a time. A source tensor that several weights are computed from is kept until the next
    such tensor is read. Besides the memory-mapped source, memory holds a few of the largest tensors, never the model.

    The vision tower of a multimodal model, if it is of a known family, becomes a checkpoint of its own in the directory
    ``vision_tower`` of ``output_dir``, unless ``text_only``.

    Raises ConvertError if the model cannot be mapped, OutputError if ``output_dir`` cannot be written; either way
    ``output_dir`` is as it was.
    """
    ignored = IgnoredKeys(ignore_config_keys)
    source = without_config_keys(open_source(model_dir, revision, sha256, ignored), ignored)
    others = (draft_model_dir, target_model_dir)
    partners = (
        None if other is None else source if other == model_dir else open_source(other, ignored=ignored)
        for other in others
    )
    mapped = map_model(source, dtype, dequantize, Partners(*partners))
    tower = None if text_only or mapped.family.drafts else map_tower(mapped.source, mapped.dtype, dequantize)
    config = describe_model(mapped)
    optional = (TOKENIZER_FILE, SETTINGS_FILE)
    with atomic_directory(Path(output_dir), "config.json", optional, parts=(VISION_TOWER,)) as directory:
        _write_module(directory, mapped, config, progress)
        _write_tokenizer(directory, mapped)
        if tower is not None:
            (directory / VISION_TOWER).mkdir()
            _write_module(directory / VISION_TOWER, tower.mapped, describe_model(tower.mapped), progress)
            (directory / VISION_TOWER / IMAGE_PROCESSOR_FILE).write_text(tower.processor, encoding="utf-8")
    has_tower = tower is not None
    return Converted(config, mapped.quantization, mapped.source.is_text_part and not has_tower, has_tower)


def _write_module(directory: Path, mapped: MappedModel, config: ModelConfig, progress: Progress | None) -> None:
    """Write the network of a module, its weights and its config."""
    infos = {weight.name: TensorInfo(DTYPE_NAMES[weight.dtype], weight.shape) for weight in mapped.network.weights}
    layout = plan_layout(infos)
    require_space(directory, layout.num_bytes)
    _write_weights(directory / WEIGHTS_FILE, mapped, infos, layout, progress)
    _write_network(directory, mapped, infos, layout)
    (directory / "config.json").write_text(config.to_json(), encoding="utf-8")
    load_network(directory)


def _write_weights(
    path: Path, mapped: MappedModel, infos: dict[str, TensorInfo], layout: Layout, progress: Progress | None
) -> None:
    overflowed: list[str] = []
    expressions = {weight.name: weight.expression for weight in mapped.network.weights}
    read = _reader(mapped)
    total = sum(info.num_bytes for info in infos.values())
    done = 0

    def tensor(name: str) -> NDArray:
        nonlocal done
        values = expressions[name].evaluate(read)
        stored = cast(values, infos[name].dtype)
        if overflows(values, stored):
            overflowed.append(name)
        done += infos[name].num_bytes
        if progress is not None:
            progress(name, done, total)
        return stored

    write_safetensors(path, layout, tensor)
    if overflowed:
        raise ConvertError(
            f"these tensors have values beyond float16's largest, 65504: {', '.join(fold(overflowed))}: "
            "use --dtype bfloat16 or float32"
        )


def _reader(mapped: MappedModel) -> Read:
    """A function that reads source tensors, and keeps the last one that several weights need, to expand it once."""
    users = Counter(
        name for weight in mapped.network.weights for name in {tensor.name for tensor in weight.expression.sources()}
    )
    keep = lru_cache(maxsize=1)(mapped.source.read)
    return lambda name: keep(name) if users[name] > 1 else mapped.source.read(name)


def _write_network(directory: Path, mapped: MappedModel, infos: dict[str, TensorInfo], layout: Layout) -> None:
    tensors = {
        name: ir.ExternalTensor(
            WEIGHTS_FILE,
            layout.offsets[name],
            info.num_bytes,
            ONNX[info.dtype],
            shape=ir.Shape(info.shape),
            name=name,
            base_dir=directory,
        )
        for name, info in infos.items()
    }
    ir.save(mapped.bind(tensors), directory / NETWORK_FILE)


def _write_tokenizer(directory: Path, mapped: MappedModel) -> None:
    """Write the tokenizer files; none for a model without a tokenizer."""
    source, settings = mapped.source, mapped.source.tokenizer_config
    if source.tokenizer is None:
        return
    embeds = isinstance(mapped.model, Encoder) and mapped.model.head is None
    if embeds and (prompt := source.embeddings().prompt):
        settings = {**settings, PROMPT_SETTING: prompt}
    (directory / TOKENIZER_FILE).write_text(source.tokenizer, encoding="utf-8")
    tokenizer_config = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    (directory / SETTINGS_FILE).write_text(tokenizer_config + "\n", encoding="utf-8")


def describe_model(mapped: MappedModel) -> ModelConfig:
    """Return the content of config.json: what building and running need of a model besides its network."""
    source, sizes = mapped.source, mapped.model.sizes
    ids = {**source.config, **{key: value for key, value in source.generation.items() if value is not None}}
    eos_token_ids, bos_ids, pad_ids = (
        read_token_ids(ids, f"{name}_token_id", sizes.vocab_size) for name in ("eos", "bos", "pad")
    )
    generation = source.generation if isinstance(mapped.model, Decoder) else {}  # others do not generate
    head = mapped.model.head if isinstance(mapped.model, Encoder) else None
    return ModelConfig(
        producer=f"{PRODUCER_PREFIX} {__version__}",
        architecture=mapped.architecture,
        family=mapped.family.name,
        dtype=mapped.dtype,
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.max_position_embeddings,
        eos_token_ids=eos_token_ids,
        bos_token_id=next(iter(bos_ids), None),
        pad_token_id=next(iter(pad_ids), None),
        generation=sampling_defaults(generation, eos_token_ids, sizes.vocab_size, source.description),
        tokenizer=source.tokenizer is not None,
        labels=[] if head is None else list(head.labels),
        problem_type="" if head is None else head.problem_type,
        second_text_offset=mapped.model.second_text_offset if isinstance(mapped.model, Encoder) else 0,
        ignored_config_keys=list(source.ignored_config_keys),
    )
