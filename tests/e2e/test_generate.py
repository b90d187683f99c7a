"""From checkpoint to tokens, against transformers in float32."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.models import LATENT_FAMILIES, NETWORK_FAMILIES, VOCAB_SIZE, round_matrices, save_tiny_model
from tests.onnx_runner import OnnxRunner
from tests.plugins.harness import product_dtype
from tests.real_models import SMOLLM2_LIMITS
from tests.references import KeptReference
from tests.tolerances import ROUNDED_TOLERANCES, TOLERANCES, Tolerance, assert_close
from trtllm_lite import LLM, SamplingParams, _testing
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

TINY_LIMITS = {"max_batch_size": 8, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 64}

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at",
    "The three primary colours are",
    "import numpy as np\n\n# Compute the mean of each row\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the largest planet of the solar system?\nA:",
    "# Recipe: pancakes\n\n## Ingredients\n\n-",
    "La tour Eiffel est",
    "Ein kurzer Satz auf Deutsch:",
    "你好",
    "A",
    "    \n\n",
    "SELECT name, COUNT(*) FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "Newton's second law states that the acceleration of an object",
)
MESSAGES = ("Why is the sky blue?", "Write a haiku about compilers.")


@pytest.fixture(scope="module")
def smollm2(smollm2_engine: Path) -> ModelRunner:
    return ModelRunner.from_dir(smollm2_engine)


@pytest.fixture(scope="module")
def smollm2_prompts(smollm2: ModelRunner) -> list[list[int]]:
    """Twenty prompts, with and without the chat template."""
    assert smollm2.tokenizer is not None
    template = smollm2.tokenizer.chat_template
    assert template is not None
    chats = [template.render([{"role": "user", "content": message}]) for message in MESSAGES]
    return [smollm2.tokenizer.encode(text) for text in (*TEXTS, *chats)]


@pytest.fixture(scope="module")
def num_new_tokens(pytestconfig: pytest.Config) -> int:
    """How many tokens SmolLM2 generates from each prompt."""
    return 64 if pytestconfig.getoption("all_combinations") else 32


@pytest.fixture(scope="module")
def smollm2_outputs(
    smollm2: ModelRunner, smollm2_prompts: list[list[int]], num_new_tokens: int
) -> list[tuple[list[int], np.ndarray]]:
    """For each prompt: greedy tokens, and the logits float32[num_new_tokens, vocab] they were chosen from."""
    return [
        output
        for start in range(0, len(smollm2_prompts), 8)
        for output in generate(smollm2, smollm2_prompts[start : start + 8], num_new_tokens)
    ]


@pytest.fixture(scope="module")
def smollm2_expected(
    smollm2_results: KeptReference,
    smollm2_prompts: list[list[int]],
    smollm2_outputs: list[tuple[list[int], np.ndarray]],
    num_new_tokens: int,
) -> list[np.ndarray]:
    """transformers' logits at the positions of ``smollm2_outputs``."""
    passes = [prompt + tokens[:-1] for prompt, (tokens, _) in zip(smollm2_prompts, smollm2_outputs, strict=True)]
    return smollm2_results.logits(f"after-{num_new_tokens}", passes, [num_new_tokens] * len(passes))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_cache_of_16_bits_is_half_as_large_and_bit_stable(family: str, dtype: str, tmp_path: Path) -> None:
    """The reference, too, rounds keys and values of every layer; results are the same alone and in a batch."""
    model = save_tiny_model(family, tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    how = {"tokens_per_block": 16, **TINY_LIMITS}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", kv_cache_dtype=dtype, **how)
    wide, narrow = (
        plan_memory(tmp_path / "checkpoint", kv_cache_dtype=name, **how).kv_cache for name in ("auto", dtype)
    )
    runner = ModelRunner.from_dir(tmp_path / "engine")
    cache = runner.session.manifest.kv_cache
    assert cache.dtype == dtype
    assert narrow * 2 == wide == cache.num_blocks * cache.bytes_per_block * 2
    prompts = random_prompts(seed=7, count=4)
    together = generate(runner, prompts, 12)
    for prompt, output in zip(prompts, together, strict=True):
        assert_identical(generate(runner, [prompt], 12), [output])
    register_rounding(model, getattr(torch, dtype))
    for prompt, (tokens, logits) in zip(prompts, together, strict=True):
        assert_close(logits, expected_logits(model, prompt, tokens), dtype, table=ROUNDED_TOLERANCES)


def register_rounding(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Let ``model`` attend to rotated keys and to values rounded as a cache of ``dtype`` rounds them."""

    def rounded(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **how: Any
    ) -> Any:
        return eager(module, query, key.to(dtype).float(), value.to(dtype).float(), *more, **how)

    eager = sys.modules[type(model).__module__].eager_attention_forward
    name = f"rounded_to_{dtype}"
    ALL_ATTENTION_FUNCTIONS.register(name, rounded)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.config._attn_implementation = name


class TinyEngine:
    """A random model of one family, and its engine, which outputs the logits of whole prompts."""

    def __init__(self, family: str, directory: Path, **overrides: Any) -> None:
        self.directory = directory
        self.model: PreTrainedModel = save_tiny_model(family, directory / "model", **overrides)
        convert_checkpoint(str(directory / "model"), directory / "checkpoint")
        build_engine(
            directory / "checkpoint",
            directory / "engine",
            gather_context_logits=True,
            tokens_per_block=16,
            **TINY_LIMITS,
        )

    def runner(self, **options: Any) -> ModelRunner:
        return ModelRunner.from_dir(self.directory / "engine", **options)


@pytest.fixture(scope="module", params=[*NETWORK_FAMILIES, *LATENT_FAMILIES])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return TinyEngine(request.param, tmp_path_factory.mktemp(request.param))


def generate(runner: ModelRunner, prompts: list[list[int]], count: int) -> list[tuple[list[int], np.ndarray]]:
    """``count`` greedy tokens of each prompt and their logits, EOS ignored."""
    result = runner.generate(
        prompts, max_new_tokens=count, end_id=-1, temperature=0, return_dict=True, output_generation_logits=True
    )
    tokens = [row[0][len(prompt) :][:count].tolist() for prompt, row in zip(prompts, result["output_ids"], strict=True)]
    return list(zip(tokens, (logits[0] for logits in result["generation_logits"]), strict=True))


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """transformers' logits float32[len(tokens), vocab], from one pass over the whole sequence."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def expected_logits(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """transformers' logits float32[len(tokens), vocab] at the positions from which ``tokens`` were chosen."""
    return reference_logits(model, prompt + tokens[:-1])[len(prompt) - 1 :]


def check_greedy(
    model: PreTrainedModel,
    prompt: list[int],
    tokens: list[int],
    logits: np.ndarray,
    dtype: str = "float32",
    table: Mapping[str, Tolerance] = TOLERANCES,
) -> None:
    """Compare a greedy run with transformers.

    In a pass over prompt and output, transformers' logits must agree with ours, and its best token must be the next one
    at every position; so, by induction, its own greedy run gives the same tokens. Where inputs of products are rounded
    (ROUNDED_TOLERANCES), the next one may be another whose logit is so near that the errors found here explain it.
    """
    expected = expected_logits(model, prompt, tokens)
    assert_close(logits, expected, dtype, table=table)
    errors = np.abs(logits - expected).max(axis=1) if table is ROUNDED_TOLERANCES else 0.0
    chosen = np.take_along_axis(expected, np.array(tokens)[:, None], axis=1)[:, 0]
    assert (expected.max(axis=1) - chosen <= 2 * errors).all()
    assert tokens == logits.argmax(axis=1).tolist()


def round_inputs_of_products(model: PreTrainedModel) -> None:
    """Let ``model`` round the operands of products to bfloat16, like CPUs with a bfloat16 unit do."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(), *args[1:]))


def random_prompts(seed: int, count: int, longest: int = 96) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, count)
    return [generator.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]


def assert_identical(actual: list[tuple[list[int], np.ndarray]], expected: list[tuple[list[int], np.ndarray]]) -> None:
    """Compare tokens and logits bit by bit."""
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    for (_, left), (_, right) in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_smollm2_gives_the_tokens_of_transformers(
    smollm2_outputs: list[tuple[list[int], np.ndarray]], smollm2_expected: list[np.ndarray]
) -> None:
    """:func:`check_greedy` compares the logits and the tokens."""
    assert len(smollm2_outputs) == 20
    for (tokens, logits), expected in zip(smollm2_outputs, smollm2_expected, strict=True):
        assert_close(logits, expected)
        assert tokens == expected.argmax(axis=1).tolist()


def test_smollm2_gives_the_tokens_of_transformers_own_loop(
    smollm2_results: KeptReference,
    smollm2_prompts: list[list[int]],
    smollm2_outputs: list[tuple[list[int], np.ndarray]],
) -> None:
    rows = (0, 19)
    expected = smollm2_results.continuations("own-loop", [smollm2_prompts[row] for row in rows], 32)
    assert expected == [smollm2_outputs[row][0][:32] for row in rows]


def test_smollm2_network_gives_the_logits_of_transformers(
    smollm2_results: KeptReference, smollm2_checkpoint: Path
) -> None:
    random = np.random.default_rng(2)
    sequences = [random.integers(0, 49152, length) for length in (41, 7)]
    expected = smollm2_results.logits("network", [sequence.tolist() for sequence in sequences], [41, 7])
    runner = OnnxRunner(smollm2_checkpoint, batch=2, max_seq=48)
    steps = [runner.step([s[:-2] for s in sequences]), *(runner.step([s[i:][:1] for s in sequences]) for i in (-2, -1))]
    for number, reference in enumerate(expected):
        assert_close(np.concatenate([step[number] for step in steps]), reference, what=f"sequence {number}")


@pytest.mark.parametrize("options", [{"max_num_tokens": 8}, {"max_num_tokens": 37}, {"num_threads": 1}], ids=str)
def test_smollm2_is_bit_identical_for_any_split(
    options: dict[str, int],
    smollm2_engine: Path,
    smollm2_prompts: list[list[int]],
    smollm2_outputs: list[tuple[list[int], np.ndarray]],
) -> None:
    rows = [16, 3, 11, 0, 19]
    runner = ModelRunner.from_dir(smollm2_engine, max_batch_size=8, **options)
    actual = generate(runner, [smollm2_prompts[row] for row in rows], 16)
    assert_identical(actual, [(smollm2_outputs[row][0][:16], smollm2_outputs[row][1][:16]) for row in rows])


def test_smollm2_is_bit_identical_alone(
    smollm2: ModelRunner,
    smollm2_prompts: list[list[int]],
    smollm2_outputs: list[tuple[list[int], np.ndarray]],
    num_new_tokens: int,
) -> None:
    for row in (2, 16):
        (output,) = generate(smollm2, [smollm2_prompts[row]], num_new_tokens)
        assert_identical([output], [smollm2_outputs[row]])


def test_smollm2_answers_in_text(smollm2: ModelRunner, smollm2_outputs: list[tuple[list[int], np.ndarray]]) -> None:
    assert smollm2.tokenizer is not None
    expected = smollm2.tokenizer.decode(smollm2_outputs[0][0][:12])
    arguments = {"max_new_tokens": 12, "end_id": -1, "temperature": 0}
    assert smollm2.generate(TEXTS[0], **arguments) == expected
    assert "".join(smollm2.generate(TEXTS[0], streaming=True, **arguments)) == expected
    answer = smollm2.generate("What is 2 + 2?", chat=True, max_new_tokens=120, temperature=0, return_dict=True)
    assert answer["finish_reasons"] == [["end_id"]]
    assert "4" in answer["texts"][0]
    assert "<|im_end|>" not in answer["texts"][0]


def test_smollm2_log_probabilities_are_those_of_transformers(
    smollm2_engine: Path,
    smollm2_prompts: list[list[int]],
    smollm2_outputs: list[tuple[list[int], np.ndarray]],
    smollm2_expected: list[np.ndarray],
) -> None:
    """LLM batches all prompts in flight; the five likeliest tokens at each position are compared."""
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0, logprobs=5)
    with LLM(smollm2_engine) as llm:
        outputs = llm.generate(smollm2_prompts, params)
    for output, prompt, (tokens, _), logits in zip(
        outputs, smollm2_prompts, smollm2_outputs, smollm2_expected, strict=True
    ):
        (completion,) = output.outputs
        assert output.prompt_token_ids == prompt
        assert completion.token_ids == tokens[:12]
        expected = torch.log_softmax(torch.tensor(logits[:12]).double(), dim=-1).numpy()
        assert completion.logprobs is not None
        for found, wanted, token in zip(completion.logprobs, expected, tokens, strict=False):
            best = np.argsort(-wanted, kind="stable")[:5].tolist()
            assert next(iter(found)) == token
            assert set(found) == {token, *best}
            assert_close(np.array([found[other].logprob for other in best]), wanted[best], what="logprobs")


