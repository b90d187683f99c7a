"""Defines the manifest of an engine: model, limits, cache geometry, memory, and all other facts beside the plan.

As in ``plan.py`` the records are the schema. The C++ runtime skips fields that are ``python_only``, which people and
Python read.
"""

from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Annotated, TypeAlias

from trtllm_lite.common.vocabulary import (
    ALLREDUCE_STRATEGIES,
    CACHE_KINDS,
    MAX_BYTES,
    MAX_DRAFT_LEN,
    MAX_EXTENT,
    MAX_PP_SIZE,
    MAX_TP_SIZE,
    STATE,
    TOKEN_ROWS,
    num_bytes,
)
from trtllm_lite.engine.format import engine_file
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.plan import Bytes, Count, DTypeName, Name
from trtllm_lite.engine.records import Native, OneOf, Range, from_json, json_text, parse_json
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import ModelConfig
from trtllm_lite.network.module_rows import ModuleRows

_PYTHON_ONLY = {"python_only": True}
_Amount: TypeAlias = Annotated[int, Range(0, MAX_EXTENT - 1)]


@dataclass(frozen=True)
class Target:
    """The device that an engine runs on: ``kind`` is ``cpu``, ``cuda`` (this project's kernels) or ``tensorrt``.

    ``archs`` are the architectures that its kernels are compiled for (``sm_90a``; none for the CPU).
    """

    kind: Annotated[str, OneOf("TargetKind", ("cpu", "cuda", "tensorrt"))]
    archs: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Upper bounds that the plan was made for, in sequences and tokens.

    ``max_draft_len``: draft tokens that a sequence may have in a step, in addition to its next token.
    ``max_beam_width``: beams of one search.
    """

    max_batch_size: Count
    max_input_len: Count
    max_seq_len: Count
    max_num_tokens: Count
    max_draft_len: Annotated[int, Range(0, MAX_DRAFT_LEN)]
    max_beam_width: Count = field(metadata=_PYTHON_ONLY)


@dataclass(frozen=True)
class Cache:
    """What layer number ``layer`` keeps of each token in the operand ``name`` of its operator: ``shape`` elements of
    ``dtype``.

    The shape of keys is [heads, head_dim]. Blocks may have another order of axes. A state is what a recurrent layer
    keeps of all tokens together.
    """

    layer: _Amount
    name: Name
    dtype: DTypeName
    shape: tuple[Count, ...]

    @property
    def tensor(self) -> str:
        """The name of the plan's tensor that holds it."""
        return f"{self.name}.{self.layer}"

    @property
    def num_bytes(self) -> int:
        """The bytes of a token, or of the whole state."""
        return num_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table, because they keep the same positions.

    ``kind``: one of ``CACHE_KINDS``. ``window``: a query at position p attends to positions > p - window, and earlier
    blocks are freed; 0 for none. ``caches`` are those of all layers, layer by layer: the i-th layer of the list has
    place i in every block of the group. An entry of a block table stands for ``blocks`` consecutive blocks: one, or as
    many as the states of all layers take.
    """

    name: Name
    kind: Annotated[str, OneOf("CacheKindName", CACHE_KINDS)]
    window: _Amount
    caches: tuple[Cache, ...]
    blocks: Count = 1

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the group's layers, by their places in a block."""
        return tuple(self.by_layer)

    @property
    def by_layer(self) -> dict[int, tuple[Cache, ...]]:
        """The caches of each layer, by its number."""
        return {layer: tuple(kept) for layer, kept in groupby(self.caches, attrgetter("layer"))}

    @property
    def num_bytes(self) -> int:
        """The bytes that all layers of the group keep of a token, without idle ones; of states, those of a sequence."""
        return sum(cache.num_bytes for cache in self.caches)

    @property
    def spec(self) -> tuple[str, int, int]:
        """What :class:`KvGeometry` needs to know of the group."""
        return self.kind, self.window, self.blocks


