"""Where adapters are added to a network: beside every projection; nothing changes without them."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.cuda_engines import save_cuda_engine
from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.scenario import Sequences
from trtllm_lite import _core
from trtllm_lite.builder import BuildLimits
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands
from trtllm_lite.builder.lora import check_lora, check_lora_of_quantized
from trtllm_lite.builder.module_options import check_module
from trtllm_lite.builder.passes.lora import Projection, add_low_rank, projections_of
from trtllm_lite.builder.pipeline import fuse_into_plugins, run_passes
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS, DEVICE_ALIGNMENT
from trtllm_lite.engine.format import align
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.network.graph import MODULES, note_modules
from trtllm_lite.network.module_kinds import module_kind
from trtllm_lite.network.module_rows import ModuleRows
from trtllm_lite.plugins.schema import DOMAIN

ROWS = ModuleRows("model.layers.7.self_attn.q_proj", ((0, 8, 1),), 1, 0)
LIMITS = {"max_batch_size": 4, "max_input_len": 16, "max_seq_len": 32, "max_num_tokens": 16}
SEVEN = [
    *(f"attention.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
]


def with_lora(variant: str, max_rank: int = 8):
    return fuse_into_plugins(network(variant), "auto", BuildLimits(**LIMITS, max_lora_rank=max_rank))


@pytest.mark.parametrize("variant", ["llama", "qwen2", "mlp_bias", "phi3", "gemma2"])
def test_every_projection_has_a_part_of_its_widths(variant: str) -> None:
    fused = with_lora(variant)
    projections = projections_of(network(variant))
    assert list(projections) == [f"layers.{layer}.{name}" for layer in range(2) for name in SEVEN]
    assert set(fused.lora_projections) == {one.rows for one in projections.values()}
    number = 0
    for node in nodes_of(fused.graph, "LowRank", DOMAIN):
        assert attribute(node, "first_part") == number
        ends = [attribute(node, f"{which}_end") for which in ("first", "second", "third")]
        parts = fused.lora_projections[number : number + attribute(node, "num_parts")]
        assert np.diff([0, *ends[: len(parts)]]).tolist() == [part.num_rows for part in parts]
        number += len(parts)
    assert number == len(fused.lora_projections)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "mlp_bias", "act_order", "phi3"])
def test_without_adapters_nothing_changes(variant: str) -> None:
    original = network(variant)
    adapted = ir.Model(with_lora(variant).graph, ir_version=original.ir_version)
    state = Sequences(VARIANTS[variant], num_seqs=2)
    for lens in ([5, 1], [1, 1]):
        expected, actual = state.step([original, adapted], lens)
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_rows_of_the_last_layer_are_those_of_logits() -> None:
    fused = with_lora("llama")
    read = {str(node.name): "logits_indices" in operands(node) for node in nodes_of(fused.graph, "LowRank", DOMAIN)}
    assert [name for name, gathered in read.items() if gathered] == [
        f"layers.1.{name}.lora" for name in ("attention.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    ]


def test_adapters_see_columns_in_the_models_order() -> None:
    fused = with_lora("act_order")
    for node in nodes_of(fused.graph, "LowRank", DOMAIN):
        producer = operands(node)["x"].producer()
        assert producer is not None
        assert producer.op_type != "GatherColumns"
        assert dims(operands(node)["x"]) is not None


def test_networks_whose_projections_are_in_no_product_are_refused() -> None:
    fused, _ = run_passes(network("llama"))
    with pytest.raises(BuildError, match=r"adapters cannot reach layers\.7\.attention\.q_proj"):
        add_low_rank(fused.graph, {"layers.7.attention.q_proj": Projection("layers.7.attention.q_proj", 8, ROWS)}, 8)
    with pytest.raises(BuildError, match="adapters cannot reach any projection"):
        add_low_rank(fused.graph, {}, 8)


def test_projections_of_which_a_module_is_unknown_are_refused() -> None:
    model = network("llama")
    known = {name: one.rows for name, one in projections_of(model).items() if not name.endswith("1.attention.k_proj")}
    note_modules(model, known)
    with pytest.raises(BuildError, match=r"adapters cannot reach layers\.1\.attention\.q_proj, layers\.1\.att"):
        fuse_into_plugins(model, "auto", BuildLimits(**LIMITS, max_lora_rank=8))


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (None, BuildError, "of an older trtllm_lite.*convert the model again"),
        ("[]", EngineError, r"expected an object, found \[\]"),
        ('{"layers.0.attention.q_proj": {"module": "q"}}', EngineError, "missing: period, repeats, runs"),
        (
            '{"layers.0.attention.q_proj": {"module": "q", "runs": [[0, -1, 1]], "repeats": 1, "period": 0}}',
            EngineError,
            "expected rows of the module 'q'",
        ),
    ],
)
def test_checkpoints_that_do_not_say_their_modules_are_refused(
    said: str | None, error: type[Exception], message: str
) -> None:
    model = network("llama")
    del model.metadata_props[MODULES]
    if said is not None:
        model.metadata_props[MODULES] = said
    with pytest.raises(error, match=message):
        projections_of(model)


@pytest.mark.parametrize("value", [-8, 7, 520, "8", True])
def test_ranks_are_multiples_of_eight_up_to_the_most(value: object) -> None:
    with pytest.raises(BuildError, match="max_lora_rank is"):
        BuildLimits.for_model(64, max_lora_rank=value, **LIMITS)


def test_what_has_no_kernels_or_other_activations_is_refused() -> None:
    none, some, ordered = (BuildLimits(**LIMITS, max_lora_rank=rank, deterministic=rank == 16) for rank in (0, 8, 16))
    check_lora(none, "tensorrt", ["sm_90"])
    check_lora(some, "cuda", ["sm_90", "sm_80"])
    check_lora(ordered, "cpu", ["cpu"])
    with pytest.raises(BuildError, match=r"max_lora_rank is 8 for sm_90: .* tensorrt .* --backend native"):
        check_lora(some, "tensorrt", ["sm_90"])
    with pytest.raises(BuildError, match="max_lora_rank is 16 for sm_90 and deterministic is given"):
        check_lora(ordered, "cuda", ["sm_90"])
    for qformat in ("int4_awq", "w4a8_awq", "int8_sq", "fp8,int4_awq"):
        check_lora_of_quantized(0, qformat)
        with pytest.raises(BuildError, match="changes the activations"):
            check_lora_of_quantized(8, qformat)
    for qformat in ("full_prec", "int8_wo", "int4_gptq", "fp8_rowwise"):
        check_lora_of_quantized(8, qformat)


def test_heads_that_draft_take_no_adapters() -> None:
    graph = network("llama").graph
    check_module(module_kind(graph), BuildLimits(max_lora_rank=8), {}, "native")
    graph.inputs.append(ir.val("features", ir.DataType.FLOAT, ["batch", "seq", 36]))
    check_module(module_kind(graph), BuildLimits(), {}, "native")
    with pytest.raises(BuildError, match=r"max_lora_rank is 8: a head .*EAGLE-3"):
        check_module(module_kind(graph), BuildLimits(max_lora_rank=8), {}, "native")


@pytest.mark.usefixtures("no_machine_code")
def test_engines_for_gpus_say_what_their_slots_take(tmp_path: Path) -> None:
    engine = save_cuda_engine(tmp_path, max_lora_rank=8)
    lora, plan = engine.manifest.lora, engine.plan
    assert lora is not None
    slots = [tensor for tensor in plan.tensors if tensor.kind == "adapter"]
    assert len(slots) == 3 * 4 * 2  # matrices and ranks of four products in two layers
    sizes = [tensor.max_bytes(plan.symbols) // DEFAULT_MAX_LORAS for tensor in slots]
    assert lora.slot_bytes == sum(align(size, DEVICE_ALIGNMENT) for size in sizes)
    assert plan.symbols["adapter_stride"] * DEVICE_ALIGNMENT == lora.slot_bytes
    ends = [tensor.offset + size for tensor, size in zip(slots, sizes, strict=True)]
    assert all(end <= tensor.offset for end, tensor in zip(ends, slots[1:], strict=False))
    assert _core.adapter_shapes(_core.Engine(str(tmp_path / "engine" / "rank0.engine")))[0] == 8
