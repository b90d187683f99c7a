"""Maps a source to a network: finds the family, and checks config, tensors and types before anything is written."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from trtllm_lite import __version__
from trtllm_lite.common.files import PRODUCER_PREFIX, is_there, reading_model
from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.vocabulary import ATTENTION, AUTO, AUTO_16_BITS, FLOAT32, MAX_BYTES, PLAIN_DTYPES
from trtllm_lite.convert.family import Family, architectures_of, find_family
from trtllm_lite.convert.features import with_embedding, with_features, with_last_state
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fitting import (
    check_num_layers,
    check_types,
    compare_tensors,
    informative,
    misnamed_kinds,
    named_for,
)
from trtllm_lite.convert.matching import Mismatch
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.nearest import nearest_fit, unsupported
from trtllm_lite.convert.sources.hugging_face import download, open_directory
from trtllm_lite.convert.sources.pins import check_files
from trtllm_lite.convert.sources.sentence_transformers import MODULES_FILE
from trtllm_lite.convert.sources.source import Embeddings, Source
from trtllm_lite.convert.sources.source_tensors import ROUTERS
from trtllm_lite.convert.tower import tower_of
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.network.contract import layer_kinds
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.dtypes import ONNX
from trtllm_lite.network.encoder import Encoder
from trtllm_lite.network.graph import QFORMAT, Network
from trtllm_lite.network.model import Model, network_of
from trtllm_lite.network.vision import VisionTower


@dataclass(frozen=True)
class MappedModel:
    """A source whose tensors all have a place in ``network``; ``dtype`` is the storage type of matrices.

    ``quantization`` describes, for people, how quantized matrices are stored.
    """

    source: Source
    architecture: str
    family: Family
    model: Model
    network: Network
    dtype: str
    quantization: str

    def bind(self, tensors: Mapping[str, ir.TensorProtocol]) -> ir.Model:
        """Return the network with a tensor for every weight, and with a note of how it is quantized."""
        model = self.network.bind(tensors, PRODUCER_PREFIX, __version__)
        if self.quantization:
            model.metadata_props[QFORMAT] = self.quantization
        return model


def find_model(model_dir: str, revision: str | None = None) -> Path:
    """Return the directory or GGUF file of a model; if nothing of that name exists, download the model from the hub.

    ``revision`` is a commit, branch or tag of the hub. Raises ConvertError, also if a revision is given for a local
    model.
    """
    path = Path(model_dir)
    is_local = bool(model_dir) and is_there(path)
    if revision is not None and is_local:
        raise ConvertError(
            f"revision {shown(revision)} is given, and {path} is here and not on the hub: leave revision out, or pass "
            "the sha256 of its files"
        )
    if is_local:
        if not path.is_dir() and not path.is_file():
            raise ConvertError(f"expected --model_dir to be a directory or a file, but {path} is neither: check it")
        return path
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model_dir):
        return download(model_dir, revision)
    raise ConvertError(
        f"expected a Hugging Face directory, a GGUF file or a hub id like OWNER/NAME, but {shown(model_dir)} does not "
        "exist: check the path, which is relative to the working directory"
    )


def open_source(
    model_dir: str,
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
    ignored: IgnoredKeys | None = None,
) -> Source:
    """Open a Hugging Face directory, a GGUF file or, if nothing of that name exists, a model from the hub.

    ``revision`` is a commit, branch or tag on the hub, and ``sha256`` has checksums of files. ``ignored`` keys of files
    beside config.json and generation_config.json are not read. Raises ConvertError.
    """
    with reading_model(model_dir):
        path = find_model(model_dir, revision)
        check_files(path, sha256 or {})
        return _open_source(path, ignored or IgnoredKeys())


def _open_source(path: Path, ignored: IgnoredKeys) -> Source:
    if path.is_dir():
        _refuse_own_output(path)
        return open_directory(path, ignored)
    with open_foreign(path, MAX_BYTES) as file:
        if file.read(4) != b"GGUF":
            raise ConvertError(f"expected {path} to be a directory or a GGUF file, found another kind of file")
    from trtllm_lite.convert.gguf.file import open_gguf  # imports the package gguf, which no other source needs

    return open_gguf(path, ignored)


def _refuse_own_output(path: Path) -> None:
    """Raise ConvertError for a checkpoint or engine of this project, whose config.json is not that of a model."""
    own = {
        NETWORK_FILE: ("a checkpoint", "build --checkpoint_dir"),
        "rank0.engine": ("an engine", "generate --engine_dir"),
    }
    for name, (kind, command) in own.items():
        if (path / name).is_file():
            raise ConvertError(
                f"expected --model_dir to be a model, but {path} is {kind} already: pass it to "
                f"`trtllm-lite {command} {shlex.quote(str(path))}`"
            )


@dataclass(frozen=True)
class Partners:
    """Models that a network is made with: the ``head`` that drafts for it, or the ``target`` of such a head.

    For a model with its own drafting layer (MTP), both are the model itself.
    """

    head: Source | None = None
    target: Source | None = None


NO_PARTNERS = Partners()


def map_model(source: Source, dtype: str, dequantize: bool = False, partners: Partners = NO_PARTNERS) -> MappedModel:
    """Map ``source`` to a network; one ConvertError lists all problems of its config, or else of its tensors.

    Matrices that the source stores in blocks stay in blocks, unless ``dequantize`` expands them during conversion.
    """
    architecture, family, model = read_model(source)
    chosen = _choose_dtype(source, family, dtype)
    if partners.target is not None and family.predictor is not None:
        family = family.predictor
        model = _read(source, family)
    check_num_layers(source, model)
    source, model = _with_partners(named_for(family, source), family, model, partners)
    check_types(source, informative(source, family, model))
    blocks, cache = ({}, {}) if dequantize else (source.blocks, source.cache)
    if family.drafts:
        cache = {}  # whose scales are those of the model's layers
    network = network_of(model, ONNX[chosen], blocks, cache)
    attentions = {number for number, kind in layer_kinds(network.graph) if kind == ATTENTION}
    if cache and cache.keys() != attentions:
        raise ConvertError(
            f"{source.description} has scales of the KV caches of the layers {shown(sorted(cache))}, and its layers "
            f"with such caches are {shown(sorted(attentions))}: download it again"
        )
    mismatch = compare_tensors(source, family, model, network)
    if mismatch.count:
        hint = "" if family.drafts else _hint(source, mismatch)
        raise ConvertError(
            f"the tensors of {source.description} are not those of a {family.name} model with its config:\n  "
            f"{mismatch.report()}{hint}"
        )
    left = ", weights only for experts" if network.leaves_inputs else ""
    quantization = "" if dequantize else f"{source.quantization}{left}"
    return MappedModel(source, architecture, family, model, network, chosen, quantization)


@dataclass(frozen=True)
class MappedTower:
    """The vision tower of a model, and the file that says how the model's images are preprocessed."""

    mapped: MappedModel
    processor: str


