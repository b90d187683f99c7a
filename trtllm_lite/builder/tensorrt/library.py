"""Finds the installed TensorRT: TensorRT for RTX, or TensorRT, whose Python packages have the same interface."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trtllm_lite import _core
from trtllm_lite.errors import BuildError, DeviceError

PACKAGES = ("tensorrt_rtx", "tensorrt")
_CAPABILITY = re.compile(r"SM(\d+)")


@dataclass(frozen=True)
class Library:
    """``module`` is the imported package ``package`` of ``version``."""

    package: str
    version: str
    module: Any

    @property
    def is_rtx(self) -> bool:
        """Whether this is TensorRT for RTX, which builds for named architectures without a GPU, unlike TensorRT."""
        return self.package == PACKAGES[0]

    def capabilities(self, archs: Sequence[str]) -> list[str]:
        """The library's names of ``archs`` (``sm_89`` is ``SM89``); empty if it builds only for the GPU at hand."""
        return [arch.replace("_", "").upper() for arch in archs] if self.is_rtx else []

    def check_archs(self, archs: Sequence[str]) -> None:
        """Raise BuildError unless this library builds an engine for all of ``archs`` on this machine."""
        if self.is_rtx:
            self._check_known(archs)
        else:
            self._check_at_hand(archs)

    def _check_known(self, archs: Sequence[str]) -> None:
        matches = map(_CAPABILITY.fullmatch, self.module.ComputeCapability.__members__)
        known = [f"sm_{match[1]}" for match in matches if match]
        for arch in archs:
            if arch not in known:
                raise BuildError(
                    f"the target of the backend tensorrt is {arch}: TensorRT for RTX builds for {', '.join(known)}; "
                    "for other GPUs, such as H100 and H200 (sm_90), leave backend out: engines of this project's own "
                    "kernels run there"
                )

    def _check_at_hand(self, archs: Sequence[str]) -> None:
        try:
            found = str(_core.cuda_device()["arch"])
        except DeviceError as error:
            found = f"none ({error})"
        if list(archs) != [found]:
            raise BuildError(
                "the backend tensorrt found TensorRT, which compiles for the GPU of its machine alone, and that is "
                f"{found}; to compile for {', '.join(archs)} install TensorRT for RTX: "
                "pip install 'trtllm_lite[tensorrt-rtx]'"
            )


def find_library() -> Library:
    """The first of PACKAGES that is installed. Raises BuildError if none is."""
    for package in PACKAGES:
        if find_spec(package) is not None:
            module = import_module(package)
            return Library(package, str(module.__version__), module)
    raise BuildError(
        "the backend tensorrt needs TensorRT for RTX or TensorRT, and neither is installed: "
        "pip install 'trtllm_lite[tensorrt-rtx]'"
    )