@dataclass(frozen=True)
class KvCache:
    """Geometry of the paged cache.

    A block holds what the layers of one cache group keep of ``tokens_per_block`` tokens. Each place of a block is as
    large as the largest layer, of any group, that lies there, so a block has ``bytes_per_block`` bytes in every group,
    and one pool of ``num_blocks`` serves all. (A group may have fewer layers than others, or none in a stage.) The
    states of recurrent layers take several blocks. An encoder, which caches nothing, has no groups and zero blocks.
    """

    tokens_per_block: Count
    num_blocks: _Amount
    bytes_per_block: Bytes
    groups: tuple[CacheGroup, ...]

    @property
    def num_layers(self) -> int:
        """The places of a block: as many as the largest cache group has layers, recurrent layers not counted."""
        return max((len(group.layers) for group in self.groups if group.kind != STATE), default=0)

    @property
    def token_bytes(self) -> int:
        """The bytes of a block for each of its tokens; 0 in a stage that keeps states alone."""
        return self.bytes_per_block // self.tokens_per_block if self.num_layers else 0

    @property
    def dtype(self) -> str:
        """The type of keys and values, or latents; several types are joined by ``and``, and an encoder has ``none``."""
        dtypes = dict.fromkeys(cache.dtype for group in self.groups if group.kind != STATE for cache in group.caches)
        return " and ".join(dtypes) or "none"

    @property
    def key_dtype(self) -> str:
        """The type of keys; ``none`` if the engine keeps no keys of attention heads."""
        found = (cache.dtype for group in self.groups for cache in group.caches if cache.name == "key_cache")
        return next(found, "none")

    @property
    def value_dtype(self) -> str:
        """The type of values, or of latents."""
        found = (cache.dtype for group in self.groups for cache in group.caches if cache.name == "value_cache")
        return next(found, self.dtype)

    @property
    def state_dtype(self) -> str:
        """The type of the matrices of recurrent layers; ``none`` if there are none."""
        found = (cache.dtype for group in self.groups for cache in group.caches if cache.name == "recurrent_state")
        return next(found, "none")

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of a sequence take in blocks; 0 without recurrent layers."""
        return sum(group.blocks for group in self.groups if group.kind == STATE) * self.bytes_per_block

    @property
    def spare_blocks(self) -> int:
        """Blocks that a GPU has besides, to which padding rows write: as many as an entry of any table stands for."""
        return max((group.blocks for group in self.groups), default=0)

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """The shape of the keys, or values, of a block of a TensorRT engine, which keeps a sequence in one piece."""
        heads, head_dim = self.groups[0].caches[0].shape
        return heads, self.tokens_per_block, head_dim


@dataclass(frozen=True)
class Memory:
    """Bytes by kind. ``workspace`` is everything but weights and KV cache; at run time each CPU thread adds scratch."""

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
    """The choice among several ways to compute ``site``, and its reason."""

    site: str
    choice: str
    reason: str


@dataclass(frozen=True)
class Accuracy:
    """The cost of quantization on the text ``dataset``, if the build measured it (:mod:`trtllm_lite.evaluation`).

    ``num_tokens`` tokens were predicted; the reference is the network before quantization; ``kl_divergence`` is in nats
    per token, ``top1_agreement`` a share of the tokens.
    """

    dataset: str
    num_tokens: int
    perplexity: float
    reference_perplexity: float
    kl_divergence: float
    top1_agreement: float


@dataclass(frozen=True)
class StateRounding:
    """The type ``dtype`` in which recurrent layers store matrices, and by how much types change results.

    ``changes``: of each type that the build measured, the change of a head's results over their size, in the worst head
    of the operators at ``sites``, at the end of ``num_tokens`` random tokens.
    """

    dtype: DTypeName
    changes: dict[str, float]
    sites: tuple[str, ...]
    num_tokens: _Amount


@dataclass(frozen=True)
class StateForms:
    """How far apart the forms of a recurrent ``operator`` are, if the build compared them.

    ``differences``: of each form, the largest difference from the results of one step with all ``num_tokens`` random
    tokens, over the largest result. ``sites``: the operators that were run, some of ``num_layers``.
    """

    operator: Name
    sites: tuple[str, ...]
    num_layers: Count
    num_tokens: Count
    differences: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest difference of all forms."""
        return max(self.differences.values(), default=0.0)


@dataclass(frozen=True)
class Lora:
    """The adapters that an engine takes: up to ``max_rank``, for ``projections`` in the order of their numbers in the
    plan.

    A projection is described as in adapters, by the module of the model and the rows of its output. Each adapter in use
    takes ``slot_bytes`` of a GPU's memory.
    """

    max_rank: int
    projections: tuple[ModuleRows, ...]
    slot_bytes: int


@dataclass(frozen=True)
class PluginUse:
    """``operators`` of the engine that another package has, called and numbered as pip does (``plugins/packages.py``).

    CPU engines call the kernels of that very version when they run; GPU engines contain them.
    """

    package: Name
    version: Name
    operators: tuple[Name, ...]


