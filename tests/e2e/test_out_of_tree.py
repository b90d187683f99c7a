"""The package of ``examples/dynamic_tanh`` is installed by pip, and adds a family and an operator."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.checks import POISON
from tests.gpu.checks import assert_close as assert_rows_close
from tests.models import round_matrices, save_model, tiny_model
from tests.tolerances import assert_close
from trtllm_lite import _core
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import ConvertError, EngineError
from trtllm_lite.plugins.schema import all_schemas
from trtllm_lite.runtime import ModelRunner

EXAMPLE = Path(__file__).parents[2] / "examples" / "dynamic_tanh"
NAME, OPERATOR = "trtllm-lite-dynamic-tanh", "DynamicTanh"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 2}
PROMPT, NUM_NEW = [3, 5, 8, 13, 21, 34], 8

# Runs with the package installed; prints what the test looks at.
_STEPS = """
import json, sys
import numpy as np
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.inspect import inspect_engine
from trtllm_lite.runtime import ModelRunner

prompt, count = json.loads(sys.argv[1])
convert_checkpoint("model", "checkpoint", "float16")
limits = {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64}
manifests = {target: build_engine("checkpoint", target, target=target, **limits) for target in ("cpu", "sm_90")}
found = {name: inspect_engine(name).to_dict() for name in manifests}
result = ModelRunner.from_dir("cpu").generate(
    [prompt], max_new_tokens=count, end_id=-1, temperature=0, return_dict=True, output_generation_logits=True
)
np.save("logits.npy", result["generation_logits"][0][0])
tokens = result["output_ids"][0][0][len(prompt) :].tolist()
plugins = {name: [one["plugins"], one["operators"], one["programs"]] for name, one in found.items()}
print(json.dumps({"family": manifests["cpu"].model.family, "tokens": tokens, "plugins": plugins}))
"""


class DynamicTanh(torch.nn.Module):
    """torch's form of what takes the place of a norm."""

    def __init__(self, norm: torch.nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        size = norm.weight.shape
        self.alpha = torch.nn.Parameter(torch.rand(1, generator=generator) + 0.5)
        self.weight = torch.nn.Parameter(1 + 0.2 * torch.randn(size, generator=generator))
        self.bias = torch.nn.Parameter(0.2 * torch.randn(size, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.alpha * x) * self.weight + self.bias


def _run(folder: Path, site: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of ``site``, which are not the test's own."""
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(folder / "cache")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example, without a network."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "site", folder / "source"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, torch.nn.Module]]:
    """The folder in which a tiny model is, and the model."""
    folder, generator = tmp_path_factory.mktemp("model"), torch.Generator().manual_seed(1)
    model = round_matrices(tiny_model("llama", num_key_value_heads=2, **SIZES), "float16")
    for layer in model.model.layers:
        layer.input_layernorm = DynamicTanh(layer.input_layernorm, generator)
        layer.post_attention_layernorm = DynamicTanh(layer.post_attention_layernorm, generator)
    model.model.norm = DynamicTanh(model.model.norm, generator)
    save_model(model, folder / "model")
    config = json.loads((folder / "model" / "config.json").read_text())
    config |= {"architectures": ["DynamicTanhForCausalLM"], "model_type": "dynamic_tanh"}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    return folder, model


@pytest.fixture(scope="module")
def made(site: Path, model: tuple[Path, torch.nn.Module]) -> dict:
    """What was found when the model was converted, built and run with the package installed."""
    done = _run(model[0], site, _STEPS, json.dumps([PROMPT, NUM_NEW]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_gives_the_logits_of_torch(made: dict, model: tuple[Path, torch.nn.Module]) -> None:
    assert made["family"] == "dynamic_tanh"
    folder, reference = model
    tokens = [*PROMPT, *made["tokens"][:-1]]
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0, len(PROMPT) - 1 :].numpy()
    assert_close(np.load(folder / "logits.npy"), expected, "float16")


def test_engines_say_what_they_need(made: dict) -> None:
    """All norms are fused, and engines for GPUs have kernels of the operator."""
    (on_cpu, operators, _), (on_gpu, _, programs) = made["plugins"].values()
    assert on_cpu == on_gpu == {f"{NAME} 1.0.0": OPERATOR}
    assert operators[OPERATOR] == 2 * SIZES["num_hidden_layers"] + 1
    assert all(counts["dynamic_tanh"] == operators[OPERATOR] for counts in programs.values())


def test_its_own_tests_pass(site: Path, tmp_path: Path) -> None:
    """The kernel for CPUs gives what the reference gives, and that for GPUs compiles."""
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = _run(tmp_path, site, code, "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests"), "--rootdir", str(EXAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("made")
def test_without_the_package_an_engine_is_refused(model: tuple[Path, torch.nn.Module]) -> None:
    assert OPERATOR not in all_schemas(), "the test's own process has the package"
    needed = rf"needs {NAME} 1\.0\.0 \({OPERATOR}\), which is not installed: pip install '{NAME}==1\.0\.0'"
    with pytest.raises(EngineError, match=needed):
        ModelRunner.from_dir(model[0] / "cpu")
    assert _core.Engine(str(model[0] / "sm_90" / "rank0.engine")), "it contains the kernels that it needs"
    with pytest.raises(ConvertError, match=r"DynamicTanhForCausalLM(?s:.)*docs/contributing/out-of-tree\.md"):
        convert_checkpoint(str(model[0] / "model"), model[0] / "other")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("*.dist-info/METADATA", "Version: 1.0.0", "Version: 1.1.0", "found version 1.1.0"),
        ("dynamic_tanh/plugins/*/schema.toml", "squashed", "changed", "compiled against other schemas"),
        ("*.dist-info/entry_points.txt", "trtllm_lite.plugins", "other.plugins", "which is not installed"),
    ],
)
def test_a_package_that_does_not_fit_is_refused(
    file: str, old: str, new: str, message: str, site: Path, model: tuple[Path, torch.nn.Module], tmp_path: Path
) -> None:
    shutil.copytree(site, tmp_path / "site")
    (path,) = (tmp_path / "site").glob(file)
    path.write_text(path.read_text().replace(old, new))
    code = "from trtllm_lite import _core; _core.Engine('cpu/rank0.engine')"
    done = _run(model[0], tmp_path / "site", code)
    assert done.returncode == 1
    assert message in done.stderr
    assert NAME in done.stderr


def test_a_library_of_another_abi_is_refused(tmp_path: Path) -> None:
    """Only the first number of what the entry returns is read."""
    text = "static int other[64] = {99}; void* trtllm_lite_plugin(void* host) { return host ? other : 0; }"
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "_cpu.so")]
    subprocess.run(command, input=text, text=True, check=True)
    with pytest.raises(EngineError, match=f"acme 2.0 .* version 99 of the ABI .* version {_core.plugin_abi}, which"):
        _core.load_plugin(str(tmp_path / "_cpu.so"), "acme", "2.0", "")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_for_gpus_on_emulated_threads(dtype: torch.dtype) -> None:
    rows, hidden, threads = 3, 264, 32
    x, alpha = (3 * torch.randn(rows, hidden)).to(dtype), torch.tensor([0.7])
    weight, bias = torch.randn(2, hidden)
    y = torch.full((rows, hidden), POISON, dtype=dtype)
    defines = {"TL_HIDDEN": hidden, "TL_THREADS": threads, "TL_FP16": int(dtype == torch.float16)}
    source = EXAMPLE / "src" / "dynamic_tanh" / "plugins" / "dynamic_tanh" / "cuda.cuh"
    kernel = Emulator().kernel(str(source), "dynamic_tanh", threads, 0, defines)
    kernel(y, x, alpha, weight, bias.contiguous(), grid=rows)
    assert_rows_close(y, torch.tanh(alpha.double() * x.double()) * weight.double() + bias.double())
