"""Schemas are read with all their fields, and an inconsistent one is an error."""

from pathlib import Path

import pytest

from trtllm_lite.plugins.schema import all_schemas, load_schema, network_schemas

SCHEMA = """
name = "Count"
doc = "counts[i] += steps[i]"

[[inputs]]
name = "steps"
doc = "how many"
dtypes = ["int32"]
shape = ["num_seqs"]
step_input = "past_lens"

[[inputs]]
name = "counts"
doc = "sums"
dtypes = ["int32"]
shape = ["num_slots"]
state = true

[[outputs]]
name = "counts_out"
doc = "the new sums"
dtypes = ["int32"]
shape = ["num_slots"]
alias = "counts"
"""


_CACHE = '["float32"]\nshape = ["num_blocks", "tokens_per_block"]\ncache = "some"'


_STATES = '["float32"]\nshape = ["num_blocks", "tokens_per_block"]\ncache = "state"'


def _written(folder: Path, text: str) -> Path:
    path = folder / "count" / "schema.toml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_state_is_an_int32_input_that_no_step_gives(tmp_path: Path) -> None:
    schema = load_schema(_written(tmp_path, SCHEMA))
    assert schema.keeps_state
    assert [argument.state for argument in schema.inputs] == [False, True]
    assert schema.output("counts_out").alias == "counts"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "state = true\n",
            "",
            "input counts: expected step_input, state, constant or checked for an int32 input, for no other",
        ),
        ("state = true\n", 'state = true\nstep_input = "past_lens"\n', "input counts: expected step_input"),
        ('["int32"]\nshape = ["num_slots"]\nstate', '["float32"]\nshape = ["num_slots"]\nstate', "input counts"),
        ('["int32"]\nshape = ["num_seqs"]', '["float32"]\nshape = ["num_seqs"]', "input steps"),
        ("state = true", "constant = true", "input counts: expected below, the symbol that bounds the indices"),
        ("state = true", "checked = true", "input counts: expected below, the symbol that bounds the indices"),
        ("state = true", "state = true\nconstant = true", "input counts: expected step_input, state"),
        ('alias = "counts"', "state = true", "output counts_out: expected state = true for an int64 output"),
        ('["int32"]\nshape = ["num_slots"]\nalias', '["int64"]\nshape = ["num_slots"]\nalias', "expected state = true"),
        ('alias = "counts"', 'step_input = "past_lens"', "output counts_out: found step_input, cache, constant"),
        ("state = true\n", 'state = true\ncache = "full"\n', "input counts: expected a cache of a kind in"),
        ('["int32"]\nshape = ["num_seqs"]\nstep_input = "past_lens"', _CACHE, "steps: expected a cache of a kind in"),
        ('["int32"]\nshape = ["num_seqs"]\nstep_input = "past_lens"', _STATES, "unless it is a cache of states"),
        ('name = "Count"', 'name = "Count"\nkernel = "cuda"', r"unknown keys \['kernel'\]"),
        (
            'name = "Count"',
            'name = "Count"\nheads = ["num_heads"]',
            r"Count: expected heads of one or two kinds, or chan",
        ),
        ('name = "Count"', 'name = "Count"\nchannels = "width"', r"or channels, found \['width'\]"),
        ('name = "Count"', 'name = "Count"\nheads = ["num_seqs"]\nchannels = "num_slots"', "or channels, found"),
        ('doc = "sums"', 'doc = "sums"\nheads = ["num_seqs * num_slots"]', "argument counts: expected heads like"),
        ('doc = "sums"', 'doc = "sums"\ncolumns = "num_seqs"', "argument counts: expected columns in rows of an input"),
        ('["int32"]', '["int31"]', r"argument steps: unknown dtype or layout \['int31'\]"),
    ],
)
def test_refuses(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SCHEMA
    with pytest.raises(ValueError, match=message):
        load_schema(_written(tmp_path, SCHEMA.replace(old, new, 1)))


def test_a_cache_of_states_has_one_for_each_block() -> None:
    (states,) = all_schemas()["GatedDeltaRule"].caches
    assert (states.cache, states.shape[0]) == ("state", "num_blocks")
    assert all_schemas()["GatedDeltaRule"].caches_layer


def test_schemas_say_how_ranks_divide_operators() -> None:
    rule, conv = all_schemas()["GatedDeltaRule"], all_schemas()["CausalConv"]
    assert (rule.heads, rule.channels, conv.heads, conv.channels) == (
        ("value_heads", "num_key_heads"),
        None,
        (),
        "channels",
    )
    assert rule.inputs[0].heads == (*["num_key_heads * key_dim"] * 2, "value_heads * value_dim")
    rows = {argument.name for argument in (*rule.inputs, *rule.outputs) if argument.is_row}
    assert rows == {"qkv", "a", "b", "a_log", "dt_bias", "y"}


def test_columns_of_wider_rows_lie_within_these() -> None:
    conv = all_schemas()["CausalConv"]
    x = conv.inputs[0]
    assert (x.shape[-1], x.features, x.first) == ("x_features", "channels", "x_first")
    assert conv.constraints[-2:] == ("x_first >= 0", "x_first <= x_features - channels")


def test_networks_have_no_operators_that_keep_state() -> None:
    assert all_schemas().keys() - network_schemas().keys() == {"CacheSlots", "Sample"}
