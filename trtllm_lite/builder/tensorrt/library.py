"""The TensorRT that is installed: TensorRT for RTX, or TensorRT, whose Python packages have the same interface."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trtllm_lite.errors import BuildError

PACKAGES = ("tensorrt_rtx", "tensorrt")
_ARCH = re.compile(r"sm_(\d+)")
_RTX_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_120", "sm_121")


@dataclass(frozen=True)
class Library:
    """``module`` is the imported package ``package`` of ``version``."""

    package: str
    version: str
    module: Any

    @property
    def is_rtx(self) -> bool:
        """Whether it builds for named architectures, without a GPU; TensorRT builds for the GPU at hand."""
        return self.package == PACKAGES[0]


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


def check_archs(archs: Sequence[str]) -> None:
    """Raise BuildError unless TensorRT for RTX builds for all of ``archs`` (``sm_89``)."""
    for arch in archs:
        if _ARCH.fullmatch(arch) is None or arch not in _RTX_ARCHS:
            known = ", ".join(_RTX_ARCHS)
            raise BuildError(
                f"the target of the backend tensorrt is {arch}: TensorRT for RTX builds for {known}; for other GPUs, "
                "such as H100 and H200 (sm_90), leave backend out: engines of this project's own kernels run there"
            )