def map_tower(source: Source, dtype: str, dequantize: bool) -> MappedTower | None:
    """Map the vision tower of the whole model that ``source`` is the text part of; None if it has none that is known.

    Raises ConvertError.
    """
    found = tower_of(source)
    if found is None:
        return None
    tower, part = found
    family, model = tower.family, _read(part, tower.family)
    check_types(part, informative(part, family, model))
    network = network_of(model, ONNX[dtype], {} if dequantize else part.blocks)
    mismatch = compare_tensors(part, family, model, network)
    if mismatch.count:
        raise ConvertError(
            f"the tensors of the vision tower of {part.description} are not those of a {family.name} with its config; "
            f"--text_only leaves the tower out:\n  {mismatch.report()}"
        )
    assert source.whole is not None
    mapped = MappedModel(part, family.name, family, model, network, dtype, part.quantization)
    assert isinstance(model, VisionTower)
    return MappedTower(mapped, part.image_settings().to_json(source.whole.config, model.class_tokens))


def _hint(source: Source, mismatch: Mismatch) -> str:
    """What may be wrong with a source whose tensors are not those of its family; empty if nothing is known."""
    other, kinds = nearest_fit(source), misnamed_kinds(source, mismatch)
    hint = f"\n  {kinds}" if kinds else ""
    if other is not None and other.mismatch.count < mismatch.count:
        hint += f"\n  nearest family: {other.family.name} ({other.mismatch.count} tensors differ)"
    return hint


