"""Accounts for every line that TensorRT's parser and builder print: it is known to be harmless, or the build fails."""

import re
from dataclasses import dataclass, field

from trtllm_lite.builder.tensorrt.worker import RANDOM_ADDRESSES
from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import COMPILED_INPUTS
from trtllm_lite.errors import BuildError

_MAX_SHOWN = 5


@dataclass(frozen=True)
class Benign:
    """Lines that match ``pattern`` as a whole, and why they are harmless."""

    pattern: str
    reason: str


_INPUTS = f"({'|'.join(COMPILED_INPUTS)})"
BENIGN = (
    Benign(r"-+|(ONNX IR|Opset|Producer|Model) version: .*|(Producer name|Domain|Doc string): .*", "the file's header"),
    Benign(rf"ModelImporter\.cpp:\d+: Make sure input {_INPUTS} has Int64 binding\.", "the runtime binds int64 there"),
    Benign(rf"In input \({_INPUTS}\), minShape is not the same as maxShape\.", "profiles are ranges on purpose"),
    Benign(r"Detected \d+ inputs? and \d+ output network tensors?\.", "a count"),
    Benign(r"Total (Host|Device) Persistent Memory: \d+ bytes", "a size"),
    Benign(r"Max Scratch Memory: \d+ bytes", "a size"),
    Benign(r"Total (Activation|Weights) Memory: \d+ bytes", "a size, of which that of activations is recorded"),
    Benign(r"\[BlockAssignment\] .*", "how temporary memory is laid out"),
    Benign(r"\[MemUsage(Stats|Change)\] .*", "the builder's own memory"),
    Benign(r"Local timing cache in use\. .*", "nothing is timed without a GPU"),
    Benign(r"Compiler backend is used during engine (build|execution)\.", "the one compiler of TensorRT for RTX"),
    Benign(r"Engine generation completed in .* seconds\.", "a time"),
    Benign(re.escape(RANDOM_ADDRESSES), "the engine is as correct; a container's rules for system calls may forbid it"),
    Benign(r"Successfully (created|loaded) plugin: .*", "plugins that come with TensorRT"),
    Benign(
        r"\[checkMacros\.cpp::catchCudaError::\d+\] Error Code 1: Cuda Runtime .*cudaError 35: .*",
        "there is no driver where the builder looks for one; targets are named, and no GPU is needed",
    ),
)
_ACTIVATION = re.compile(r"Total Activation Memory: (\d+) bytes")
_KNOWN = re.compile("|".join(f"(?:{line.pattern})" for line in BENIGN), re.DOTALL)


@dataclass
class Log:
    """The lines of one build, by severity as TensorRT names it; ``VERBOSE`` lines are traces and never checked."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def check(self, doing: str) -> None:
        """Raise BuildError that lists the lines which are not BENIGN; ``doing`` says what TensorRT was doing."""
        unknown = [
            f"{severity}: {one_line(message)}"
            for severity, message in self.lines
            if severity != "VERBOSE" and not _KNOWN.fullmatch(message)
        ]
        if not unknown:
            return
        more = f"; and {len(unknown) - _MAX_SHOWN} more" if len(unknown) > _MAX_SHOWN else ""
        listed = "; ".join(unknown[:_MAX_SHOWN]) + more
        raise BuildError(
            f"TensorRT printed lines that are not known to be harmless when it {doing}: {listed}. "
            "Build with the native backend (leave backend out), or report this with network.onnx"
        )

    def activation_bytes(self) -> int:
        """The temporary memory of the engine for its largest profile. Raises BuildError if no line states it."""
        sizes = [int(found[1]) for _, line in self.lines if (found := _ACTIVATION.fullmatch(line))]
        if not sizes:
            raise BuildError(
                f"TensorRT did not print the engine's memory, in a line such as {_ACTIVATION.pattern!r}: its version "
                "is not supported; build with the native backend (leave backend out)"
            )
        return max(sizes)
