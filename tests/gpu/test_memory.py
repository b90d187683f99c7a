"""The memory that `plan` predicts is what the driver reports as taken."""

import json
from pathlib import Path

import numpy as np

from trtllm_lite import _core
from trtllm_lite.builder import build_engine, checkpoint_of_shape
from trtllm_lite.convert import open_model_config
from trtllm_lite.runtime.session.device import make_executor

SHAPE = Path(__file__).parents[2] / "configs" / "models" / "llama-3.1-8b.json"
LIMITS = {"max_batch_size": 64, "max_input_len": 2048, "max_seq_len": 4096}


def test_device_memory_is_as_planned(tmp_path: Path) -> None:
    """The tolerance is 5 % after steps of both kinds with all graphs; nothing else may use the GPU meanwhile."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(SHAPE.read_text()) | {"num_hidden_layers": 4}))
    model = open_model_config(config)
    checkpoint = checkpoint_of_shape(model.config, model.network)
    manifest = build_engine(checkpoint, tmp_path / "engine", **LIMITS, target="sm_90", strip_plan=True)
    before = _core.cuda_device_memory()["free"]
    engine = _core.Engine(str(tmp_path / "engine" / "rank0.engine"))
    executor = make_executor(_core, [engine], manifest, num_threads=0, num_blocks=manifest.kv_cache.num_blocks)
    for num_tokens, past in ((2048, 0), (1, 2048)):
        tables = np.arange(128, dtype=np.int32)[None]
        tokens, last = np.ones(num_tokens, np.int32), np.array([num_tokens - 1], np.int32)
        _core.step(executor, tokens, np.array([num_tokens], np.int32), np.array([past], np.int32), tables, last)
    limits = {"max_num_tokens": manifest.limits.max_num_tokens, **LIMITS}
    loop = _core.EventLoop(executor, **limits)
    used = before - _core.cuda_device_memory()["free"]
    memory = manifest.memory
    predicted = memory.weights + memory.kv_cache + memory.workspace
    assert abs(used / predicted - 1) <= 0.05, f"{used:,} bytes used, {predicted:,} predicted"
    loop.shut_down()
