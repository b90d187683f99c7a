"""generate_cpp: constraints become C++, and nothing but what the schema language allows gets there."""

from dataclasses import replace

import pytest

from plugins.constraint_cpp import ConstraintToCpp
from plugins.generate_cpp import constant_name, kernel_table_source, schema_header
from plugins.schema import all_schemas

ATTENTION = all_schemas()["PagedAttention"]


def test_names() -> None:
    assert constant_name("key_cache") == "kKeyCache"
    header = schema_header(ATTENTION)
    assert "kKeyCacheOut," in header
    assert "std::int64_t num_heads;" in header


def test_constraint() -> None:
    constraint = ConstraintToCpp(ATTENTION, "y_features == num_heads * head_dim")
    symbols = [n for n in range(32) if constraint.symbol_mask >> n & 1]
    assert constraint.cpp == f"extents[{max(symbols)}] == (attributes[0].i * extents[{min(symbols)}])"


@pytest.mark.parametrize(
    "text",
    [
        "head_dim",
        "head_dim == 2 == num_heads",
        "head_dim / 2 == half_dim",
        "head_dim % num_heads == 0",  # an attribute may be zero
        "head_dim % 0 == 0",
        "unknown == 2",
        "scale == 1",  # not an integer
        "print(1) == 1",
        "head_dim == 2.5",
        "head_dim ** 2 == 4",
    ],
)
def test_refuses_other_constructs(text: str) -> None:
    with pytest.raises(ValueError, match="paged_attention: constraint"):
        ConstraintToCpp(ATTENTION, text)


def test_symbol_of_an_optional_operand_is_not_always_there() -> None:
    optional = tuple(replace(argument, optional=True) for argument in ATTENTION.inputs)
    with pytest.raises(ValueError, match="qkv_features"):
        ConstraintToCpp(replace(ATTENTION, inputs=optional), "qkv_features >= 1")


def test_kernel_table_lists_what_is_there() -> None:
    assert "return {};" in kernel_table_source([], ["portable"])
    table = kernel_table_source([ATTENTION], ["avx2", "portable"])
    assert '{"PagedAttention", "avx2", avx2::paged_attention}' in table
