"""Fixtures shared by all tests: the real model, SmolLM2-135M-Instruct, as its GGUF file, reference and engine."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.combinations import pairwise
from tests.kept import kept
from tests.real_models import CACHE, SMOLLM2_LIMITS, find_smollm2
from tests.rounds import configure, rounds

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers compute references on one core: with more, the threads of parallel workers would spin while they wait.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Bytecode is written, or each process would compile imports for seconds; scripts/common/environment.sh does the same.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # while tests are collected: objects made then stay anyway


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-combinations", action="store_true", help="test all combinations of parameters, and all random rounds"
    )


def pytest_configure(config: pytest.Config) -> None:
    configure(config)
    # Test machines may be busy: no example fails for being slow.
    too_slow = HealthCheck.too_slow
    settings.register_profile("tests", deadline=None, suppress_health_check=[too_slow], max_examples=rounds(100))
    settings.load_profile("tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("all_combinations"):
        kept, repeated = pairwise(items)
        config.hook.pytest_deselected(items=repeated)
        items[:] = kept


def pytest_collection_finish() -> None:
    """Collect garbage, but not among objects of imports and of test collection, and less often than by default.

    Otherwise a quarter of the time of tests that build engines is spent on walking through these objects.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for() -> Iterator[None]:
    """Skip fsync: test files need not survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # noqa: ARG005 (the signature of os.fsync)
        yield


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The path of SmolLM2's GGUF file."""
    return find_smollm2()


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_gguf: Path):
    """transformers' model of the GGUF file, in float32."""
    from tests.references import load_reference

    return load_reference(smollm2_gguf)


@pytest.fixture(scope="session")
def smollm2_results(smollm2_gguf: Path, request: pytest.FixtureRequest):
    """What transformers' model of the GGUF file computes; the model is loaded if a result is not kept."""
    from tests.references import KeptReference

    load = partial(request.getfixturevalue, "smollm2_reference")
    return KeptReference(smollm2_gguf, CACHE / "references" / "smollm2", load)


@pytest.fixture(scope="session")
def shared_by_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run of pytest, for what its processes make once (:func:`tests.kept.kept`)."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"


@pytest.fixture(scope="session")
def smollm2_checkpoint(smollm2_gguf: Path, shared_by_workers: Path) -> Path:
    """SmolLM2 converted with float32 matrices."""
    from trtllm_lite.convert import convert_checkpoint

    return kept(
        shared_by_workers / "smollm2-checkpoint", [], lambda to: convert_checkpoint(str(smollm2_gguf), to, "float32")
    )


@pytest.fixture(scope="session")
def smollm2_engine(smollm2_checkpoint: Path, shared_by_workers: Path) -> Path:
    """SmolLM2 as an engine of float32 matrices, for many requests at once."""
    from trtllm_lite.builder import build_engine

    return kept(
        shared_by_workers / "smollm2-engine", [], lambda to: build_engine(smollm2_checkpoint, to, **SMOLLM2_LIMITS)
    )


@pytest.fixture
def no_machine_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Engines hold an empty cubin for each kernel, for tests that look at plans: compiling takes most of a build."""
    from trtllm_lite.builder import nvrtc

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: b"\x7fELF")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts this process and its children, even if the process was started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
