"""The limits that an engine is built for, checked against each other and the model before any work is done."""

from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack

from trtllm_lite._core import KvGeometry
from trtllm_lite.common.vocabulary import (
    ALLREDUCE_STRATEGIES,
    MAX_CACHE_BLOCKS,
    MAX_DRAFT_LEN,
    MAX_EXTENT,
    MAX_PP_SIZE,
    MAX_STEP_SEQS,
    MAX_STEP_TOKENS,
    MAX_TP_SIZE,
    ON_CPU,
    DefaultLimits,
)
from trtllm_lite.engine.manifest import CacheGroup, Limits
from trtllm_lite.errors import BuildError, shown

BLOCK_SIZES = (16, 32, 64, 128)  # the powers of two that PagedAttention accepts
# A finished request keeps its slot until its last step has ended; a few more slots than the batch keep the batch full.
SPARE_SLOTS = 8
_SMALLEST_BATCH = 8  # a smaller batch saves hardly any memory
MAX_LORA_RANK = 512
LORA_RANK_MULTIPLE = 8
_LEAST = {"max_draft_len": 0, "max_lora_rank": 0}
_FLAGS = ("gather_context_logits", "deterministic", "enable_prompt_embeds")
_MOST = {"max_batch_size": MAX_STEP_SEQS, "max_num_tokens": MAX_STEP_TOKENS, "max_draft_len": MAX_DRAFT_LEN}
_MOST |= {"max_lora_rank": MAX_LORA_RANK, "tp_size": MAX_TP_SIZE, "pp_size": MAX_PP_SIZE}
_MOST["moe_ep_size"] = MAX_TP_SIZE
_OF_NETWORK = ("cache_groups", "groups_of_stages", "tokens_per_row")
_FROM_OTHERS = ("max_num_tokens", "max_beam_width")  # None: they follow from the other limits


class GivenLimits(TypedDict, total=False):
    """The limits that ``build_engine`` and ``plan_memory`` take as arguments; None selects the default."""

    max_batch_size: int | None
    max_input_len: int | None
    max_seq_len: int | None
    max_num_tokens: int | None
    tokens_per_block: int | None
    max_beam_width: int | None
    max_draft_len: int | None
    gather_context_logits: bool
    deterministic: bool
    enable_prompt_embeds: bool
    max_lora_rank: int | None
    tp_size: int | None
    pp_size: int | None
    moe_ep_size: int | None
    allreduce_strategy: str


