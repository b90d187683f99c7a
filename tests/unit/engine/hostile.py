"""A hand-made GPU engine that has everything a page can show, with HTML markup in every free-text field."""

from dataclasses import replace
from pathlib import Path

from tests.unit.engine.samples import MANIFEST, MODEL, caches
from tests.unit.engine.samples import plan as samples_plan
from tests.unit.engine.test_outline import gpu_plan
from trtllm_lite.common.vocabulary import TEXT_ENCODER
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE
from trtllm_lite.engine.manifest import Accuracy, CacheGroup, Fusion, Tactic, Target
from trtllm_lite.engine.provenance import Material, write_provenance
from trtllm_lite.engine.writer import EngineContent, write_engine

SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 2'>"
CLOSING = '"></title></style><script>window.hacked = 3</script>'
REASON = "fastest on NVIDIA H200: 8 rows 12.5 us (13.75 us by cublaslt); 64 rows 77.25 us"


def write_hostile(directory: Path) -> Path:
    """Write the engine with provenance into ``directory``; returns ``directory``."""
    directory.mkdir()
    plan = gpu_plan()
    kernels = tuple(replace(kernel, name=kernel.name + SCRIPT) for kernel in plan.kernels)
    tensors = tuple(replace(tensor, name=f"{IMAGE}.{tensor.name}") for tensor in plan.tensors)
    plan = replace(plan, kernels=kernels, tensors=tensors)
    (full,) = MANIFEST.kv_cache.groups
    windowed = CacheGroup("window", "window", 32, caches((1, 2), "float32", [1]))
    groups = (replace(full, name="full" + CLOSING), windowed)
    tactics = tuple(
        Tactic(f"linear {n} x 4{SCRIPT} of decode_4 (sm_90a)", f"tokens {n}, norm 0, out 4", f"fits{IMAGE}; {REASON}")
        for n in (9, 100, 20)
    )
    rules = (Tactic(f"attend {n} of decode_4 (sm_90a)", "warps 4", "it fits") for n in range(9))
    manifest = replace(
        MANIFEST,
        producer="trtllm_lite " + CLOSING,
        target=Target("cuda", ("sm_90a",)),
        model=replace(MODEL, architecture=SCRIPT, family="\x1b[2J\u202e" + IMAGE, generation={SCRIPT: 1}),
        kv_cache=replace(MANIFEST.kv_cache, groups=groups),
        files={"tokenizer.json": SCRIPT},
        fusions=(
            *(Fusion("merge" + SCRIPT, f"layers.{n}.a{IMAGE}", False, f"layers.{n}.b is read") for n in range(5)),
            Fusion("linear", "layers.0", True, ""),
        ),
        qformat=IMAGE,
        tactics=(*tactics, *rules),
        expansions=(Tactic("w" + SCRIPT, "bfloat16", CLOSING),),
        accuracy=Accuracy(SCRIPT, 100, 9.5, 9.25, 0.01, 0.97),
    )
    cubins = {key: key.encode() for kernel in plan.kernels for key in kernel.cubins.values()}
    write_engine(directory / ENGINE_FILE, EngineContent((), plan.to_json(), manifest.to_json(), cubins=cubins))
    (directory / CONFIG_FILE).write_text(manifest.to_json())
    (directory / "tokenizer.json").write_text("{}")
    options = {"build": {"max_batch_size": 2, "name": SCRIPT}}
    write_provenance(directory, options, [Material(IMAGE, {"sha256": CLOSING})], {"numpy": SCRIPT})
    encoder = replace(
        MANIFEST, model=replace(MODEL, architecture=SCRIPT), modules=(replace(MANIFEST.module, kind=TEXT_ENCODER),)
    )
    (directory / TEXT_ENCODER).mkdir()
    write_engine(directory / TEXT_ENCODER / ENGINE_FILE, EngineContent((), samples_plan().to_json(), encoder.to_json()))
    return directory
