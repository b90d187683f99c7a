"""Deterministic GPU engines add in the same order in every program, or the build refuses."""

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, LIMITS, cuda_shape, lowered, quantized
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.scenario import Feeds, Sequences
from trtllm_lite.builder.cuda.planning import Lowered
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.launch import Launch
from trtllm_lite.quantize.schemes import FULL_PRECISION

# The network is wide enough for split-K in small steps, and for several programs with many tokens.
WIDE: dict[str, Any] = {"hidden": 512, "inter": 1024, "head_dim": 64, "heads": 8, "kv_heads": 2, "max_seq": 1024}
STEPS: dict[str, Any] = {"max_batch_size": 20, "max_input_len": 700, "max_seq_len": 1024, "max_num_tokens": 700}
# Windows need larger cache blocks, and gated products with many rows do not support biases.
SUPPORTED = {name for name, shape in CUDA_VARIANTS.items() if not any(shape.windows)} - {"mlp_bias"}
# Kernels that compute each row by itself, with macros that do not depend on the number of rows.
ROW_KERNELS = {
    "cache_slots", "channel_magnitudes", "embedding", "gather_columns", "gather_rows", "gate_mul", "head_layer_norm",
    "layer_norm",
    "cut_rows", "merge_rows", "mix_streams", "rescale_rows",
    "position_embedding", "quantize_rows", "query_key_norm", "rms_norm", "rope_cache", "rotary_table", "rowwise",
}  # fmt: skip
PRODUCT = re.compile("(linear|gated_linear|qkv_linear)(?:_tiled|_swap_ab)?")
INT8_BY_INT8, SHORT_INTEGERS = 5, (3, 4)  # of TL_WEIGHT_FORM

# Macros of attention that differ for decode rows, with the same results: tests/gpu/test_prefill_attention.py.
OF_DECODE_ROWS = {"TL_NEW_TOKENS", "TL_SHARED_BYTES"}


def orders(programs: Lowered) -> dict[str, set[tuple[object, ...]]]:
    """The orders in which programs add, for every product, attention and sampling. Other kernels work row by row."""
    found: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for program in programs.programs:
        for command in program.commands:
            assert isinstance(command, Launch), "cuBLASLt promises no order of additions"
            kernel, macros = command.kernel, dict(command.kernel.defines)
            if (product := PRODUCT.fullmatch(kernel.name)) is not None:
                extents = {name: macros[name] for name in ("TL_OUT", "TL_IN")}
                found[f"{product[1]} {extents}"].add(_order(kernel.name, macros))
            elif kernel.name in ROW_KERNELS:
                continue
            else:
                assert kernel.name in ("paged_attention_prefill", "sample"), kernel.name
                order = {name: value for name, value in macros.items() if name not in OF_DECODE_ROWS}
                found[kernel.name].add(tuple(sorted(order.items())))
    return found


def _order(name: str, macros: dict[str, Any]) -> tuple[object, ...]:
    """The order in which a product's kernel adds, which the split-K factor determines; sums of int8 are exact."""
    assert macros["TL_ORDERED"]
    if macros["TL_WEIGHT_FORM"] == INT8_BY_INT8:
        assert macros["TL_ROW_SCALES"] or not name.endswith("linear")
        return ("any",)
    assert not name.endswith("linear"), "kernels for a few rows add in an order of their own"
    assert "swap_ab" not in name or macros["TL_WEIGHT_FORM"] not in SHORT_INTEGERS or macros["TL_PAIRS32"]
    return (macros["TL_SPLITS"],)


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("qformat", [FULL_PRECISION, "int8_wo", "int4_wo", "fp8_rowwise", "int8_sq"])
def test_programs_add_in_one_order(qformat: str, tiled: bool) -> None:
    programs = lowered(cuda_shape(**WIDE), qformat=qformat, tiled=tiled, **STEPS, deterministic=True)
    found = orders(programs)
    assert len(programs.programs) > 5
    assert {"paged_attention_prefill", "sample"} < found.keys()
    assert all(len(of_kernel) == 1 for of_kernel in found.values()), found
    kernels = {command.kernel.name for program in programs.programs for command in program.commands}
    assert ("linear" in kernels) == (qformat == "int8_sq"), "sums of int8 are exact in every kernel"
    assert ("linear_swap_ab" in kernels) == (qformat == "int4_wo")


def test_products_of_small_steps_say_the_order() -> None:
    """Some products use split-K, which fills a card in steps with few rows."""
    shape = cuda_shape(**WIDE | {"hidden": 2048, "inter": 4096})
    found = orders(lowered(shape, **STEPS, deterministic=True))
    assert {(1,), (4,)} <= {order for name, of in found.items() if "linear" in name for order in of}


@pytest.mark.parametrize("variant", sorted(SUPPORTED))
def test_programs_compute_the_networks_logits(variant: str) -> None:
    shape = CUDA_VARIANTS[variant]
    card, model = CudaInterpreter(lowered(shape, deterministic=True)), quantized(shape, FULL_PRECISION)
    num_blocks = card.plan.symbols["num_blocks"]
    state = Sequences(shape, num_seqs=3, tokens_per_block=LIMITS["tokens_per_block"], num_blocks=num_blocks)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed"), ([1, 1, 1], "mixed")):
        feeds = state.feeds(lens)
        actual = card.step(_step_inputs(feeds, len(lens)), program)
        (expected,) = state.step([model], lens, feeds)
        assert_close(actual, expected, card.dtype, table=ROUNDED_TOLERANCES)
        assert "paged_attention_decode" not in card.ran


def _step_inputs(feeds: Feeds, sequences: int) -> Feeds:
    packed = {name: feeds[f"{name}.packed"] for name in ("position_ids", "past_lens")}
    none = np.full(len(feeds["token_ids"]), -1, np.int32)
    drawn = {name: np.full(sequences, -1, np.int32) for name in ("sample_drafts", "sample_masks")}
    drawn["sample_slots"] = np.arange(sequences, dtype=np.int32)
    return feeds | packed | {"token_slots": none} | drawn


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"targets": "sm_80"}, "deterministic is given for sm_80, where products of few and of many rows"),
        ({"targets": "sm_90,sm_120"}, "deterministic is given for sm_120a"),
        ({"shape": CUDA_VARIANTS["mistral"]}, "window of 5 tokens, .*cache blocks, of 32.*--tokens_per_block 128"),
        ({"shape": CUDA_VARIANTS["mlp_bias"]}, "a gated product of many rows takes no bias"),
    ],
)
def test_what_cannot_be_promised_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        lowered(**changes, deterministic=True)


def test_windows_are_walked_in_blocks_of_the_longest_tile() -> None:
    found = orders(lowered(CUDA_VARIANTS["mistral"], tokens_per_block=128, deterministic=True))
    assert len(found["paged_attention_prefill"]) == 1
