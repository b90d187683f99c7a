"""The structure of GPU plans: which kernels run, in which order, over which memory."""

import re
from itertools import pairwise

import pytest

from tests.unit.builder.cuda_engines import CUDA_VARIANTS, cuda_plan, cuda_shape, lowered
from trtllm_lite.builder.backends import backend_of
from trtllm_lite.builder.cuda.limits import decode_batches
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.job import Tuning
from trtllm_lite.engine.plan import (
    IntArgument,
    LaunchInstruction,
    MatmulInstruction,
    Plan,
    Program,
    TensorArgument,
    TensorMapArgument,
)
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.paged_attention.decode import DecodeItems
from trtllm_lite.plugins.paged_attention.launches import Heads


def _ran(plan: Plan, program: Program) -> list[str]:
    return [
        plan.kernels[instruction.kernel].name if isinstance(instruction, LaunchInstruction) else instruction.kind
        for instruction in program.instructions
    ]


def _program(plan: Plan, name: str) -> Program:
    return next(program for program in plan.programs if program.name == name)


def _touched(instruction: LaunchInstruction | MatmulInstruction) -> set[int]:
    if isinstance(instruction, MatmulInstruction):
        operands = (instruction.x, instruction.weight, instruction.y, instruction.residual, instruction.bias)
    else:
        operands = instruction.args
    maps = {operand.tensor_map.tensor for operand in operands if isinstance(operand, TensorMapArgument)}
    return maps | {operand.tensor for operand in operands if isinstance(operand, TensorArgument)}


def test_a_decode_layer_is_five_kernels() -> None:
    plan = cuda_plan()
    layer = ["qkv_linear", "paged_attention_decode", "linear", "gated_linear", "linear"]
    expected = ["cache_slots", "embedding", "rotary_table", *layer, *layer, "linear", "sample"]
    assert _ran(plan, _program(plan, "decode_2")) == expected


def test_a_mixed_layer_uses_products_of_cublaslt() -> None:
    plan = cuda_plan()
    attention = ["rms_norm", "matmul", "rope_cache", "paged_attention_decode", "paged_attention_prefill"]
    rest = ["matmul", "rms_norm", "matmul", "gate_mul", "matmul"]
    expected = ["cache_slots", "embedding", "rotary_table", *attention, *rest, *attention]
    expected += ["gather_rows", "gather_rows", *rest, "rms_norm", "matmul", "sample"]
    assert _ran(plan, _program(plan, "mixed")) == expected


