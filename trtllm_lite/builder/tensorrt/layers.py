"""Reads from the builder's log which kernels TensorRT chose for the network, so that inspection needs no GPU."""

import re
from collections.abc import Iterable, Iterator

from trtllm_lite.builder.tensorrt.worker import LISTING
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.errors import BuildError

_LAYER = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<type>\w+), (?P<rest>.*)$", re.MULTILINE)
_SITE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
_DTYPE = re.compile(r"Datatype: (\w+)")
_PROFILE = " [profile 1]"
_EVENTS = ("signal", "wait", "shape_call", "ShapeHostToDevice", "copy")
_PROFILES = ("context", "generation")
_REASON = "chosen by TensorRT"


def layers_of(lines: Iterable[tuple[str, str]]) -> tuple[Tactic, ...]:
    """The layers of the engine, in order of execution: those of prompts (``context``), then those of ``generation``.

    A layer's site names its phase and the nodes of the network that it computes; its choice names the layer's type and
    the types that it reads, such as ``gemm of FP8``. Layers that only move events or shapes are left out. Raises
    BuildError if the lines list no layers.
    """
    layers = tuple(layer for _, text in lines if text.startswith(LISTING) for layer in _layers(text))
    if not layers:
        raise BuildError(
            "TensorRT did not list the engine's layers in the known form: its version is not supported; build with "
            "the native backend (leave backend out)"
        )
    return layers


def _layers(text: str) -> Iterator[Tactic]:
    phase = 0
    for found in _LAYER.finditer(text):
        phase = max(phase, int(_PROFILE in found["name"] or _PROFILE in found["rest"]))
        sites = list(dict.fromkeys(_SITE.findall(found["rest"])))
        if found["type"] in _EVENTS or not sites:
            continue
        inputs = found["rest"].partition("Outputs:")[0]
        read = sorted(set(_DTYPE.findall(inputs)))
        kernel = "attention " if "_mha_" in found["name"] else ""
        choice = f"{kernel}{found['type']} of {', '.join(read)}" if read else f"{kernel}{found['type']}"
        yield Tactic(f"{_PROFILES[phase]}: {' + '.join(sites)}", choice, _REASON)
