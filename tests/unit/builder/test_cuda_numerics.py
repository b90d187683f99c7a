"""GPU plans, executed from their own bytes and numbers, compute what the standard network computes."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.tolerances import BYTE_TOLERANCES, ROUNDED_TOLERANCES, Tolerance, assert_close
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, LIMITS, cuda_shape, lowered, lowered_stages, quantized
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.networks import Shape
from tests.unit.builder.scenario import Feeds, Sequences
from trtllm_lite.builder.cuda import lowering
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES
from trtllm_lite.plugins.paged_attention import prefill
from trtllm_lite.quantize.schemes import FULL_PRECISION

BLOCK = LIMITS["tokens_per_block"]
OF_EACH_PART = ["llama", "float16", "qwen2", "qwen3", "phi3", "gemma2", "cohere", "gpt_neox", "olmo2", "plain"]
OF_EACH_PART += ["stablelm"]


def _step_inputs(feeds: Feeds, sequences: int) -> Feeds:
    packed = {name: feeds[f"{name}.packed"] for name in ("position_ids", "past_lens")}
    none = np.full(len(feeds["token_ids"]), -1, np.int32)
    drawn = {name: np.full(sequences, -1, np.int32) for name in ("sample_drafts", "sample_masks")}
    drawn["sample_slots"] = np.arange(sequences, dtype=np.int32)
    return feeds | packed | {"token_slots": none} | drawn


def sequences_of(shape: Shape, card: CudaInterpreter) -> Sequences:
    symbols = card.plan.symbols
    groups = symbols["num_tables"] // symbols["num_seqs"]
    tables = {"tokens_per_block": BLOCK, "num_blocks": symbols["num_blocks"], "num_groups": groups}
    return Sequences(shape, num_seqs=3, **tables)


def check_step(
    card: CudaInterpreter,
    state: Sequences,
    lens: list[int],
    program: str,
    model: ir.Model,
    table: Mapping[str, Tolerance] = ROUNDED_TOLERANCES,
) -> None:
    feeds, last, num_tokens = state.feeds(lens), np.cumsum(lens) - 1, sum(lens)
    inputs = _step_inputs(feeds, len(lens))
    if program.startswith("decode"):  # each token has a row of logits
        every = {"logits_indices": np.arange(num_tokens, dtype=np.int32)}
        inputs, wanted = _step_inputs(feeds | every, num_tokens), last
    else:
        wanted = np.arange(len(lens))
    actual = card.step(inputs, program)[wanted]
    (expected,) = state.step([model], lens, feeds)
    assert_close(actual, expected, card.dtype, table=table)
    assert np.array_equal(card.tokens()[wanted], actual.argmax(-1))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("variant", CUDA_VARIANTS)
def test_programs_compute_the_networks_logits(variant: str, tiled: bool) -> None:
    shape = CUDA_VARIANTS[variant]
    card = CudaInterpreter(lowered(shape, tiled=tiled))
    state, model = sequences_of(shape, card), quantized(shape, FULL_PRECISION)
    for lens, program in (
        ([31, 1, 4], "mixed"),
        ([1, 1, 1], "decode_4"),
        ([1, 6, 2], "mixed"),
        ([1, 1, 1], "mixed"),
        ([1, 1, 1], "decode_4"),
    ):
        check_step(card, state, lens, program, model)


STEPS_WITH_DRAFTS = (
    ([2, 20, 4], "mixed"),
    ([5, 1, 3], "decode_16"),
    ([1, 5, 5], "mixed"),
    ([3, 5, 12], "mixed"),
    ([1, 1, 1], "decode_4"),
)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("variant", ["llama", "mixed_heads_and_windows", "gemma2"])
def test_rows_with_drafts_are_sequences_of_few_tokens(variant: str, deterministic: bool) -> None:
    shape = CUDA_VARIANTS[variant]
    if deterministic and variant != "llama":
        pytest.skip("windows need larger blocks")
    card = CudaInterpreter(lowered(shape, max_draft_len=4, deterministic=deterministic))
    state, model = sequences_of(shape, card), quantized(shape, FULL_PRECISION)
    for lens, program in STEPS_WITH_DRAFTS:
        check_step(card, state, lens, program, model)
        assert ("paged_attention_decode" in card.ran) != deterministic


def test_programs_have_the_frequencies_of_long_caches() -> None:
    """LongRoPE, where the network's caches and the engine's sequences are longer than the pretraining length."""
    shape = cuda_shape(original_length=32)
    card = CudaInterpreter(lowered(shape))
    state, model = sequences_of(shape, card), quantized(shape, FULL_PRECISION)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4")):
        check_step(card, state, lens, program, model)


@pytest.mark.parametrize(
    "variant", ["llama", "mixed_heads_and_windows", "gemma2", "cohere", "gpt_neox", "olmo2", "plain"]
)
def test_stages_compute_what_the_network_does(variant: str) -> None:
    """Each stage sends its rows on in 16 bits."""
    shape = CUDA_VARIANTS[variant]
    first, last = map(CudaInterpreter, lowered_stages(shape, pp_size=2))
    state, model = sequences_of(shape, last), quantized(shape, FULL_PRECISION)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed")):
        feeds = state.feeds(lens)
        inputs = _step_inputs(feeds, len(lens))
        first.run(inputs, program, {})
        last.run(inputs, program, {name: first.output(name) for name in last.plan.inputs})
        (expected,) = state.step([model], lens, feeds)
        assert_close(last.output("logits"), expected, last.dtype, table=ROUNDED_TOLERANCES)
        assert np.array_equal(last.tokens(), last.output("logits").argmax(-1))


@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo", "fp8_wo"])
@pytest.mark.parametrize("variant", OF_EACH_PART)
def test_programs_compute_what_the_quantized_network_does(variant: str, qformat: str, target: str) -> None:
    """In steps of up to 64 rows, swap-AB kernels dequantize weights in blocks, tiled kernels those of whole rows."""
    of_blocks = "linear_tiled" if qformat == "int8_wo" else "linear_swap_ab"
    shape = replace(CUDA_VARIANTS[variant], inter=128)
    card = CudaInterpreter(lowered(shape, target, qformat=qformat))
    state, model = sequences_of(shape, card), quantized(shape, qformat)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed")):
        check_step(card, state, lens, program, model)
    assert ("dequantize" if target == "sm_80" else of_blocks) in card.ran


def test_programs_with_expanded_weights_compute_what_the_quantized_network_does() -> None:
    shape = replace(CUDA_VARIANTS["llama"], inter=80)
    card = CudaInterpreter(lowered(shape, qformat="fp8_wo"))
    state, model = sequences_of(shape, card), quantized(shape, "fp8_wo")
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4")):
        check_step(card, state, lens, program, model)


@pytest.mark.parametrize("qformat", ["fp8", "fp8_rowwise", "int8_sq"])
@pytest.mark.parametrize("variant", OF_EACH_PART)
def test_programs_of_bytes_compute_what_the_quantized_network_does(variant: str, qformat: str) -> None:
    """Rounding to 16 bits can change a rounding to a byte, and so the logits; only their largest part is compared."""
    shape = CUDA_VARIANTS[variant]
    card = CudaInterpreter(lowered(shape, qformat=qformat))
    state, model = sequences_of(shape, card), quantized(shape, qformat)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed")):
        check_step(card, state, lens, program, model, BYTE_TOLERANCES)
    assert "quantize_rows" in card.ran


@pytest.mark.parametrize("heads", [{}, {"layer_kv_heads": (1, 4), "layer_head_dims": (64, 128)}], ids=["", "mixed"])
@pytest.mark.parametrize("plain_keys", [False, True])
@pytest.mark.parametrize("cache", KV_CACHE_DTYPES)
def test_programs_with_caches_of_bytes_compute_what_the_quantized_network_does(
    cache: str, plain_keys: bool, heads: dict[str, tuple[int, ...]]
) -> None:
    shape = replace(CUDA_VARIANTS["wgmma"], **heads)
    card = CudaInterpreter(lowered(shape, cache=cache, plain_keys=plain_keys))
    state, model = sequences_of(shape, card), quantized(shape, FULL_PRECISION, cache, plain_keys)
    for lens, program in (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed")):
        check_step(card, state, lens, program, model, BYTE_TOLERANCES)


@pytest.mark.parametrize("plain_keys", [False, True])
def test_long_prompts_read_a_cache_that_was_widened_once(plain_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has one long prompt beside short ones; what is long, and what are many rows, is scaled down."""
    monkeypatch.setattr(prefill, "WIDE_TOKENS", 50)
    monkeypatch.setattr(lowering, "CONVERT_ONCE", 64)
    shape = replace(CUDA_VARIANTS["wgmma"], max_seq=160)
    limits = {"max_input_len": 150, "max_seq_len": 160, "max_num_tokens": 100}
    card = CudaInterpreter(lowered(shape, cache="fp8", plain_keys=plain_keys, **limits))
    state, model = sequences_of(shape, card), quantized(shape, FULL_PRECISION, "fp8", plain_keys)
    for lens in ([1, 3, 60], [1, 55, 40], [1, 9, 50]):
        check_step(card, state, lens, "mixed", model, BYTE_TOLERANCES)
        assert card.ran.count("widen_cache") == shape.layers