def test_the_executor_finds_what_it_reads_and_writes_at_one_place_for_all_programs() -> None:
    plan = cuda_plan()
    tensors = {name: plan.tensors[index] for name, index in plan.outputs.items()}
    assert {name: (tensor.kind, tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {
        "logits": ("arena", "float32", ("num_logits", 72)),
        "tokens": ("arena", "int32", ("num_logits",)),
        "logprobs": ("arena", "int32", ("num_logits", 2 + 2 * 20)),
        "sampling_slots": ("state", "int32", ("num_slots", 24 + 4 * 72)),
        "token_masks": ("state", "int32", ("num_seqs", 3)),
    }
    names = [tensor.name for tensor in plan.tensors]
    assert [names.count(name) for name in (*tensors, "last_tokens")] == [1, 1, 1, 1, 1, 1]
    for program in plan.programs:
        assert {*plan.outputs.values(), names.index("last_tokens")} <= _touched(program.instructions[-1])
    largest = cuda_plan(cuda_shape(vocab=50_000))
    slots = largest.tensors[largest.outputs["sampling_slots"]]
    assert slots.shape == ("num_slots", 24 + 4 * (48 + 1024))  # a sequence's tokens, and its optional sampling data


def test_head_norms_keep_rope_out_of_the_product() -> None:
    plan = cuda_plan(CUDA_VARIANTS["qwen3"])
    assert _ran(plan, _program(plan, "decode_1"))[3:6] == ["linear", "rope_cache", "paged_attention_decode"]


def test_attention_of_decode_rows_takes_drafts() -> None:
    kernels = [kernel for kernel, _ in lowered(max_draft_len=2).kernels() if kernel.name == "paged_attention_decode"]
    defines = [dict(kernel.defines) for kernel in kernels]
    assert {(macros["TL_NEW_TOKENS"], macros["TL_ITEM_TOKENS"]) for macros in defines} == {(3, 3)}


@pytest.mark.parametrize(
    ("heads", "head_dim", "num_new_tokens", "expected"),
    [
        ((32, 8), 128, 1, (1, 1, 1)),
        ((32, 8), 128, 5, (5, 1, 3)),  # tokens of an item, items of a sequence, parts of a result
        ((32, 8), 128, 9, (5, 2, 3)),
        ((64, 8), 128, 5, (3, 2, 3)),
        ((64, 8), 64, 9, (5, 2, 5)),
        ((16, 1), 256, 5, (1, 5, 2)),
        ((16, 4), 256, 5, (2, 3, 1)),
        ((8, 1), 512, 1, (1, 2, 1)),  # as if there were drafts
        ((8, 2), 512, 5, (2, 3, 1)),
    ],
)
def test_new_tokens_of_a_sequence_are_few_items(
    heads: tuple[int, int], head_dim: int, num_new_tokens: int, expected: tuple[int, int, int]
) -> None:
    of = Heads(*heads, head_dim, 32, "bfloat16", "bfloat16", 0, head_dim)
    items = DecodeItems.of(of, num_new_tokens)
    parts = items.result_floats(of) // items.part_floats(of)
    assert (items.tokens, items.of_sequence, parts) == expected


def test_residuals_are_added_by_the_product_before_the_norm() -> None:
    products = [step for step in _program(cuda_plan(), "mixed").instructions if isinstance(step, MatmulInstruction)]
    assert [product.residual is not None for product in products] == [False, True, False, True] * 2 + [False]
    assert [product.out_dtype for product in products] == ["bfloat16"] * 8 + ["float32"]


def test_biases_are_rounded_for_cublaslt_only() -> None:
    plan = cuda_plan(CUDA_VARIANTS["qwen2"])
    product = next(step for step in _program(plan, "mixed").instructions if isinstance(step, MatmulInstruction))
    assert product.bias is not None
    assert plan.tensors[product.bias.tensor].dtype == "bfloat16"
    fused = _program(plan, "decode_1").instructions[3]
    assert isinstance(fused, LaunchInstruction)
    vectors = [plan.tensors[index] for index in _touched(fused) if plan.tensors[index].name.endswith("qkv_proj.bias")]
    assert [vector.dtype for vector in vectors] == ["float32"]


def test_windows_are_per_layer() -> None:
    plan = cuda_plan(cuda_shape(layers=3, windows=(5, 0, 3)))
    for name in ("paged_attention_decode", "paged_attention_prefill"):
        launches = [
            step
            for step in _program(plan, "mixed").instructions
            if isinstance(step, LaunchInstruction) and plan.kernels[step.kernel].name == name
        ]
        assert [step.args[-3] for step in launches] == [IntArgument(5), IntArgument(0), IntArgument(3)]


def test_a_cap_is_part_of_the_kernels() -> None:
    for softcap in (0.0, 50.0):
        kernels = [kernel for kernel, _ in lowered(cuda_shape(softcap=softcap)).kernels() if "attention" in kernel.name]
        assert {kernel.name for kernel in kernels} == {"paged_attention_decode", "paged_attention_prefill"}
        assert {dict(kernel.defines)["TL_SOFTCAP"] for kernel in kernels} == {int(softcap > 0)}


@pytest.mark.parametrize("variant", CUDA_VARIANTS)
def test_every_launch_but_the_first_may_start_early(variant: str) -> None:
    for program in cuda_plan(CUDA_VARIANTS[variant]).programs:
        launches = [step for step in program.instructions if isinstance(step, LaunchInstruction)]
        assert launches[0] is program.instructions[0]
        assert [launch.programmatic for launch in launches] == [False, *[True] * (len(launches) - 1)]


def test_programs_cover_the_batch_and_no_more() -> None:
    names = {batch: [program.name for program in cuda_plan(max_batch_size=batch).programs] for batch in (1, 2, 5, 40)}
    assert names == {
        1: ["decode_1", "mixed"],
        2: ["decode_1", "decode_2", "mixed"],
        5: ["decode_1", "decode_2", "decode_4", "decode_8", "mixed"],
        40: ["decode_1", "decode_2", "decode_4", "decode_8", "decode_16", "mixed"],
    }


@pytest.mark.parametrize("num_tokens", [100, 128, 513, 3000])
def test_every_size_of_step_has_its_program(num_tokens: int) -> None:
    plan = cuda_plan(tiled=True, max_batch_size=80, max_num_tokens=num_tokens)
    sizes = [program.max_tokens for program in plan.programs if not program.decode_only]
    assert sizes == sorted(sizes)
    assert sizes[-1] == num_tokens
    assert {64, 128, 256, 512} & set(range(num_tokens)) <= set(sizes)  # each range of sizes uses other kernels
    for program in plan.programs:
        rows = {argument.tensor_map.rows for argument in _maps(program) if _is_arena(plan, argument)}
        # In the last layer, products after attention compute only rows that are sampled from, at most 80.
        assert rows == (set() if program.decode_only else {program.max_tokens, min(program.max_tokens, 80)})


def test_tiled_kernels_multiply_gates() -> None:
    plan = cuda_plan(tiled=True)
    layer = ["rms_norm", "linear_tiled", "rope_cache", "paged_attention_decode", "paged_attention_prefill"]
    expected = ["cache_slots", "embedding", "rotary_table", *layer]
    expected += ["linear_tiled", "rms_norm", "gated_linear_tiled", "linear_tiled"]
    assert _ran(plan, _program(plan, "mixed"))[: len(expected)] == expected


def test_tensor_maps_cover_the_weights() -> None:
    plan = cuda_plan(tiled=True)
    maps = [argument.tensor_map for argument in _maps(_program(plan, "mixed")) if not _is_arena(plan, argument)]
    extents = {plan.tensors[boxed.tensor].name: (boxed.rows, boxed.columns) for boxed in maps}
    assert extents["layers.1.mlp.gate_up_proj.weight"] == (2 * 96, 64)
    assert extents["layers.0.attention.qkv_proj.weight"] == (128, 64)
    assert all(boxed.offset == 0 for boxed in maps)


def _maps(program: Program) -> list[TensorMapArgument]:
    launches = [step for step in program.instructions if isinstance(step, LaunchInstruction)]
    return [argument for step in launches for argument in step.args if isinstance(argument, TensorMapArgument)]


def _is_arena(plan: Plan, argument: TensorMapArgument) -> bool:
    return plan.tensors[argument.tensor_map.tensor].kind == "arena"


def test_batches_are_padded_by_at_most_a_quarter() -> None:
    sizes = decode_batches(2000)
    assert sizes[:4] == (1, 2, 4, 8)
    assert sizes[-2] < 2000 <= sizes[-1]
    assert all(
        smaller < larger <= max(2 * smaller, 8) or larger <= 1.25 * smaller for smaller, larger in pairwise(sizes)
    )
    assert all(decode_batches(size) == sizes[: sizes.index(size) + 1] for size in sizes)


def test_memory_has_room_for_a_padded_batch() -> None:
    symbols = cuda_plan(max_batch_size=70, max_num_tokens=70).symbols
    assert {symbols[name] for name in ("num_tokens", "num_seqs", "num_decode_seqs", "num_logits")} == {80}


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("variant", CUDA_VARIANTS)
def test_operands_do_not_overlap(variant: str, tiled: bool) -> None:
    """Operands of an instruction lie apart; test_cuda_numerics.py shows that values survive until their last use."""
    plan = cuda_plan(CUDA_VARIANTS[variant], tiled=tiled)
    ranges = {
        index: range(tensor.offset, tensor.offset + tensor.max_bytes(plan.symbols))
        for index, tensor in enumerate(plan.tensors)
        if tensor.kind == "arena"
    }
    assert max(memory.stop for memory in ranges.values()) <= plan.arena_bytes
    outputs = set(plan.outputs.values())
    for program in plan.programs:
        for instruction in program.instructions:
            together = [ranges[index] for index in (_touched(instruction) | outputs) & ranges.keys()]
            together.sort(key=lambda memory: memory.start)
            assert all(a.stop <= b.start for a, b in pairwise(together))


def test_everything_is_aligned_for_the_card() -> None:
    plan = cuda_plan(CUDA_VARIANTS["qwen2"])
    assert all(tensor.offset % 256 == 0 for tensor in plan.tensors)
    assert {tensor.offset for tensor in plan.tensors if tensor.kind == "input"} == {0}
    state = sorted((t.offset, t.max_bytes(plan.symbols)) for t in plan.tensors if t.kind == "state")
    assert all(a + size <= b for (a, size), (b, _) in pairwise(state))
    assert sum(state[-1]) <= plan.state_bytes


def test_a_plan_survives_json() -> None:
    for plan in (cuda_plan(CUDA_VARIANTS["qwen2"], targets="sm_80,sm_90"), cuda_plan(tiled=True)):
        assert Plan.from_json(plan.to_json()) == plan


def test_each_architecture_has_its_own_programs_and_kernels() -> None:
    plan = cuda_plan(targets="sm_80,sm_90")
    assert [program.arch for program in plan.programs] == ["sm_80"] * 4 + ["sm_90a"] * 4
    for program in plan.programs:
        kernels = {step.kernel for step in program.instructions if isinstance(step, LaunchInstruction)}
        assert {arch for number in kernels for arch in plan.kernels[number].cubins} == {program.arch}
    limits = {"sm_80": 163 * 1024, "sm_90a": 227 * 1024}
    assert all(kernel.shared_bytes <= limits[arch] for kernel in plan.kernels for arch in kernel.cubins)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_head_size_fits_every_target(target: str, head_dim: int) -> None:
    (device,) = parse_targets([target])
    plan = cuda_plan(cuda_shape(head_dim=head_dim), targets=target)
    assert all(kernel.shared_bytes <= device.shared_bytes for kernel in plan.kernels)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_heads_of_512_fit_targets_with_much_shared_memory(target: str) -> None:
    (device,) = parse_targets([target])
    plan = cuda_plan(cuda_shape(head_dim=512, heads=8, kv_heads=1), targets=target)
    assert all(kernel.shared_bytes <= device.shared_bytes for kernel in plan.kernels)


@pytest.mark.parametrize("target", ["sm_89", "sm_120"])
def test_heads_of_512_are_refused_elsewhere(target: str) -> None:
    with pytest.raises(BuildError, match="a head_dim of 512 needs more shared memory than"):
        cuda_plan(cuda_shape(head_dim=512, heads=8, kv_heads=1), targets=target)


def test_limits_leave_the_kernels_alone() -> None:
    """Another batch size and other lengths use the same kernels, so that nothing is compiled again."""
    small = lowered(max_batch_size=8, max_seq_len=48, max_num_tokens=64).kernels().keys()
    large = lowered(max_batch_size=200, max_seq_len=48, max_num_tokens=300).kernels().keys()
    assert small < large
    assert {dict(kernel.defines).get("TL_TOKENS", 16) for kernel, _ in large - small} == {16}


@pytest.mark.parametrize(
    ("targets", "archs"),
    [
        (["sm_90"], ["sm_90a"]),
        (["sm_90a", "sm_90"], ["sm_90a"]),
        (["sm_80,sm_89", "sm_120"], ["sm_80", "sm_89", "sm_120a"]),
    ],
)
def test_targets(targets: list[str], archs: list[str]) -> None:
    backend, names = backend_of(targets)
    assert backend.kind == "cuda"
    assert [device.arch for device in parse_targets(names)] == archs


@pytest.mark.parametrize("target", ["gpu", "sm_70", "sm_9", "", "sm_90,"])
def test_unknown_targets_are_errors(target: str) -> None:
    backend, names = backend_of([target])
    with pytest.raises(BuildError, match=r"expected cpu, or one or several of sm_80, .*, separated by commas"):
        backend.check(names, False, Tuning())


def test_an_engine_is_for_the_cpu_or_for_gpus() -> None:
    with pytest.raises(BuildError, match="cpu, sm_90: an engine is for one kind of device"):
        backend_of(["cpu,sm_90"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 24}, "head_dim is 24, expected a multiple of 16, beyond 256 of 32"),
        ({"head_dim": 272}, "head_dim is 272, expected a multiple of 16, beyond 256 of 32"),
        ({"head_dim": 544}, "head_dim is 544, expected at most 512"),
        ({"softcap": 513.0}, "softcap is 513.0, expected at most 512, up to which scores are precise"),
        ({"hidden": 60}, "have 60 elements, and the GPU kernels move 8 at a time: expected a multiple of 8"),
    ],
)
def test_what_the_kernels_do_not_support_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(BuildError, match=re.escape(message)):
        cuda_plan(cuda_shape(**changes))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_batch_size": 2, "max_seq_len": 64000, "max_num_tokens": 65536, "gather_context_logits": True},
            "max_num_tokens with gather_context_logits leads to 65,536 rows of logits in a step, and on a GPU",
        ),
        (
            {"max_batch_size": 16384, "max_num_tokens": 65536, "max_draft_len": 3},
            "max_batch_size * (1 + max_draft_len) leads to 65,536 rows of logits",
        ),
        ({"max_batch_size": 32768, "max_num_tokens": 32768}, "no room for a table of 32,768 sequences: lower max"),
    ],
)
def test_limits_beyond_the_hardware_are_errors(limits: dict, message: str) -> None:
    with pytest.raises(BuildError, match=re.escape(message)):
        cuda_plan(**limits)
