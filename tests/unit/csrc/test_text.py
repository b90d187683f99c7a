"""csrc/text keeps its promises under the sanitizers."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.batching.cpp_build import CSRC, VARIANTS, alone, cached_folder, compile_objects, compile_together, link

TEXT = sorted((CSRC / "text").glob("*.cc"))
TEST = Path(__file__).with_name("text_test.cc")


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_use_is_clean(pytestconfig: pytest.Config, variant: str) -> None:
    folder = cached_folder(pytestconfig, "text", [*(CSRC / "text").iterdir(), CSRC / "errors.h", TEST])
    program, flags = folder / f"text_test.{variant}", VARIANTS[variant]
    with alone(folder):
        if not program.is_file():
            objects = compile_objects(folder / variant, [TEST], flags)
            link(program, [*objects, *compile_together(folder / variant, TEXT, flags)], flags)
    result = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