def _with_partners(source: Source, family: Family, model: Model, partners: Partners) -> tuple[Source, Model]:
    """Source and model with the tensors of ``partners``. Raises ConvertError for a model that has no partners."""
    if partners == NO_PARTNERS:
        return source, model
    return _with_drafts(source, family, _decoder(model, family), partners)


def _decoder(model: Model, family: Family) -> Decoder:
    if isinstance(model, Decoder):
        return model
    raise ConvertError(
        f"expected --draft_model_dir and --target_model_dir with decoders, found one with the encoder {family.name}: "
        "leave out that option"
    )


def _with_drafts(source: Source, family: Family, decoder: Decoder, partners: Partners) -> tuple[Source, Decoder]:
    if partners.head is not None:
        if decoder.reads_features:
            raise ConvertError(
                "expected --draft_model_dir with a model, found it with a head: leave out --draft_model_dir"
            )
        _, head_family = _find_family(partners.head)
        if head_family.predictor is None:
            source, decoder = with_features(source, decoder, partners.head)
        else:
            predictor = _decoder(_read(partners.head, head_family.predictor), head_family)
            decoder = with_last_state(decoder, predictor, partners.head)
    if partners.target is not None:
        if not decoder.reads_features:
            raise ConvertError(
                "expected --target_model_dir with a head, or with a model whose own layer drafts (MTP), found it with "
                f"a model of the family {family.name}: leave out --target_model_dir"
            )
        _, target_family, _ = read_model(partners.target)
        source = with_embedding(source, family, named_for(target_family, partners.target), target_family)
    return source, decoder


def read_model(source: Source) -> tuple[str, Family, Model]:
    """Return architecture, family and model, by the config alone; one ConvertError lists all problems of the config."""
    architecture, family = _find_family(source)
    return architecture, family, _read(source, family)


def _read(source: Source, family: Family) -> Model:
    fields = ConfigFields(family.config_of(source.config, source.tensors))
    model = family.read_model(fields)
    fields.finish()
    if isinstance(model, VisionTower):
        return model
    if isinstance(model, Encoder):
        return model if model.head is not None else _with_embeddings(model, source.embeddings())
    if source.embeds:
        raise ConvertError(
            f"{source.description} embeds texts, as its {MODULES_FILE} says, and is a decoder ({family.name}), whose "
            f"engines only generate: pass an encoder, or remove {MODULES_FILE} to have it generate"
        )
    return model


def _with_embeddings(model: Encoder, said: Embeddings) -> Encoder:
    positions = model.sizes.max_position_embeddings
    longest = min(said.max_seq_length or positions, positions)
    return replace(model, pooling=said.pooling, sizes=replace(model.sizes, max_position_embeddings=longest))


def _find_family(source: Source) -> tuple[str, Family]:
    architectures = architectures_of(source.config, source.description)
    family = find_family(architectures)
    if family is None:
        raise unsupported(architectures, source)
    return next(name for name in architectures if name in family.architectures), family


def _choose_dtype(source: Source, family: Family, dtype: str) -> str:
    """The storage type: ``auto`` means that of the source's matrices, or float32 if they have several types.

    Routers of experts do not count, because they are float32 in every network, nor do tensors that are left out.
    AUTO_16_BITS is bfloat16 instead of float32.
    """
    if dtype in PLAIN_DTYPES:
        return dtype
    if dtype not in (AUTO, AUTO_16_BITS):
        expected = f"{AUTO}, {AUTO_16_BITS}, {', '.join(PLAIN_DTYPES)}"
        raise ConvertError(f"expected --dtype to be one of {expected}, found {shown(dtype)}")
    routers = tuple(family.tensor_names[role].rpartition("}")[2] for role in ROUTERS if role in family.tensor_names)
    found = {
        info.dtype
        for name, info in source.tensors.items()
        if len(info.shape) in (2, 3)
        and not family.ignores(name)
        and info.dtype in PLAIN_DTYPES
        and not name.removesuffix(".weight").endswith(routers)
    }
    own = found.pop() if len(found) == 1 else FLOAT32
    return "bfloat16" if (own, dtype) == (FLOAT32, AUTO_16_BITS) else own
