"""The manifest of an engine: model, limits, cache geometry, memory, everything a runtime must know besides the plan.

As in ``plan.py`` the records are the schema. The C++ runtime skips fields that are ``python_only``: people and Python
read those.
"""

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from trtllm_lite.engine.format import engine_file
from trtllm_lite.engine.plan import Bytes, Count, DTypeName, Name
from trtllm_lite.engine.records import Native, OneOf, Range, from_json, json_text, parse_json
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.network.module_rows import ModuleRows
from trtllm_lite.vocabulary import ALLREDUCE_STRATEGIES, MAX_BYTES, MAX_DRAFT_LEN, MAX_EXTENT, MAX_PP_SIZE, MAX_TP_SIZE

_PYTHON_ONLY = {"python_only": True}
_Amount: TypeAlias = Annotated[int, Range(0, MAX_EXTENT - 1)]


@dataclass(frozen=True)
class Target:
    """What the engine runs on: ``kind`` is ``cpu``, ``cuda`` (this project's kernels) or ``tensorrt``.

    ``archs`` are the architectures that its kernels are compiled for (``sm_90a``; none for the CPU).
    """

    kind: Annotated[str, OneOf("TargetKind", ("cpu", "cuda", "tensorrt"))]
    archs: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Upper bounds that the plan was made for, in sequences and tokens.

    ``max_draft_len``: guessed tokens that a sequence may bring to a step beside the one that follows what is known.
    """

    max_batch_size: Count
    max_input_len: Count
    max_seq_len: Count
    max_num_tokens: Count
    max_draft_len: Annotated[int, Range(0, MAX_DRAFT_LEN)]


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table, because their attention keeps the same positions.

    ``window``: a query at position p attends positions > p - window, and blocks behind that are given back; 0 for none.
    ``layers`` are numbers of layers: the i-th one has place i of every block of the group.
    """

    name: Name
    window: _Amount
    layers: tuple[_Amount, ...]


@dataclass(frozen=True)
class KvCache:
    """Geometry of the paged cache.

    A block holds the keys and values of ``tokens_per_block`` tokens in the ``num_layers`` layers of one cache group (a
    group may have fewer, or in a stage none: the other places lie idle), so that a block is as large in every group,
    ``bytes_per_block``, and one pool of ``num_blocks`` serves all. An encoder, which caches nothing, has no groups, and
    neither blocks nor layers in them.
    """

    tokens_per_block: Count
    num_blocks: _Amount
    num_layers: _Amount
    num_kv_heads: _Amount
    head_dim: _Amount
    dtype: DTypeName
    bytes_per_block: Bytes
    groups: tuple[CacheGroup, ...]


@dataclass(frozen=True)
class Memory:
    """Bytes by kind. ``workspace`` is all but weights and KV cache; at run time each CPU thread adds its scratch."""

    weights: int
    kv_cache: int
    workspace: int


@dataclass(frozen=True)
class Fusion:
    """A decision of a builder pass: whether it fused the candidate at ``site``, and if not, why."""

    pass_name: str = field(metadata={"key": "pass"})
    site: str
    fused: bool
    reason: str


@dataclass(frozen=True)
class Tactic:
    """The chosen one of several ways to compute ``site``, and the reason."""

    site: str
    choice: str
    reason: str


@dataclass(frozen=True)
class Accuracy:
    """What quantization cost on the text ``dataset``, where the build measured it (:mod:`trtllm_lite.evaluation`).

    ``num_tokens`` were predicted; the reference is the network before it was quantized; ``kl_divergence`` is in nats
    per token, ``top1_agreement`` a share of the tokens.
    """

    dataset: str
    num_tokens: int
    perplexity: float
    reference_perplexity: float
    kl_divergence: float
    top1_agreement: float


@dataclass(frozen=True)
class Lora:
    """Which adapters an engine takes: up to ``max_rank``, of ``projections``, by their numbers in the plan.

    A projection is said as adapters know it, by the module of the model and the rows of its output. Each adapter that
    is in use takes ``slot_bytes`` of a GPU's memory.
    """

    max_rank: int
    projections: tuple[ModuleRows, ...]
    slot_bytes: int


