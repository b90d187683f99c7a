"""Defines ``config.json`` of a checkpoint: what building and running need besides the graph, for all families."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES
from trtllm_lite.errors import EngineError, shown

FORMAT_VERSION = 3

# Names of files beside config.json.
NETWORK_FILE = "network.onnx"
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in elements, ids in tokens.

    ``architecture`` is the source's Hugging Face class name, ``dtype`` the storage type of matrices; ``generation``
    holds the source's sampling defaults (temperature, top_k, …); ``tokenizer`` tells whether the checkpoint has a
    tokenizer, or only works with token ids. ``labels`` are the names of a classifier's scores, and ``problem_type``
    says what these mean (:mod:`~trtllm_lite.network.classification`); ``second_text_offset`` is added to the ids of a
    pair's second text (0: the model does not tell the two apart), and ``vocab_size`` counts these ids as well.
    ``ignored_config_keys`` are keys of the source's config that were left unread at the user's request. The graph alone
    describes the computation, so that a new family needs no new field.
    """

    producer: str
    architecture: str
    family: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    eos_token_ids: list[int]
    bos_token_id: int | None
    pad_token_id: int | None
    generation: dict[str, Any] = field(default_factory=dict)
    tokenizer: bool = False
    labels: list[str] = field(default_factory=list)
    problem_type: str = ""
    second_text_offset: int = 0
    ignored_config_keys: list[str] = field(default_factory=list)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Indented JSON, for files and people."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "ModelConfig":
        """Parse; EngineError if it is not JSON, of another version, or has unknown, missing or mistyped keys."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"expected config.json to be a JSON object, but: {error}") from error
        if not isinstance(raw, dict):
            raise EngineError(f"expected config.json to be a JSON object, found a {type(raw).__name__}")
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            raise EngineError(
                f"expected checkpoint format_version {FORMAT_VERSION}, found {shown(version)}: convert the model again "
                "with this version of trtllm_lite, or use the version that wrote it"
            )
        _check_keys(cls, raw)
        return cls(**raw)

    @classmethod
    def from_dir(cls, checkpoint_dir: Path) -> "ModelConfig":
        """Read ``checkpoint_dir/config.json``."""
        path = Path(checkpoint_dir) / "config.json"
        try:
            text = read_foreign(path, MAX_JSON_BYTES)
        except OSError as error:
            raise EngineError(
                f"expected a checkpoint directory with config.json, but cannot read {path} ({error.strerror}): "
                "pass the --output_dir of `trtllm-lite convert`"
            ) from error
        return cls.from_json(text)


def _check_keys(cls: type, raw: dict[str, Any]) -> None:
    hints = get_type_hints(cls)
    names = {entry.name for entry in fields(cls)}
    problems = [f"unknown key {shown(name)}" for name in sorted(set(raw) - names)]
    problems += [f"missing key {shown(name)}" for name in sorted(names - set(raw))]
    for name in sorted(names & set(raw)):
        if not _matches(raw[name], hints[name]):
            problems.append(f"{name} is {shown(raw[name])}, expected {hints[name]}")
    if problems:
        raise EngineError(f"config.json is not a trtllm_lite checkpoint's: {'; '.join(problems)}: convert again")


def _matches(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the annotated type; bool is not accepted as int."""
    if hint is Any:
        return True
    arguments = get_args(hint)
    origin = getattr(hint, "__origin__", None)
    if origin is list:
        return isinstance(value, list) and all(_matches(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if arguments:  # a union such as int | None
        return any(_matches(value, option) for option in arguments)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))
