"""Quantized Hugging Face checkpoints: the network has exactly their weights, and engines compute with them."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file

from tests.models import tiny_model
from tests.onnx_runner import OnnxRunner
from tests.quantized_writer import LAYOUTS, Layout, gptq, matrices, with_act_order, write_quantized
from tests.tolerances import assert_close
from tests.unit.builder.plan_interpreter import calls
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.mapping import open_source
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError, ConvertError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.quantize.formats import FORMATS
from trtllm_lite.quantize.network import quantized_as
from trtllm_lite.runtime import ModelRunner

SIZES = {
    **{"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False},
}


def written(directory: Path, layout: Layout) -> torch.nn.Module:
    """Write a checkpoint and convert it; returns the model with dequantized weights."""
    model = write_quantized(tiny_model("llama", **SIZES), directory / "model", layout)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return model


def source_name(node: str) -> str:
    """The layer whose matrix the Transpose ``node`` of a network takes."""
    path = node.removesuffix(".transpose").replace("attention", "self_attn")
    return path if path == "lm_head" else f"model.{path}"


def matrices_of_network(checkpoint: Path) -> dict[str, np.ndarray]:
    """The matrices of the network, by layer name: the part of the network that depends on no input.

    onnxruntime computes them, or onnx's own evaluator if they have a type that onnxruntime lacks.
    """
    model = onnx.load(checkpoint / "network.onnx")
    known, kept, names = {tensor.name for tensor in model.graph.initializer}, [], {}
    for node in model.graph.node:
        if node.op_type == "Transpose" and list(node.attribute[0].ints) == [1, 0]:
            names[node.input[0]] = source_name(node.name)
        if known.issuperset(node.input):
            known.update(node.output)
            kept.append(node)
    outputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
    needed = {name for node in kept for name in node.input} | set(names)
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    graph = onnx.helper.make_graph(kept, "matrices", [], outputs, constants)
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    found = ReferenceEvaluator(part) if has_fp4(model) else onnxruntime.InferenceSession(part.SerializeToString())
    return dict(zip(names.values(), found.run(None, {}), strict=True))


def has_fp4(model: onnx.ModelProto) -> bool:
    return any(tensor.data_type == onnx.TensorProto.FLOAT4E2M1 for tensor in model.graph.initializer)


def matrices_of_formats(checkpoint: Path) -> dict[str, np.ndarray]:
    """The builder's matrices, dequantized, by layer name."""
    found = {}
    for node in load_network(checkpoint).graph:
        if node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == [1, 0]:
            matrix = next(m for known in FORMATS if (m := known.recognise(node.inputs[0])))
            tensors = {name: matrix.tensor(name).numpy() for name in matrix.operands}
            found[source_name(str(node.name))] = matrix.format.dequantize(tensors)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_matrices_are_exact(name: str, tmp_path: Path) -> None:
    """The matrices of the network, of the builder, and of an expanded checkpoint are equal."""
    layout = LAYOUTS[name]
    expected = matrices(written(tmp_path, layout))
    source = open_source(str(tmp_path / "model"))
    ways = {
        "network": matrices_of_network(tmp_path / "checkpoint"),
        "formats": matrices_of_formats(tmp_path / "checkpoint"),
        "expanded": {layer: source.read(f"{layer}.weight") for layer in expected},
    }
    for way, found in ways.items():
        assert set(found) == set(expected), way
        for layer, matrix in expected.items():
            blocks = source.blocks.get(f"{layer}.weight")
            if way != "expanded" and blocks is not None and blocks.order:
                matrix = matrix[:, source.read(f"{layer}.weight/input_order")]
            if way == "expanded" and layout.factors is not None and f"{layer}.weight" in source.blocks:
                matrix = matrix * layout.factors(matrix.shape[1]).numpy()
            np.testing.assert_array_equal(found[layer], matrix, f"{way}: {layer}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_engines_compute_what_the_checkpoint_means(name: str, tmp_path: Path) -> None:
    """A prompt, then steps of one token, compared with transformers on dequantized weights and rounded activations."""
    layout = LAYOUTS[name]
    model = written(tmp_path, layout)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_batch_size=2, max_input_len=64, max_seq_len=96)
    prompt = np.random.default_rng(1).integers(3, model.config.vocab_size, 40).tolist()
    options = {"end_id": -1, "temperature": 0, "return_dict": True, "output_generation_logits": True}
    result = ModelRunner.from_dir(tmp_path / "engine").generate([prompt], max_new_tokens=8, **options)
    tokens = result["output_ids"][0, 0, 40:48].tolist()
    ids = torch.tensor([prompt + tokens[:-1]])
    with torch.no_grad():
        expected = model(ids).logits[0].numpy()
    found_and_wanted = [(result["generation_logits"][0][0], expected[39:])]
    if not has_fp4(onnx.load(tmp_path / "checkpoint" / "network.onnx", load_external_data=False)):
        found_and_wanted.append((OnnxRunner(tmp_path / "checkpoint", 1, 64).step([ids[0].numpy()])[0], expected))
    for found, wanted in found_and_wanted:
        if layout.round is None:
            assert_close(found, wanted)
        else:  # another order of summation may round to a neighbouring step, a small error beside the rounding itself
            assert np.std(found - wanted) < 0.3 * np.std(wanted - without_rounding(model, ids)[-len(wanted) :])