@dataclass(frozen=True)
class RankMapping:
    """Which part of a model an engine is.

    Each of ``pp_size`` stages has some of the layers, which its ``tp_size`` ranks share out. Ranks are numbered stage
    by stage. Of mixtures of experts each of ``moe_ep_size`` runs of ranks has some of the experts.
    """

    tp_size: Annotated[int, Range(1, MAX_TP_SIZE)] = 1
    rank: Annotated[int, Range(0, MAX_TP_SIZE * MAX_PP_SIZE - 1)] = 0
    pp_size: Annotated[int, Range(1, MAX_PP_SIZE)] = 1
    moe_ep_size: Annotated[int, Range(1, MAX_TP_SIZE)] = 1

    @property
    def divided(self) -> dict[str, int]:
        """The sizes of what several devices share, by name."""
        sizes = {"tp_size": self.tp_size, "pp_size": self.pp_size, "moe_ep_size": self.moe_ep_size}
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def num_ranks(self) -> int:
        """Ranks of all stages."""
        return self.tp_size * self.pp_size

    @property
    def stage(self) -> int:
        """The number of the rank's stage."""
        return self.rank // self.tp_size

    @property
    def part(self) -> int:
        """The number of the rank in its stage."""
        return self.rank % self.tp_size

    @property
    def is_first(self) -> bool:
        """Whether the rank's stage reads tokens."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the rank's stage makes logits."""
        return self.stage == self.pp_size - 1


ONE_RANK = RankMapping()


@dataclass(frozen=True)
class Manifest:
    """``files`` maps each file beside the engine to the CRC-32C of its bytes in hexadecimal.

    ``num_parameters`` counts the elements of the checkpoint's weights, each tensor once. ``qformat`` says how the
    weights of linear layers are stored. The weights of a ``stripped`` engine are not in its file: the runtime makes
    random ones, for benchmarks. ``expansions`` are weights that the engine has in 16 bits, because its kernels do not
    read them as the checkpoint stores them. ``deterministic``: what a request gets depends on nothing but itself, bit
    for bit. ``lora`` is there if requests may have adapters. ``allreduce_strategy``: the ranks of a GPU engine meet by
    kernels that reach the others' memory (``AUTO``), or in the library NCCL.

    ``feature_size``: what the KV cache keeps of each token besides keys and values, in elements, for a head that drafts
    from it (EAGLE); 0 for nothing. An engine that is such a head ``borrows_features`` of the one that it drafts for.

    ``embedding_size``: the engine is an encoder, whose steps make no logits but a row of so many elements for each
    sequence; 0 for decoders.
    """

    producer: str = field(metadata=_PYTHON_ONLY)
    target: Target
    model: Annotated[ModelConfig, Native("ModelFacts", "read_model")]
    limits: Limits
    kv_cache: KvCache
    gather_context_logits: bool = field(metadata=_PYTHON_ONLY)
    files: dict[str, str] = field(metadata=_PYTHON_ONLY)
    memory: Memory = field(metadata=_PYTHON_ONLY)
    fusions: tuple[Fusion, ...] = field(metadata=_PYTHON_ONLY)
    num_parameters: Annotated[int, Range(0, MAX_BYTES)] = field(metadata=_PYTHON_ONLY)
    mapping: RankMapping = ONE_RANK
    allreduce_strategy: Annotated[str, OneOf("AllreduceStrategy", ALLREDUCE_STRATEGIES)] = ALLREDUCE_STRATEGIES[0]
    stripped: bool = False
    feature_size: _Amount = 0
    borrows_features: bool = False
    embedding_size: _Amount = 0
    qformat: str = field(default="full_prec", metadata=_PYTHON_ONLY)
    tactics: tuple[Tactic, ...] = field(default=(), metadata=_PYTHON_ONLY)
    expansions: tuple[Tactic, ...] = field(default=(), metadata=_PYTHON_ONLY)
    accuracy: Accuracy | None = field(default=None, metadata=_PYTHON_ONLY)
    deterministic: bool = field(default=False, metadata=_PYTHON_ONLY)
    lora: Lora | None = field(default=None, metadata=_PYTHON_ONLY)

    @property
    def divided(self) -> dict[str, int | str]:
        """What several devices share, by name, and how they meet if that was chosen."""
        is_chosen = self.allreduce_strategy != ALLREDUCE_STRATEGIES[0]
        return {**self.mapping.divided, **({"allreduce_strategy": self.allreduce_strategy} if is_chosen else {})}

    @property
    def engine_files(self) -> tuple[str, ...]:
        """The engines of all ranks, which lie in one directory."""
        return tuple(map(engine_file, range(self.mapping.num_ranks)))

    def to_json(self, indent: int | None = None) -> str:
        """JSON, identical for equal manifests; compact unless ``indent`` is given."""
        return json_text(self, indent)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Parse; a missing or unknown key or a wrong type is an EngineError."""
        return from_json(cls, parse_json(text, "manifest"), "manifest")
