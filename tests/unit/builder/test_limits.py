import pytest

from trtllm_lite.builder import BuildLimits
from trtllm_lite.common.vocabulary import BY_TENSORRT, ON_CPU, ON_GPU, DefaultLimits
from trtllm_lite.errors import BuildError


@pytest.mark.parametrize(
    ("batch", "input_len", "given", "expected"),
    [(8, 1024, None, 2048), (2, 100, None, 200), (4000, 1, None, 4000), (8, 1024, 99, 99)],
)
def test_tokens_of_a_step(batch: int, input_len: int, given: int | None, expected: int) -> None:
    limits = BuildLimits(max_batch_size=batch, max_input_len=input_len, max_num_tokens=given)
    assert limits.num_tokens == expected
    assert limits.symbols()["num_tokens"] == expected


def test_blocks_cover_a_full_batch() -> None:
    limits = BuildLimits(max_batch_size=3, max_input_len=10, max_seq_len=65, tokens_per_block=32)
    assert (limits.max_blocks_per_seq, limits.num_blocks) == (3, 9)


@pytest.mark.parametrize("logits_of_all", [False, True])
def test_rows_of_logits(logits_of_all: bool) -> None:
    limits = BuildLimits(max_batch_size=3, max_num_tokens=50, gather_context_logits=logits_of_all)
    assert limits.num_logits == (50 if logits_of_all else 3)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0: expected an integer from 1"),
        ({"max_seq_len": 2**31}, "max_seq_len is 2147483648: expected an integer from 1"),
        ({"max_input_len": 1.5}, "max_input_len is 1.5: expected an integer"),
        ({"max_batch_size": True}, "max_batch_size is True: expected an integer"),
        ({"gather_context_logits": 1}, "gather_context_logits is 1: expected True or False"),
        ({"max_input_len": 3000}, "max_input_len is 3000, above max_seq_len 2048"),
        ({"max_num_tokens": 7}, "max_num_tokens is 7, below max_batch_size 8: .* raise max_num_tokens to at least 8"),
        ({"max_num_tokens": 16385}, "max_num_tokens is 16385, above .* = 16384: .* lower .* at most 16384"),
        ({"max_beam_width": 9}, "max_beam_width is 9, above max_batch_size 8: .* raise max_batch_size or lower"),
        ({"max_beam_width": 0}, "max_beam_width is 0: expected an integer from 1"),
        ({"max_num_tokens": 0}, "max_num_tokens is 0: expected an integer from 1"),
        ({"tokens_per_block": 48}, "tokens_per_block is 48: expected one of 16, 32, 64, 128"),
        ({"max_batch_size": 2**16 + 1}, "max_batch_size is 65537: expected an integer from 1 to 65536"),
        ({"max_num_tokens": 2**24 + 1}, "max_num_tokens is 16777217: expected an integer from 1 to 16777216"),
        (
            {"max_batch_size": 2**16, "max_seq_len": 2**20, "max_num_tokens": 2**20},
            "max_batch_size 65536 and max_seq_len 1048576 take 2,147,483,648 blocks of 32 tokens, above 67,108,864",
        ),
    ],
)
def test_contradictions_name_limit_value_and_remedy(limits: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        BuildLimits(**limits)


def test_strategies_are_known_by_name() -> None:
    assert not BuildLimits().uses_nccl
    assert BuildLimits.for_model(1000, allreduce_strategy="NCCL").uses_nccl
    with pytest.raises(BuildError, match="allreduce_strategy is 'RING': expected AUTO or NCCL"):
        BuildLimits.for_model(1000, allreduce_strategy="RING")


def test_a_search_may_fill_the_batch_unless_it_is_limited() -> None:
    assert BuildLimits(max_batch_size=3).in_manifest().max_beam_width == 3
    assert BuildLimits(max_batch_size=3, max_beam_width=2).in_manifest().max_beam_width == 2
    assert BuildLimits.for_model(1000, max_beam_width=20).max_batch_size == 20  # the default is 8


def test_sequences_longer_than_the_models_positions() -> None:
    BuildLimits(max_seq_len=2048).check_model(2048)
    with pytest.raises(BuildError, match="max_seq_len is 2048, but the model's max_position_embeddings is 1024"):
        BuildLimits(max_seq_len=2048).check_model(1024)


def test_defaults_shrink_to_what_fits() -> None:
    limits = BuildLimits.for_model(1000)
    assert (limits.max_batch_size, limits.max_input_len, limits.max_seq_len) == (8, 1000, 1000)
    limits = BuildLimits.for_model(8192, max_seq_len=512, max_num_tokens=4)
    assert (limits.max_batch_size, limits.max_input_len, limits.max_seq_len) == (4, 512, 512)


@pytest.mark.parametrize(
    ("positions", "defaults", "expected"),
    [
        (8192, ON_CPU, (8, 8192, 8192, 2048)),
        (8192, ON_GPU, (256, 8192, 8192, 8192)),
        (16, ON_GPU, (256, 16, 16, 4096)),
        (8192, BY_TENSORRT, (8, 2048, 2048, 2048)),
        (1 << 24, ON_GPU, (2, 1 << 24, 1 << 24, 8192)),  # more would be larger than any card
        (1 << 26, ON_GPU, (1, 1 << 26, 1 << 26, 8192)),
    ],
)
def test_defaults_are_those_of_the_device(positions: int, defaults: DefaultLimits, expected: tuple[int, ...]) -> None:
    limits = BuildLimits.for_model(positions, defaults)
    assert (limits.max_batch_size, limits.max_input_len, limits.max_seq_len, limits.num_tokens) == expected


def test_an_encoder_takes_its_longest_text_in_one_step() -> None:
    assert BuildLimits.for_model(5000, whole_prompts=True).num_tokens == 5000
    assert BuildLimits.for_model(5000, whole_prompts=True, max_input_len=99).num_tokens == 8 * 99
    with pytest.raises(BuildError, match="max_num_tokens is 98, below max_input_len 99: an encoder computes a text in"):
        BuildLimits.for_model(5000, whole_prompts=True, max_input_len=99, max_num_tokens=98)
    assert BuildLimits.for_model(5000, max_input_len=99, max_num_tokens=98).num_tokens == 98


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_seq_len": 1001}, "max_seq_len is 1001, but the model's max_position_embeddings is 1000"),
        ({"max_input_len": 600, "max_seq_len": 512}, "max_input_len is 600, above max_seq_len 512"),
        ({"max_batch_size": 8, "max_num_tokens": 4}, "max_num_tokens is 4, below max_batch_size 8"),
        ({"max_seq_len": 0}, "max_seq_len is 0"),
        ({"max_num_tokens": "9" * 10_000}, "max_num_tokens is '9999"),
    ],
)
def test_what_is_given_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError, match=message) as raised:
        BuildLimits.for_model(1000, **given)
    assert len(str(raised.value)) < 500