def without_rounding(model: torch.nn.Module, ids: torch.Tensor) -> np.ndarray:
    plain = copy.deepcopy(model)
    for layer in plain.modules():
        layer._forward_pre_hooks.clear()
    with torch.no_grad():
        return plain(ids).logits[0].numpy()


def test_checkpoints_say_how_they_are_quantized(tmp_path: Path) -> None:
    written(tmp_path, LAYOUTS["modelopt fp8"])
    assert quantized_as(load_network(tmp_path / "checkpoint")) == "modelopt FP8"
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "expanded", dequantize=True)
    expanded = load_network(tmp_path / "expanded")
    assert quantized_as(expanded) == "full_prec"
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "tiles", LAYOUTS["compressed-tensors fp8 in tiles"])
    assert open_source(str(tmp_path / "tiles")).quantization == "compressed-tensors float-quantized, weights only"
    assert not [node for node in expanded.graph if node.op_type.endswith("Linear")]


def test_activations_are_rounded_once_for_all_that_read_them(tmp_path: Path) -> None:
    written(tmp_path, LAYOUTS["compressed-tensors fp8"])
    rounding = [node.name for node in load_network(tmp_path / "checkpoint").graph if node.op_type == "QuantizeLinear"]
    assert rounding == [
        f"layers.{layer}.{path}.x.quantized"
        for layer, paths in enumerate((["attention.q_proj", "attention.o_proj", "mlp.gate_proj", "mlp.down_proj"],) * 2)
        for path in paths
        if (layer, path) != (1, "mlp.down_proj")
    ]


def test_products_that_read_features_in_one_order_share_them(tmp_path: Path) -> None:
    written(tmp_path, LAYOUTS["gptq with act-order"])
    nodes = [str(node.name) for node in load_network(tmp_path / "checkpoint").graph]
    first = [name for name in nodes if name.startswith("layers.0.") and name.endswith(".in_order")]
    assert [name.split(".")[-3] for name in first] == ["q_proj", "o_proj", "gate_proj", "down_proj"]


@pytest.mark.parametrize("name", ["gptq with act-order", "compressed-tensors int4 with act-order"])
def test_engines_keep_integers_whose_groups_lie_apart(name: str, tmp_path: Path) -> None:
    written(tmp_path, LAYOUTS[name])
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_batch_size=1, max_input_len=8, max_seq_len=16)
    plan = read_engine(tmp_path / "engine" / "rank0.engine").plan
    products = [call for call in calls(plan) if call.op in ("Linear", "GatedLinear")]
    dtypes = [plan.tensors[call.operands["weight"]].dtype for call in products]
    four_bits = "int4" if name.startswith("gptq") else "uint4"
    # The last down projection and the LM head are not quantized.
    assert dtypes == [four_bits] * 7 + ["float32"] * 2
    assert [call.op for call in calls(plan)].count("GatherColumns") == 7


