"""Where a model stores the features of tokens, and where a draft head reads them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.eagle import CONFIG, LAYERS, NUM_LAYERS, ODD
from tests.models import tiny_config
from tests.unit.builder.structure import find, operators, run_until
from trtllm_lite.builder import checkpoint_of_shape
from trtllm_lite.builder.graph import dims, operands
from trtllm_lite.convert import open_model_config
from trtllm_lite.convert.families import llama
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.network.decoder import build_network
from trtllm_lite.network.drafting import Features
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.module_kinds import module_kind
from trtllm_lite.network.weight_expression import SourceTensor

HIDDEN = ODD.hidden


@pytest.fixture
def head(tmp_path: Path) -> ir.Model:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = open_model_config(tmp_path / "config.json")
    return checkpoint_of_shape(model.config, model.network).model


@pytest.fixture
def model(tmp_path: Path) -> ir.Model:
    """A Llama that stores features."""
    config = tiny_config("llama", num_hidden_layers=NUM_LAYERS).to_dict()
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    made = open_model_config(tmp_path / "config.json")
    decoder = llama.read_model(ConfigFields(config))
    linears = tuple(Linear(SourceTensor(f"fc.{layer}", (HIDDEN, HIDDEN))) for layer in LAYERS)
    network = build_network(replace(decoder, features=Features(LAYERS, linears)), ir.DataType.FLOAT)
    tensors = {
        weight.name: ir.ExternalTensor("none", None, None, weight.dtype, shape=ir.Shape(weight.shape), name=weight.name)
        for weight in network.weights
    }
    return checkpoint_of_shape(made.config, network.bind(tensors, "test", "1")).model


def test_a_model_stores_the_features_of_every_token(model: ir.Model) -> None:
    fused, decisions = run_until("features", model)
    assert [decision.fused for decision in decisions] == [True]
    assert operators(fused)["PagedStore"] == 1
    assert operators(fused)["PagedLoad"] == 0
    store = operands(find(fused, "features.store"))
    assert dims(store["x"]) == ("num_tokens", HIDDEN)
    assert dims(store["cache"]) == ("num_blocks", "tokens_per_block", HIDDEN)
    assert "indices" not in store
    assert module_kind(model.graph).name == "decoder"


def test_a_head_reads_features_and_stores_those_of_rows_with_logits(head: ir.Model) -> None:
    fused, _ = run_until("features", head)
    load, store = (operands(find(fused, f"features.{what}")) for what in ("load", "store"))
    assert load["cache"] is store["cache"]
    assert dims(store["x"]) == ("num_logits", HIDDEN)
    assert store["indices"].name == "logits_indices"
    assert find(fused, "layers.0.attention.attention").attributes["first_position"].value == 1
    assert [str(value.name) for value in fused.graph.outputs][:2] == ["logits", "features_out"]
    assert module_kind(head.graph).name == "drafting_head"
    # The MLP computes only rows whose logits are wanted.
    assert dims(find(fused, "layers.0.mlp.down_proj").outputs[0]) == ("num_logits", HIDDEN)


def test_other_networks_stay() -> None:
    _, decisions = run_until("features", "llama")
    assert not decisions


@pytest.mark.parametrize(("first", "reason"), [(0, "the mask has no known form"), (2, None)])
def test_the_first_position_comes_from_the_mask(head: ir.Model, first: int, reason: str | None) -> None:
    bound = find(head, "mask.from_1.bound").inputs[1]
    assert bound is not None
    bound.const_value = ir.tensor(np.array(first))
    fused, decisions = run_until("paged_attention", head)
    assert [decision.reason or None for decision in decisions] == [reason]
    if reason is None:
        assert find(fused, "layers.0.attention.attention").attributes["first_position"].value == first
