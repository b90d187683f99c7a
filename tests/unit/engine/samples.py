"""A small engine file, made by hand."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trtllm_lite.engine.manifest import Cache, CacheGroup, Fusion, KvCache, Limits, Manifest, Memory, Target
from trtllm_lite.engine.modules import Module, Port
from trtllm_lite.engine.plan import CallInstruction, Plan, PlanTensor, Program
from trtllm_lite.engine.writer import EngineContent, Weight, weight_offsets, write_engine
from trtllm_lite.network.config import ModelConfig

ARRAYS = {
    "odd": np.arange(7, dtype=np.float32),
    "half": np.arange(12, dtype=np.float16).reshape(3, 4),
    "aligned": np.arange(32, dtype=np.float32),
}

MODEL = ModelConfig(
    producer="trtllm_lite test",
    architecture="TestForCausalLM",
    family="test",
    dtype="float32",
    vocab_size=7,
    hidden_size=4,
    intermediate_size=6,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=64,
    eos_token_ids=[1],
    bos_token_id=None,
    pad_token_id=None,
    generation={"temperature": 0.7},
)


def caches(shape: tuple[int, ...], dtype: str, layers: Iterable[int] = (0,)) -> tuple[Cache, ...]:
    """The keys and values of ``layers``, whose tokens have ``shape`` elements each."""
    return tuple(Cache(layer, name, dtype, shape) for layer in layers for name in ("key_cache", "value_cache"))


MANIFEST = Manifest(
    producer="trtllm_lite test",
    target=Target("cpu"),
    model=MODEL,
    modules=(
        Module("decoder", "decoder", (), (Port("logits", "float32", ("num_logits", MODEL.vocab_size)),), ("full",)),
    ),
    limits=Limits(2, 16, 32, 32, 0, 2),
    kv_cache=KvCache(16, 4, 256, (CacheGroup("full", "full", 0, caches((1, 2), "float32")),)),
    gather_context_logits=False,
    files={"tokenizer.json": "00c0ffee"},
    memory=Memory(1000, 1024, 64),
    fusions=(
        Fusion("merge_qkv", "layers.0.attention", True, ""),
        Fusion("merge_qkv", "layers.1.attention", False, "they read different inputs"),
    ),
    num_parameters=42,
)


def weights() -> list[Weight]:
    """The weights of :data:`ARRAYS`."""
    return [
        Weight(name, array.dtype.name, array.shape, lambda array=array: memoryview(array.reshape(-1).view("u1")))
        for name, array in ARRAYS.items()
    ]


def plan() -> Plan:
    """A plan whose only instruction reads two of the weights."""
    offsets = weight_offsets([weight.num_bytes for weight in weights()])
    tensors = [
        PlanTensor(name, array.dtype.name, array.shape, "row_major", "weight", offset)
        for (name, array), offset in zip(ARRAYS.items(), offsets, strict=True)
    ]
    tensors.append(PlanTensor("y", "float32", ("num_tokens", 7), "row_major", "arena", 0))
    call = CallInstruction("call", "RmsNorm", {"x": 0, "weight": 1, "y": 3}, {"epsilon": 1e-6})
    step = Program("step", "cpu", False, 32, (call,))
    return Plan({"num_tokens": 32}, 896, 0, tuple(tensors), {"logits": 3}, (), (step,), None)


def write_sample(path: Path) -> Path:
    """Write the sample engine to ``path``; returns ``path``."""
    write_engine(path, EngineContent(weights(), plan().to_json(), MANIFEST.to_json()))
    return path