def test_queries_and_keys_of_different_orders(tmp_path: Path) -> None:
    """Tools give matrices that read the same features one column order; an engine merges them into one product."""
    layout = LAYOUTS["gptq with act-order"]
    by_rows = with_act_order(gptq(4, 64, True, 1), 64, "qweight", "g_idx", 0, seed_axis=0)
    written(tmp_path, replace(layout, quantize=by_rows))
    with pytest.raises(
        BuildError, match=r"groups of columns in different orders \(act-order\): convert with --dequant"
    ):
        build_engine(tmp_path / "checkpoint", tmp_path / "engine", max_batch_size=1, max_input_len=8, max_seq_len=16)


def test_settings_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Older checkpoints of ModelOpt keep their settings in hf_quant_config.json."""
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS["modelopt fp8"])
    edit(tmp_path, lambda settings: settings.clear())
    settings = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    assert open_source(str(tmp_path / "model")).quantization == "modelopt FP8"


def edit(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the settings of a written checkpoint."""
    path = directory / "model" / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))


def replace_tensor(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replace or remove a tensor of a written checkpoint."""
    path = directory / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors if tensor is None else {**tensors, name: tensor}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        ("modelopt fp8", {"quant_method": None}, r"in a way without a name \(quant_method\), expected one of"),
        ("modelopt fp8", {"quant_method": "unheard"}, "quantized with 'unheard', expected one of .*modelopt"),
        ("modelopt fp8", {"quant_algo": "W4A8_AWQ"}, "quant_algo: expected one of FP8, .*, found W4A8_AWQ"),
        ("fp8 in tiles", {"weight_block_size": [128, 0]}, "weight_block_size: expected two positive numbers"),
        ("fp8 in tiles", {"activation_scheme": "x"}, "activation_scheme: expected one of static, dynamic, found 'x'"),
        ("gptq", {"bits": 5}, r"\(convert the unquantized model.*\):\n .*bits: expected 2 or 3 or 4 or 8, found 5"),
        ("gptq", {"quant_method": "hqq"}, "quantized with hqq, which is not read: its zero points are fractions"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format: expected 'gptq' or 'gptq_v2', found 'marlin'"),
        ("gptq", {"format": "gptq_v2", "checkpoint_format": "gptq"}, "format: contradicts checkpoint_format"),
        ("gptq", {"method": "awq"}, "method: contradicts quant_method: 'awq' and 'gptq'"),
        ("gptq", {"adapter": {"name": "lora"}}, "adapter: .* is not mapped"),
        ("awq", {"version": None, "format": "gemv_fast"}, "version: expected 'gemm' or 'GEMM', found 'gemv_fast'"),
        ("compressed-tensors int8", {"sparsity_config": {"format": "sparse-24"}}, "format 'dense', found 'sparse-24'"),
        ("gptq", {"dynamic": {"+:.*up_proj": {"bits": 8}}}, "dynamic: settings of single layers are not supported"),
        ("awq", {"version": "gemv"}, "version: expected 'gemm' or 'GEMM', found 'gemv'"),
        ("auto-round", {"packing_format": "auto_round"}, "packing_format: expected one of auto_round:auto_gptq"),
        ("auto-round", {"extra_config": {"x": {"bits": 8}}}, "extra_config: layers with other bits"),
        ("compressed-tensors int4", {"format": "int-quantized"}, "layers.*symmetric int4 by group in the format"),
        ("modelopt fp8", {"rotation": 1}, "quantization_config.rotation: 1 is not mapped"),
        ("compressed-tensors int8", {"transform_config": {"a": 1}}, "transform_config: .* is not mapped"),
        ("compressed-tensors int8", {"format": "sparse"}, r"layers.0.\w+.\w+: weights are .* format 'sparse'"),
        ("compressed-tensors int8", {"config_groups": {"g": {"targets": ["re:(a+)+"]}}}, "repeated groups"),
        ("compressed-tensors int8", {"config_groups": []}, "config_groups: expected groups of layers"),
    ],
)
def test_settings_that_are_not_supported(layout: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS[layout])
    edit(tmp_path, lambda old: old.update(settings))
    with pytest.raises(ConvertError, match=message):
        open_source(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        (
            "gptq",
            {"format": "gptq", "checkpoint_format": "gptq", "method": "gptq", "pack_impl": "gpu", "meta": {"x": 1}},
        ),
        ("gptq", {"quant_method": None, "method": "gptq", "offload_to_disk": True, "gc_mode": "interval"}),
        ("gptq v2 with zero points", {"checkpoint_format": None, "format": "gptq_v2"}),
        ("awq", {"version": None, "format": "gemm", "checkpoint_format": "gemm", "method": "awq", "pack_impl": "cpu"}),
        ("fp8 in tiles", {"fmt": "float8_e4m3fn"}),
        ("compressed-tensors int8", {"sparsity_config": {"format": "dense", "targets": [], "global_sparsity": 0.1}}),
        ("compressed-tensors int8", {"sparsity_config": {}}),
    ],
)
def test_settings_that_say_the_same(layout: str, settings: dict[str, Any], tmp_path: Path) -> None:
    expected = matrices(write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS[layout]))
    edit(tmp_path, lambda old: old.update(settings))
    source = open_source(str(tmp_path / "model"))
    for layer, matrix in expected.items():
        np.testing.assert_array_equal(source.read(f"{layer}.weight"), matrix)


@pytest.mark.parametrize("name", ["gptq", "compressed-tensors int4"])
@pytest.mark.parametrize("ordered", [True, False])
def test_orders_may_be_said_by_booleans(name: str, ordered: bool, tmp_path: Path) -> None:
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS[name])
    if name == "gptq":
        edit(tmp_path, lambda old: old.update(desc_act=ordered))
    else:
        edit(tmp_path, lambda old: old["config_groups"]["group_0"]["weights"].update(actorder=ordered))
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")


def test_zero_points_of_symmetric_weights_may_be_stored_as_they_are(tmp_path: Path) -> None:
    """GPTQModel's second format stores zero points unchanged, and some files do not name their format."""
    layout = Layout(LAYOUTS["gptq"].settings, gptq(4, 64, True, 0))
    expected = matrices(written(tmp_path, layout))
    for layer, matrix in matrices_of_network(tmp_path / "checkpoint").items():
        np.testing.assert_array_equal(matrix, expected[layer])


def test_biases_that_are_zero_may_be_there(tmp_path: Path) -> None:
    """GPTQ's tools store zero biases for layers without a bias."""
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS["gptq"])
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    biases = {f"{UP}.bias": torch.zeros(192), f"{UP.replace('up', 'gate')}.bias": torch.zeros(192)}
    save_file(tensors | biases, path, metadata={"format": "pt"})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    biases[f"{UP}.bias"][7] = 0.5
    save_file(tensors | biases, path, metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=r"unused \(1\): model\.layers\.0\.mlp\.up_proj\.bias"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "other")


