import json

import pytest

from tests.unit.engine.samples import MANIFEST, plan
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.plan import Plan, PlanTensor
from trtllm_lite.errors import EngineError


def test_round_trips() -> None:
    assert Plan.from_json(plan().to_json()) == plan()
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(MANIFEST.to_json(indent=2)) == MANIFEST


def test_the_json_is_the_documented_one() -> None:
    instruction = json.loads(plan().to_json())["programs"][0]["instructions"][0]
    assert instruction == {
        "kind": "call",
        "op": "RmsNorm",
        "operands": {"x": 0, "weight": 1, "y": 3},
        "attributes": {"epsilon": 1e-6},
    }
    fusion = json.loads(MANIFEST.to_json())["fusions"][0]
    assert fusion == {"pass": "merge_qkv", "site": "layers.0.attention", "fused": True, "reason": ""}


def test_bytes_at_the_bound_of_every_symbol() -> None:
    tensor = PlanTensor("x", "bfloat16", ("num_tokens", 3), "row_major", "arena", 0)
    assert tensor.max_bytes({"num_tokens": 5}) == 5 * 3 * 2


@pytest.mark.parametrize("key", ["symbols", "arena_bytes", "tensors", "outputs", "programs"])
def test_a_missing_key_of_a_plan(key: str) -> None:
    raw = json.loads(plan().to_json())
    del raw[key]
    with pytest.raises(EngineError, match=f"plan: .*missing: {key}"):
        Plan.from_json(json.dumps(raw))


def test_an_unknown_key_of_a_manifest() -> None:
    raw = json.loads(MANIFEST.to_json())
    raw["model"]["surprise"] = 1
    with pytest.raises(EngineError, match=r"manifest\.model: .*unknown: surprise"):
        Manifest.from_json(json.dumps(raw))