def test_families_give_the_logits_and_tokens_of_transformers(tiny: TinyEngine) -> None:
    prompts = random_prompts(0, 8)
    result = tiny.runner().generate(
        prompts, max_new_tokens=1, end_id=-1, temperature=0, return_dict=True, output_context_logits=True
    )
    for prompt, logits in zip(prompts, result["context_logits"], strict=True):
        assert_close(logits, reference_logits(tiny.model, prompt))
    for prompt, (tokens, logits) in zip(prompts, generate(tiny.runner(), prompts, 24), strict=True):
        check_greedy(tiny.model, prompt, tokens, logits)


def test_biases_of_every_projection(tmp_path: Path) -> None:
    biased = TinyEngine("llama", tmp_path, attention_bias=True, mlp_bias=True)
    prompts = random_prompts(2, 4)
    for prompt, output in zip(prompts, generate(biased.runner(), prompts, 8), strict=True):
        check_greedy(biased.model, prompt, *output)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_give_the_logits_of_the_rounded_model(tiny: TinyEngine, dtype: str, tmp_path: Path) -> None:
    convert_checkpoint(str(tiny.directory / "model"), tmp_path / "checkpoint", dtype)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    rounded = type(tiny.model).from_pretrained(tiny.directory / "model", attn_implementation="eager").eval()
    round_matrices(rounded, dtype)
    table = TOLERANCES
    if dtype == "bfloat16" == product_dtype(_testing.supported_isas()[0]):
        round_inputs_of_products(rounded)
        table = ROUNDED_TOLERANCES
    prompts = random_prompts(1, 4)
    for prompt, output in zip(prompts, generate(ModelRunner.from_dir(tmp_path / "engine"), prompts, 8), strict=True):
        check_greedy(rounded, prompt, *output, dtype, table)


