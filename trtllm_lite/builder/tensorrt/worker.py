"""Runs TensorRT's builder as a program of its own: ``python worker.py PACKAGE`` in a directory with a request.

The directory holds NETWORK, REQUEST and files of weights; the image goes to IMAGE there. On stdout it prints lines of
JSON: ``["line", severity, text]`` for what TensorRT prints, and ``["did", what, succeeded]`` for each step.

TensorRT orders some of what it writes by the addresses of its objects. The addresses are the same in every run: the
kernel does not randomize them, the heap is that of ``steady_heap.cc``, and allocations come in the same order, because
this file imports only TensorRT and a few modules of Python, and all paths have fixed names.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

NETWORK, REQUEST, IMAGE, PACKAGES = "network.onnx", "request.json", "network.image", "packages"
PARSED, BUILT = "parsed the network", "built the engine"
KV_LENGTHS = "key_value_lengths"
LISTING = "Layers:\n"  # the start of the only trace that is passed on
HERE = "/proc/self/cwd"  # a name of the current directory whose length is always the same
_TOTAL_LENS = "nonpad"  # the node that adds up the tokens of each sequence
RANDOM_ADDRESSES = "The kernel keeps the addresses of this process random: another build may have other bytes."
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_ADDR_NO_RANDOMIZE, _QUERY = 0x0040000, 0xFFFFFFFF  # <linux/personality.h>


def main(package: str) -> None:
    """Build what the request asks for."""
    fixed = _fix_addresses()
    ctypes.c_int.in_dll(ctypes.CDLL(None), "steady_heap")  # an error if the heap was not loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process, which also ends if the parent dies
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not mix with messages

    def send(*message: object) -> None:
        messages.write(json.dumps(message) + "\n")

    if not fixed:
        send("line", "WARNING", RANDOM_ADDRESSES)
    sys.path.append(f"{HERE}/{PACKAGES}")
    trt = import_module(package)
    with open(REQUEST) as file:
        request = json.load(file)
    logger = _logger(trt, send)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parsed = parse(trt, network, logger, request["weights"])
    send("did", PARSED, parsed)
    if not parsed:
        return
    set_lengths(trt, network)
    image = builder.build_serialized_network(network, _configure(trt, builder, request))
    if image is not None:
        with open(IMAGE, "wb") as output:
            output.write(image)
    send("did", BUILT, image is not None)


def _fix_addresses() -> bool:
    """Start this program again where libraries and stacks have the same addresses in every run.

    Returns whether addresses are fixed now; a container's rules for system calls may forbid it.
    """
    libc = ctypes.CDLL(None)
    found = libc.personality(_QUERY)
    if found != -1 and not found & _ADDR_NO_RANDOMIZE:
        if libc.personality(found | _ADDR_NO_RANDOMIZE) == -1:
            return False
        os.execv(sys.executable, sys.orig_argv)
    return bool(found != -1)


def _logger(trt: Any, send: Callable[..., None]) -> Any:
    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity.name != "VERBOSE" or text.startswith(LISTING):
                send("line", severity.name, text)

    return Logger()


def parse(trt: Any, network: Any, logger: Any, weights: Iterable[tuple[str, str, int, int]]) -> bool:
    """Parse NETWORK into ``network``, with mapped ``weights`` (name, file, offset, bytes); whether that succeeds."""
    parser = trt.OnnxParser(network, logger)
    with open(NETWORK, "rb") as file:
        if not parser.load_model_proto(file.read(), ""):
            return False
    starts: dict[str, int] = {}
    for name, path, offset, size in weights:
        if path not in starts:
            starts[path] = _mapped(path)
        parser.load_initializer(name, starts[path] + offset, size)
    return bool(parser.parse_model_proto())


def _mapped(path: str) -> int:
    """The address at which the file ``path`` is mapped, until this process ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return int(address)


def set_lengths(trt: Any, network: Any) -> None:
    """Let every attention of ``network`` read the keys and values up to the length of its sequence.

    The parser drops ``nonpad_kv_seqlen`` silently, and aligns causal masks with the first key; ONNX aligns them with
    the last (https://github.com/onnx/onnx/pull/8068), which later steps of a sequence need. Raises LookupError.
    """
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    inputs = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    if not inputs:
        return
    totals = next((layer.get_output(0) for layer in layers if layer.name == _TOTAL_LENS), None)
    if totals is None:
        raise LookupError(f"the network has no node {_TOTAL_LENS} for the lengths of its sequences")
    lengths = network.add_cast(totals, trt.int32)
    lengths.name = KV_LENGTHS
    for layer in inputs:
        layer.__class__ = trt.IAttentionInputLayer  # the bindings give access to a layer's own class in this way
        attention = layer.attention
        attention.key_value_lengths = lengths.get_output(0)
        if attention.mask is None:
            attention.causal_kind = trt.CausalMaskKind.LOWER_RIGHT


def _configure(trt: Any, builder: Any, request: Any) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # lets layers name the nodes that they compute
    capabilities = request["compute_capabilities"]  # empty if TensorRT builds for the GPU of the machine
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    for shapes in request["profiles"]:
        profile = builder.create_optimization_profile()
        for name, extents in shapes.items():
            profile.set_shape(name, *extents)
        config.add_optimization_profile(profile)
    return config


if __name__ == "__main__":
    main(sys.argv[1])