UP = "model.layers.0.mlp.up_proj"
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("layout", "name", "tensor", "message"),
    [
        ("modelopt fp8", "input_scale", None, r"expected input_scale .* \[\] or \[1\], found none"),
        ("modelopt fp8", "input_scale", torch.tensor(float("nan")), "expected input_scale to be a positive number"),
        ("modelopt fp8", "weight_scale", torch.ones(7), r"expected weight_scale .* or \[192\] .*, found float32 \[7\]"),
        ("modelopt fp8", "weight_scale", None, r"found model.layers.0.mlp.up_proj.weight \(float8_e4m3fn\)"),
        (
            "fp8 in tiles",
            "weight_scale_inv",
            torch.ones(3, 1),
            r"weight_scale_inv .* \[2, 1\] .* float32 \[3, 1\]",
        ),
        ("modelopt mxfp4", "weight_scale", torch.full((192, 4), 255, dtype=torch.uint8), "is not a number"),
        ("modelopt nvfp4", "weight_scale_2", torch.tensor(0.0), "weight_scale_2 to be a positive number, found 0"),
        ("modelopt nvfp4", "weight_scale", torch.ones(192, 8), "expected weight_scale to be of float8_e4m3fn"),
        ("gptq", "qzeros", torch.zeros(2, 24, dtype=torch.int32), "expected zero points of 8"),
        ("gptq", "g_idx", torch.arange(128, dtype=torch.int32) // 100, "each of 2 groups the same number"),
        ("gptq", "g_idx", torch.arange(128, dtype=torch.int32).flip(0) // 32, "each of 2 groups the same number"),
        (
            "compressed-tensors int4",
            "weight_scale",
            torch.ones(192, 3),
            "rows of 128 weights cannot be divided into 3 groups of equal length",
        ),
        ("awq", "qzeros", None, r"expected qzeros to have the shape \[2, 24\], found none"),
        ("modelopt int8", "weight", torch.zeros(192, 0, dtype=torch.int8), r"above 0, found int8 \[192, 0\]"),
        ("awq", "qweight", torch.zeros(128, 24), "expected qweight to be of int32"),
        ("awq", "qzeros", torch.zeros(2, 24), "expected qzeros to be of int32, found float32"),
        ("gptq", "qzeros", torch.zeros(2, 24, dtype=torch.int8), "expected qzeros to be of int32, found int8"),
        (
            "compressed-tensors int4",
            "weight_packed",
            torch.zeros(192, 16, dtype=torch.int8),
            "expected weight_packed to be of int32, found int8",
        ),
        (
            "modelopt awq",
            "pre_quant_scale",
            torch.ones(64),
            r"pre_quant_scale .* \[128\], found float32 \[64\]",
        ),
        ("compressed-tensors int4", "weight_shape", torch.tensor([9, 9]), r"weight_packed to have the shape \[9, 2\]"),
        ("modelopt int8", "weight", torch.zeros(192, 128), "expected weight to be of int8 with 2 dimensions above 0"),
        ("bitsandbytes nf4", NF4_STATE, None, "expected a tensor weight.quant_state.bitsandbytes__nf4 beside weight"),
        ("bitsandbytes nf4", NF4_STATE, torch.tensor(list(b"{}"), dtype=torch.uint8), "shape .* and blocksize in"),
        ("bitsandbytes nf4", "weight.absmax", torch.ones(7), r"weight.absmax to have the shape \[384\], found \[7\]"),
        ("bitsandbytes int8", "SCB", torch.ones(7), r"SCB to have the shape \[192\], found \[7\]"),
        ("modelopt int8", "weight", torch.zeros(64, 128, dtype=torch.int8), r"weight_scale .*, found float32 \[192\]"),
    ],
)
def test_layers_that_are_damaged(
    layout: str, name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS[layout])
    replace_tensor(tmp_path, f"{UP}.{name}", tensor)
    with pytest.raises(ConvertError, match=message) as caught:
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert UP in str(caught.value)


def test_integers_need_settings(tmp_path: Path) -> None:
    write_quantized(tiny_model("llama", **SIZES), tmp_path / "model", LAYOUTS["modelopt int8"])
    edit(tmp_path, lambda settings: settings.clear())
    with pytest.raises(ConvertError, match=r"down_proj.weight \(int8\), .* more; the model has no quantization_config"):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