def test_families_are_bit_identical_for_any_split_and_company(tiny: TinyEngine) -> None:
    prompts = random_prompts(2, 24, longest=60)
    whole = tiny.runner()
    expected = [generate(whole, [prompt], 8)[0] for prompt in prompts]
    random = np.random.default_rng(3)
    for max_num_tokens in (8, 9, 13, 16, 31, 64):
        runner = tiny.runner(max_num_tokens=max_num_tokens, num_threads=int(random.integers(1, 4)))
        rows = random.permutation(len(prompts))[: random.integers(2, 9)].tolist()
        assert_identical(generate(runner, [prompts[row] for row in rows], 8), [expected[row] for row in rows])


def test_a_small_cache_changes_no_token(tiny: TinyEngine) -> None:
    prompts = random_prompts(4, 8, longest=40)
    expected = generate(tiny.runner(), prompts, 12)
    # The cache has 64 tokens: one or two requests run at a time, in blocks that earlier ones used.
    assert_identical(generate(tiny.runner(max_tokens_in_paged_kv_cache=64), prompts, 12), expected)


def test_same_seed_same_tokens_in_any_company(tiny: TinyEngine) -> None:
    prompts = random_prompts(5, 6, longest=30)
    arguments = {"max_new_tokens": 16, "end_id": -1, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
    together = tiny.runner().generate(prompts, random_seed=list(range(6)), return_dict=True, **arguments)
    runner = tiny.runner(max_num_tokens=11)
    for row in (5, 2):
        length = together["sequence_lengths"][row][0]
        alone = runner.generate([prompts[row]], random_seed=row, **arguments)
        assert alone[0, 0].tolist() == together["output_ids"][row, 0, :length].tolist()
    other = runner.generate([prompts[2]], random_seed=99, **arguments)
    assert other[0, 0].tolist() != alone[0, 0].tolist()


def check_plan(checkpoint: Path, engine: Path, limits: dict[str, int]) -> None:
    """The prediction must be within 5% of what the executor reserves, for each kind of memory."""
    predicted = plan_memory(checkpoint, **limits)
    executor = ModelRunner.from_dir(engine).session.executor
    assert executor.num_threads == predicted.num_threads
    for kind, size in executor.memory.items():
        assert size == pytest.approx(getattr(predicted, kind), rel=0.05), kind
    assert sum(executor.memory.values()) == pytest.approx(predicted.total, rel=0.05)


def test_plan_predicts_the_memory_of_smollm2(smollm2_checkpoint: Path, smollm2_engine: Path) -> None:
    check_plan(smollm2_checkpoint, smollm2_engine, SMOLLM2_LIMITS)


@pytest.mark.each_value
@pytest.mark.parametrize("limits", [{}, {"max_batch_size": 1}, {"max_seq_len": 97}, {"max_num_tokens": 9}], ids=str)
def test_plan_predicts_the_memory_of_families(tiny: TinyEngine, limits: dict[str, int], tmp_path: Path) -> None:
    merged = {**TINY_LIMITS, **limits}
    build_engine(tiny.directory / "checkpoint", tmp_path / "engine", **merged)
    check_plan(tiny.directory / "checkpoint", tmp_path / "engine", merged)