@dataclass(frozen=True)
class BuildLimits:
    """Upper bounds of an engine, in sequences and tokens.

    ``max_num_tokens`` bounds the tokens of one step over all sequences (longer prompts run in chunks); None means
    max_batch_size * max_input_len, at most 2048, at least max_batch_size. ``max_beam_width`` bounds the beams of one
    search, each of which takes a place in the batch; None means max_batch_size. ``gather_context_logits`` makes room
    for the logits of every token of a step instead of one per sequence; ``max_draft_len`` is the maximum number of
    draft tokens per sequence, for whose logits there is room. With ``deterministic`` a sequence's results are bit for
    bit independent of the other sequences in its steps, of chunked prefill, and of the cached prefix. With
    ``enable_prompt_embeds`` tokens of prompts may be rows of embeddings instead of ids. ``cache_groups`` are set when
    the network is known; in a pipeline they are those of a stage, and ``groups_of_stages`` those of all. So are
    ``tokens_per_row``, the patches of each row that a vision tower makes, 0 of other networks.
    ``max_lora_rank``, a multiple of 8, makes room for adapters of up to that rank; 0 means none. Each of ``pp_size``
    stages has some of the layers; each of its ``tp_size`` devices has an engine with a part of every such layer. The
    devices of a stage form ``moe_ep_size`` groups, each with some of the experts; if there are as many groups as
    devices, each device has whole experts. ``allreduce_strategy`` says how GPUs of a stage exchange data: ``AUTO`` uses
    kernels that access peer memory, ``NCCL`` uses the library NCCL, which works without peer access.
    """

    max_batch_size: int = 8
    max_input_len: int = 1024
    max_seq_len: int = 2048
    max_num_tokens: int | None = None
    tokens_per_block: int = 32
    max_beam_width: int | None = None
    max_draft_len: int = 0
    gather_context_logits: bool = False
    deterministic: bool = False
    enable_prompt_embeds: bool = False
    max_lora_rank: int = 0
    tp_size: int = 1
    pp_size: int = 1
    moe_ep_size: int = 1
    allreduce_strategy: str = ALLREDUCE_STRATEGIES[0]
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup("full", "full", 0, ()),)
    tokens_per_row: int = 0
    groups_of_stages: tuple[tuple[CacheGroup, ...], ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _FLAGS:
                _require(isinstance(value, bool), f"{field.name} is {shown(value)}: expected True or False")
            elif field.name == "allreduce_strategy":
                expected = " or ".join(ALLREDUCE_STRATEGIES)
                _require(value in ALLREDUCE_STRATEGIES, f"{field.name} is {shown(value)}: expected {expected}")
            elif field.name not in _OF_NETWORK and (field.name not in _FROM_OTHERS or value is not None):
                _check_extent(field.name, value)
        _require(
            self.max_input_len <= self.max_seq_len,
            f"max_input_len is {self.max_input_len}, above max_seq_len {self.max_seq_len}: a sequence holds the "
            "prompt and the answer, so raise max_seq_len or lower max_input_len",
        )
        _require(
            self.num_tokens >= self.max_batch_size,
            f"max_num_tokens is {self.max_num_tokens}, below max_batch_size {self.max_batch_size}: a step of a full "
            f"batch has a token per sequence, so raise max_num_tokens to at least {self.max_batch_size}",
        )
        _require(
            self.beam_width <= self.max_batch_size,
            f"max_beam_width is {self.max_beam_width}, above max_batch_size {self.max_batch_size}: each beam of a "
            "search takes a place in the batch, so raise max_batch_size or lower max_beam_width",
        )
        most = self.max_batch_size * self.max_seq_len
        _require(
            self.num_tokens <= most,
            f"max_num_tokens is {self.max_num_tokens}, above max_batch_size * max_seq_len = {most}: no step holds that "
            f"many tokens, yet memory would be set aside for them, so lower max_num_tokens to at most {most}",
        )
        _require(
            self.tokens_per_block in BLOCK_SIZES,
            f"tokens_per_block is {self.tokens_per_block}: expected one of {', '.join(map(str, BLOCK_SIZES))}",
        )
        _require(
            self.max_lora_rank % LORA_RANK_MULTIPLE == 0,
            f"max_lora_rank is {self.max_lora_rank}: expected a multiple of {LORA_RANK_MULTIPLE}, such as "
            f"{-(-self.max_lora_rank // LORA_RANK_MULTIPLE) * LORA_RANK_MULTIPLE}; adapters may have any lower rank",
        )
        _require(
            self.tp_size % self.moe_ep_size == 0,
            f"moe_ep_size is {self.moe_ep_size}, by which tp_size ({self.tp_size}) cannot be divided: pass a --tp_size "
            "that is a multiple of moe_ep_size",
        )
        _require(
            self.num_blocks <= MAX_CACHE_BLOCKS,
            f"max_batch_size {self.max_batch_size} and max_seq_len {self.max_seq_len} take {self.num_blocks:,} blocks "
            f"of {self.tokens_per_block} tokens, above {MAX_CACHE_BLOCKS:,}, which no machine holds: lower one of them",
        )

    @classmethod
    def for_model(
        cls,
        max_position_embeddings: int,
        defaults: DefaultLimits = ON_CPU,
        *,
        whole_prompts: bool = False,
        **given: Unpack[GivenLimits],
    ) -> "BuildLimits":
        """The limits of an engine for a model of ``max_position_embeddings`` positions.

        A limit of None takes the default, or less if the model or the given limits need that. With ``whole_prompts`` a
        step holds the longest prompt. Raises BuildError for given limits; defaults are never refused.
        """
        flags = {name: given.pop(name, False) for name in _FLAGS}  # type: ignore[misc]
        strategy = given.pop("allreduce_strategy", cls.allreduce_strategy)
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name, value in values.items():
            _check_extent(name, value)
        longest = min(defaults.max_seq_len or max_position_embeddings, max_position_embeddings)
        values.setdefault("max_seq_len", max(longest, values.get("max_input_len", 1)))
        values.setdefault("max_input_len", values["max_seq_len"])
        largest = max(1, min(defaults.max_batch_size, defaults.max_tokens_of_batch // values["max_seq_len"]))
        largest = max(largest, values.get("max_beam_width", 1))
        values.setdefault("max_batch_size", min(largest, values.get("max_num_tokens", largest)))
        prompts = values["max_batch_size"] * values["max_input_len"]
        least = max(values["max_batch_size"], values["max_input_len"] if whole_prompts else 0)
        values.setdefault("max_num_tokens", max(least, min(prompts, defaults.max_num_tokens)))
        values |= {**flags, "allreduce_strategy": strategy}
        limits = cls(**values)
        _require(
            limits.num_tokens >= limits.max_input_len or not whole_prompts,
            f"max_num_tokens is {limits.num_tokens}, below max_input_len {limits.max_input_len}: an encoder computes a "
            "text in one step, so raise max_num_tokens or lower max_input_len",
        )
        limits.check_model(max_position_embeddings)
        return limits

    def given(self) -> GivenLimits:
        """The limits of batches, sequences and steps as arguments."""
        return {
            "max_batch_size": self.max_batch_size,
            "max_input_len": self.max_input_len,
            "max_seq_len": self.max_seq_len,
            "max_num_tokens": self.num_tokens,
        }

    def in_manifest(self) -> Limits:
        """The limits that the manifest of an engine states."""
        return Limits(
            max_batch_size=self.max_batch_size,
            max_input_len=self.max_input_len,
            max_seq_len=self.max_seq_len,
            max_num_tokens=self.num_tokens,
            max_draft_len=self.max_draft_len,
            max_beam_width=self.beam_width,
        )

    @property
    def smallest_batch(self) -> int:
        """The least ``max_batch_size`` that is worth choosing to save memory."""
        return max(_SMALLEST_BATCH, self.max_beam_width or 1)

    @property
    def beam_width(self) -> int:
        """The maximum number of beams of one search."""
        return self.max_beam_width or self.max_batch_size

    @property
    def num_tokens(self) -> int:
        """The maximum number of tokens of one step."""
        if self.max_num_tokens is not None:
            return self.max_num_tokens
        return max(self.max_batch_size, min(self.max_batch_size * self.max_input_len, ON_CPU.max_num_tokens))

    @property
    def num_decode_tokens(self) -> int:
        """The maximum number of tokens of a step that only decodes, draft tokens included."""
        return self.max_batch_size * (1 + self.max_draft_len)

    @property
    def num_logits(self) -> int:
        """The maximum number of rows of logits of one step."""
        return self.num_tokens if self.gather_context_logits else self.num_decode_tokens

    @property
    def takes_rows(self) -> bool:
        """Whether rows may take the place of tokens."""
        return self.enable_prompt_embeds or self.tokens_per_row > 0

    @property
    def uses_nccl(self) -> bool:
        """Whether ranks exchange data by NCCL."""
        return self.allreduce_strategy == "NCCL"

    @property
    def max_blocks_per_seq(self) -> int:
        """Cache blocks of a sequence of full length."""
        return -(-self.max_seq_len // self.tokens_per_block)

    @property
    def num_blocks(self) -> int:
        """Cache blocks of a full batch of sequences of full length."""
        return self.geometry.most_blocks_of_batch(self.max_batch_size, self.max_seq_len)

    @property
    def geometry(self) -> KvGeometry:
        """The parameters that decide which cache blocks sequences need."""
        return KvGeometry(self.tokens_per_block, [group.spec for group in self.cache_groups], self.num_tokens)

    def symbols(self) -> dict[str, int]:
        """The upper bound of every symbolic extent of a plan; an encoder's plan has no extents of caches."""
        bounds = {
            "num_tokens": self.num_tokens,
            "num_seqs": self.max_batch_size,
            "num_seqs_plus_1": self.max_batch_size + 1,
            "num_decode_seqs": self.max_batch_size,
            "num_prefill_seqs": self.max_batch_size,
            "num_prefill_tokens": self.num_tokens,
            "num_token_rows": self.num_tokens if self.takes_rows else 0,
            "num_image_rows": self.num_tokens // self.tokens_per_row if self.tokens_per_row else 0,
            "num_tables": self.max_batch_size * len(self.cache_groups),
            "num_logits": self.num_logits,
            "max_blocks_per_seq": self.max_blocks_per_seq,
            "num_blocks": self.num_blocks,
            "num_slots": self.max_batch_size + SPARE_SLOTS,
        }
        return {name: bound for name, bound in bounds.items() if bound}

    def check_model(self, max_position_embeddings: int) -> None:
        """Raise BuildError if sequences may grow longer than the model's positions reach."""
        _require(
            self.max_seq_len <= max_position_embeddings,
            f"max_seq_len is {self.max_seq_len}, but the model's max_position_embeddings is {max_position_embeddings}: "
            f"set max_seq_len (and max_input_len) to at most {max_position_embeddings}",
        )


def _check_extent(name: str, value: object) -> None:
    least, most = _LEAST.get(name, 1), _MOST.get(name, MAX_EXTENT - 1)
    is_count = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    _require(is_count, f"{name} is {shown(value)}: expected an integer from {least} to {most}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BuildError(message)