def test_a_padded_decode_step_computes_the_same() -> None:
    """Captured steps are padded with rows that read and write a block that belongs to no sequence."""
    shape = CUDA_VARIANTS["llama"]
    card, alone = CudaInterpreter(lowered(shape)), CudaInterpreter(lowered(shape))
    state = sequences_of(shape, card)
    state.block_tables %= 5  # block 5 is for padding; sequences share the others, on which no numbers below depend
    inputs = _step_inputs(state.feeds([1, 1, 1]), 3)
    padding = {name: np.zeros(1, np.int32) for name in ("token_ids", "position_ids", "past_lens")}
    absent = ("token_slots", "sample_slots", "sample_drafts", "sample_masks")
    padding |= {name: np.full(1, -1, np.int32) for name in absent}
    padding |= {"cu_seqlens": np.array([4], np.int32), "logits_indices": np.array([3], np.int32)}
    padding["block_tables"] = np.full((1, inputs["block_tables"].shape[1]), 5, np.int32)
    padded = inputs | {name: np.concatenate([inputs[name], value]) for name, value in padding.items()}
    assert np.array_equal(card.step(padded, "decode_4")[:3], alone.step(inputs, "decode_4"))


def test_a_sampled_token_is_the_next_input_without_leaving_the_card() -> None:
    shape = CUDA_VARIANTS["llama"]
    card, told = CudaInterpreter(lowered(shape)), CudaInterpreter(lowered(shape))
    state = sequences_of(shape, card)
    first = _step_inputs(state.feeds([3, 1, 2]), 3) | {"sample_slots": np.array([4, 0, 2], np.int32)}
    card.step(first, "mixed")
    told.step(first, "mixed")
    state.past_lens += [3, 1, 2]
    second = _step_inputs(state.feeds([1, 1, 1]), 3)
    known = told.step(second | {"token_ids": told.tokens()}, "decode_4")
    unknown = second | {"token_ids": np.full(3, -1, np.int32), "token_slots": np.array([4, 0, 2], np.int32)}
    assert np.array_equal(card.step(unknown, "decode_4"), known)
