"""Computes the cost of a decode step and of a prompt on several GPUs, by the formulas of docs/design/parallelism.md."""

from dataclasses import astuple, dataclass

from documents.collectives import ACTIVATION_BYTES, Link
from trtllm_lite.bench.floor import pipeline_step
from trtllm_lite.bench.operations import prompt_flops
from trtllm_lite.network.config import ModelConfig

WEIGHT_BYTES, CACHE_BYTES, NORM_BYTES = 2, 2, 4
STEP_TOKENS = 8192  # tokens of a prefill step: max_num_tokens of the measured engines
USABLE = 0.95  # share of a card's memory for weights and KV cache; the rest is workspace


@dataclass(frozen=True)
class Kernels:
    """Seconds that kernels take beyond the times of the bytes and operations of products and attention.

    ``per_layer`` is independent of a layer's size; ``per_value`` is per element of the rows of a layer, which are
    divided among ranks.
    """

    per_layer: float
    per_value: float

    def time(self, model: ModelConfig, rows: float, tp_size: int) -> float:
        return model.num_hidden_layers * (self.per_layer + self.per_value * rows * model.hidden_size / tp_size)


@dataclass(frozen=True)
class Machine:
    """Cards of one kind: bytes and operations per second that they reach; prompts reach ``prompt_share`` of flops."""

    bandwidth: float
    flops: float
    prompt_share: float
    kernels: Kernels
    link: Link


@dataclass(frozen=True)
class Layout:
    """A layout: ``replicas`` of an engine with ``pp_size`` stages of ``tp_size`` ranks."""

    tp_size: int = 1
    pp_size: int = 1
    replicas: int = 1

    def __str__(self) -> str:
        sizes = {"PP": self.pp_size, "TP": self.tp_size}
        engine = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one card"
        return engine if self.replicas == 1 else f"{self.replicas} × {engine}"


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of a decode step, summed over all stages."""

    weights: float
    cache: float
    kernels: float
    all_reduce: float
    all_gather: float

    @property
    def seconds(self) -> float:
        return float(sum(astuple(self)))


def own_kv_heads(model: ModelConfig, tp_size: int) -> int:
    """Key/value heads of a rank; if there are fewer heads than ranks, several ranks have the same head."""
    return max(model.num_key_value_heads // tp_size, 1)


def table_bytes(model: ModelConfig, tp_size: int) -> float:
    """A rank's share of the embedding, or of the LM head."""
    return WEIGHT_BYTES * model.vocab_size * model.hidden_size / tp_size


def step_bytes(model: ModelConfig, tp_size: int) -> float:
    """Bytes of weights that a rank reads in a step: all except the embedding."""
    heads = 2 * model.num_attention_heads / tp_size + 2 * own_kv_heads(model, tp_size)
    matrices = model.hidden_size * (heads * model.head_dim + 3 * model.intermediate_size / tp_size)
    norms = NORM_BYTES * (2 * model.num_hidden_layers + 1) * model.hidden_size
    return WEIGHT_BYTES * model.num_hidden_layers * matrices + table_bytes(model, tp_size) + norms


def cache_bytes(model: ModelConfig, tp_size: int) -> int:
    """Bytes of keys and values of a token on a rank."""
    return CACHE_BYTES * 2 * model.num_hidden_layers * own_kv_heads(model, tp_size) * model.head_dim


def decode_step(model: ModelConfig, machine: Machine, rows: float, context: float, tp_size: int = 1) -> Step:
    """A step that generates a token for each of ``rows`` requests with ``context`` tokens."""
    products = rows * prompt_flops(model, 1, tp_size) / machine.flops
    return Step(
        weights=max(step_bytes(model, tp_size) / machine.bandwidth, products),
        cache=rows * context * cache_bytes(model, tp_size) / machine.bandwidth,
        kernels=machine.kernels.time(model, rows, tp_size),
        all_reduce=all_reduces(model, machine, rows, tp_size),
        all_gather=all_gather(model, machine, rows, tp_size),
    )


def num_all_reduces(model: ModelConfig) -> int:
    """The number of AllReduces of a step: two per layer, and one for the embedding."""
    return 2 * model.num_hidden_layers + 1


def all_reduces(model: ModelConfig, machine: Machine, rows: float, tp_size: int) -> float:
    """Seconds of the AllReduces of a step."""
    return num_all_reduces(model) * machine.link.all_reduce(rows, model.hidden_size, tp_size)


def all_gather(model: ModelConfig, machine: Machine, rows: float, tp_size: int) -> float:
    """Seconds until the sampling rank has all logits, beyond those of the LM head."""
    head = table_bytes(model, tp_size) / machine.bandwidth
    return machine.link.all_gather(rows, model.vocab_size, tp_size, head)


def prompt_time(model: ModelConfig, machine: Machine, length: int, tp_size: int = 1, prompts: int = 1) -> float:
    """Seconds up to the first tokens of ``prompts``, which are computed STEP_TOKENS tokens at a time."""
    products = prompts * prompt_flops(model, length, tp_size) / (machine.prompt_share * machine.flops)
    steps = -(-prompts * length // STEP_TOKENS)
    meeting = steps * all_reduces(model, machine, prompts * length / steps, tp_size)
    return products + meeting + all_gather(model, machine, prompts, tp_size)


def token_time(
    model: ModelConfig,
    machine: Machine,
    layout: Layout,
    requests: int,
    context: float,
    network: float | None = None,
) -> float:
    """Seconds between the tokens of each of ``requests`` requests.

    The stages of a pipeline are equal, each with another group of the requests. A token passes all of them, and crosses
    ``pp_size - 1`` boundaries, by a push, or over a network of ``network`` bytes per second.
    """
    rows = max(requests / layout.replicas / layout.pp_size, 1.0)
    step = decode_step(model, machine, rows, context, layout.tp_size)
    row_bytes = ACTIVATION_BYTES * rows * model.hidden_size
    crossing = row_bytes / network if network else machine.link.push.time(model.hidden_size, row_bytes)
    even = [step.seconds / layout.pp_size] * layout.pp_size
    return pipeline_step(even, (layout.pp_size - 1) * crossing, min(layout.pp_size, requests))


def fits(model: ModelConfig, memory: float, layout: Layout, requests: int, context: float) -> bool:
    """Whether each card, of ``memory`` bytes, has room for its weights and its part of the KV cache of all requests."""
    held = requests / layout.replicas * context * cache_bytes(model, layout.tp_size)
    held += step_bytes(model, layout.tp_size)
    return held / layout.pp_size + table_bytes(model, layout.tp_size) <= USABLE * memory
