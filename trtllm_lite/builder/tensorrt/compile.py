"""Hands a network to TensorRT: parse, honour the lengths of sequences, bound shapes, build."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import remove_dead
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.tensorrt.layers import layers_of
from trtllm_lite.builder.tensorrt.library import Library
from trtllm_lite.builder.tensorrt.log import Log
from trtllm_lite.builder.tensorrt.passes.chosen_logits import LOGITS_INDICES
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.errors import BuildError
from trtllm_lite.network.graph import IR_VERSION

KV_LENGTHS = "key_value_lengths"
_TOTAL_LENS = "nonpad"  # the node that adds up the tokens of each sequence
_ELSEWHERE = "weights"  # where the network says that its weights lie; they are handed over by address


@dataclass(frozen=True)
class Compiled:
    """``image`` is the serialized engine, ``activation_bytes`` the memory that it takes besides weights and caches."""

    image: Any
    activation_bytes: int
    layers: tuple[Tactic, ...]


@dataclass(frozen=True)
class Profile:
    """The least, usual and most extents of one kind of step: sequences, new tokens of each, rows of logits."""

    batch: tuple[int, int, int]
    seq: tuple[int, int, int]
    logits: tuple[int, int, int]

    def shape(self, name: str, dims: Sequence[int], which: int) -> tuple[int, ...]:
        """The extents of the input ``name`` whose dynamic ``dims`` are -1."""
        if name == LOGITS_INDICES:
            return (self.logits[which],)
        dynamic = iter((self.batch[which], self.seq[which]))
        return tuple(next(dynamic) if dim == -1 else dim for dim in dims)


def profiles_of(limits: BuildLimits) -> tuple[Profile, Profile]:
    """Steps of context: new tokens of one sequence; steps of generation: one token of each sequence."""
    longest = min(limits.num_tokens, limits.max_seq_len)
    rows = longest if limits.gather_context_logits else 1
    batch = limits.max_batch_size
    context = Profile((1, 1, 1), (1, min(longest, limits.max_input_len), longest), (1, 1, rows))
    return context, Profile((1, batch, batch), (1, 1, 1), (1, batch, batch))


def compile_network(
    graph: ir.Graph, limits: BuildLimits, archs: Sequence[str], library: Library, progress: Callable[[int, int], None]
) -> Compiled:
    """Build the engine of ``graph``, whose types and caches :mod:`passes` made, for ``archs``. Raises BuildError."""
    trt, log = library.module, Log()
    builder = trt.Builder(log.logger(trt))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    kept = parse_network(library, network, log, graph, progress)
    set_lengths(trt, network)
    config = _configure(trt, builder, network, limits, archs, library)
    image = builder.build_serialized_network(network, config)
    del kept
    log.check("built the engine")
    if image is None:
        raise BuildError("TensorRT built no engine and did not say why: build with the native backend")
    return Compiled(memoryview(image), log.activation_bytes(), layers_of(log.lines))


def parse_network(
    library: Library, network: Any, log: Log, graph: ir.Graph, progress: Callable[[int, int], None]
) -> list[np.ndarray]:
    """Parse ``graph`` into ``network``; returns the weights, which it reads until it is built. Raises BuildError."""
    parser = library.module.OnnxParser(network, log.logger(library.module))
    document, weights = _without_weights(graph)
    if not parser.load_model_proto(document, ""):
        raise BuildError("TensorRT's parser refused the network: report this with network.onnx")
    kept = []
    for number, (name, tensor) in enumerate(weights.items()):
        kept.append(np.frombuffer(tensor.tobytes(), np.uint8))
        parser.load_initializer(name, kept[-1].ctypes.data, kept[-1].size)
        progress(number + 1, len(weights))
    parsed = parser.parse_model_proto()
    log.check("parsed the network")
    if not parsed:
        raise BuildError("TensorRT's parser refused the network and did not say why: report this with network.onnx")
    return kept


def _without_weights(graph: ir.Graph) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """The serialized network, whose weights are in no file, and the weights. Small constants stay inside."""
    copy = ir.Model(graph, ir_version=IR_VERSION).clone()
    remove_dead(copy.graph)
    weights: dict[str, ir.TensorProtocol] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.LazyTensor):
            weights[name] = tensor
            value.const_value = ir.ExternalTensor(
                _ELSEWHERE, 0, tensor.nbytes, tensor.dtype, name=name, shape=tensor.shape, base_dir=""
            )
    return ir.to_proto(copy).SerializeToString(), weights


def set_lengths(trt: Any, network: Any) -> None:
    """Let every attention of ``network`` read as many keys and values as its sequence has.

    The parser drops ``nonpad_kv_seqlen`` without a word, and aligns causal masks with the first key; ONNX aligns them
    with the last (https://github.com/onnx/onnx/pull/8068), which is what a step behind others needs. Raises BuildError.
    """
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    totals = next((layer.get_output(0) for layer in layers if layer.name == _TOTAL_LENS), None)
    inputs = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    if inputs and totals is None:
        raise BuildError(f"the network has no node {_TOTAL_LENS} for the lengths of its sequences: convert again")
    if not inputs:
        return
    lengths = network.add_cast(totals, trt.int32)
    lengths.name = KV_LENGTHS
    for layer in inputs:
        layer.__class__ = trt.IAttentionInputLayer  # how the bindings give access to a layer's own kind
        attention = layer.attention
        attention.key_value_lengths = lengths.get_output(0)
        if attention.mask is None:
            attention.causal_kind = trt.CausalMaskKind.LOWER_RIGHT


def _configure(
    trt: Any, builder: Any, network: Any, limits: BuildLimits, archs: Sequence[str], library: Library
) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layers name the nodes that they compute
    if library.is_rtx:
        config.num_compute_capabilities = len(archs)
        for index, arch in enumerate(archs):
            config.set_compute_capability(getattr(trt.ComputeCapability, arch.replace("_", "").upper()), index)
    for wanted in profiles_of(limits):
        profile = builder.create_optimization_profile()
        for number in range(network.num_inputs):
            tensor = network.get_input(number)
            dims = tuple(tensor.shape)
            profile.set_shape(tensor.name, *(wanted.shape(tensor.name, dims, which) for which in range(3)))
        config.add_optimization_profile(profile)
    return config