@dataclass(frozen=True)
class RankMapping:
    """The part of a model that an engine computes.

    Each of ``pp_size`` stages has some of the layers, which are divided among its ``tp_size`` ranks. Ranks are numbered
    stage by stage. In mixtures of experts each of ``moe_ep_size`` groups of neighbouring ranks has
    some of the experts; the number of the group is the EP rank of its ranks.
    """

    tp_size: Annotated[int, Range(1, MAX_TP_SIZE)] = 1
    rank: Annotated[int, Range(0, MAX_TP_SIZE * MAX_PP_SIZE - 1)] = 0
    pp_size: Annotated[int, Range(1, MAX_PP_SIZE)] = 1
    moe_ep_size: Annotated[int, Range(1, MAX_TP_SIZE)] = 1

    @property
    def divided(self) -> dict[str, int]:
        """The sizes by which a model is divided among devices, by name."""
        sizes = {"tp_size": self.tp_size, "pp_size": self.pp_size, "moe_ep_size": self.moe_ep_size}
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def num_ranks(self) -> int:
        """The number of ranks of all stages."""
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
    """The manifest; ``files`` maps each file beside the engine to the CRC-32C of its bytes in hexadecimal.

    ``num_parameters`` counts the elements of the checkpoint's weights, each tensor once. ``qformat`` is the format of
    the weights of linear layers. The weights of a ``stripped`` engine are not in its file: the runtime makes random
    ones, for benchmarks. ``expansions`` are weights that the engine has in 16 bits, because its kernels do not read
    them as the checkpoint stores them. ``deterministic``: the results of a request depend on the request alone, bit for
    bit. ``lora`` is set if requests may have adapters. ``allreduce_strategy``: the ranks of a GPU engine exchange data
    by kernels that access peer memory (``AUTO``), or by the library NCCL. ``state_rounding`` and ``state_forms`` are
    of engines with recurrent layers. ``plugins`` are the packages whose operators the engine has.

    ``modules`` says what the engine is, and what it takes from other engines and makes for them. An engine has one.
    """

    producer: str = field(metadata=_PYTHON_ONLY)
    target: Target
    model: Annotated[ModelConfig, Native("ModelFacts", "read_model")]
    modules: tuple[Module, ...]
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
    qformat: str = field(default="full_prec", metadata=_PYTHON_ONLY)
    tactics: tuple[Tactic, ...] = field(default=(), metadata=_PYTHON_ONLY)
    expansions: tuple[Tactic, ...] = field(default=(), metadata=_PYTHON_ONLY)
    accuracy: Accuracy | None = field(default=None, metadata=_PYTHON_ONLY)
    deterministic: bool = field(default=False, metadata=_PYTHON_ONLY)
    lora: Lora | None = field(default=None, metadata=_PYTHON_ONLY)
    state_rounding: StateRounding | None = field(default=None, metadata=_PYTHON_ONLY)
    state_forms: tuple[StateForms, ...] = field(default=(), metadata=_PYTHON_ONLY)
    plugins: tuple[PluginUse, ...] = ()

    @property
    def divided(self) -> dict[str, int | str]:
        """The sizes by which a model is divided, by name, and the strategy of exchange if it was chosen."""
        is_chosen = self.allreduce_strategy != ALLREDUCE_STRATEGIES[0]
        return {**self.mapping.divided, **({"allreduce_strategy": self.allreduce_strategy} if is_chosen else {})}

    @property
    def module(self) -> Module:
        """The only module. Raises EngineError if there are none or several."""
        if len(self.modules) != 1:
            raise EngineError(f"the engine has {len(self.modules)} modules, expected one: the file is damaged")
        return self.modules[0]

    @property
    def enable_prompt_embeds(self) -> bool:
        """Whether tokens of prompts may be rows of embeddings instead of ids."""
        return any(port.name == TOKEN_ROWS for port in self.module.inputs)

    @property
    def layers_block_bytes(self) -> int:
        """Bytes of a block of the KV cache without the rows of outputs, which lie in an array of their own."""
        return self.kv_cache.bytes_per_block - sum(port.block_bytes for port in self.module.kept)

    @property
    def engine_files(self) -> tuple[str, ...]:
        """The engine files of all ranks, which are in one directory."""
        return tuple(map(engine_file, range(self.mapping.num_ranks)))

    def to_json(self, indent: int | None = None) -> str:
        """JSON, identical for equal manifests; compact unless ``indent`` is given."""
        return json_text(self, indent)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Parse; a missing or unknown key or a wrong type is an EngineError."""
        return from_json(cls, parse_json(text, "manifest"), "manifest")
