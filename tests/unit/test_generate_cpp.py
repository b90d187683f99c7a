"""generate_cpp: constraints become C++, and nothing but what the schema language allows gets there."""

from dataclasses import replace

import pytest

from trtllm_lite.plugins.constraint_cpp import ConstraintToCpp
from trtllm_lite.plugins.generate_cpp import (
    Isa,
    argument_row,
    constant_name,
    kernel_table_source,
    library_source,
    op_schemas_source,
    schema_header,
)
from trtllm_lite.plugins.schema import Attribute, all_schemas

ATTENTION, SAMPLE = (all_schemas()[name] for name in ("PagedAttention", "Sample"))


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


def test_attributes_of_choices_are_an_enumeration_and_texts_pointers() -> None:
    attributes = (Attribute("activation", "", "str", choices=("none", "gelu_tanh")), Attribute("program", "", "str"))
    schema = replace(ATTENTION, attributes=attributes, constraints=())
    header = schema_header(schema)
    assert "enum class Activation : std::int64_t { kNone, kGeluTanh };" in header
    assert "return {static_cast<Activation>(args.attributes[0].i), args.attributes[1].s};" in header
    source = op_schemas_source([replace(schema, check=True)])
    assert '{"activation", AttributeKind::kChoice, kChoicesOfActivation}' in source
    assert '{"program", AttributeKind::kText, {}}' in source
    assert '#include "paged_attention/check.h"' in source
    assert 'if (op == "PagedAttention") return paged_attention::check;' in source


def test_the_reader_knows_which_inputs_are_state() -> None:
    arguments = (*SAMPLE.inputs, *SAMPLE.outputs)
    state = [argument.name for argument in arguments if ".state = true," in argument_row(SAMPLE, argument)]
    assert state == ["last_tokens", "sampling_slots", "token_masks"]


def test_kernel_table_lists_what_is_there() -> None:
    assert "std::array<KernelEntry, 0> kKernels;" in kernel_table_source([], [Isa.parse("portable=")])
    table = kernel_table_source([ATTENTION], [Isa.parse("avx2=avx2,fma"), Isa.parse("portable=")])
    assert '{"PagedAttention", "avx2", avx2::paged_attention}' in table
    assert '{"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }}' in table
    assert '{"portable", [] { return true; }}' in table


def test_tiles_are_asked_of_the_system() -> None:
    assert Isa.parse("amx=avx512f,amx-tile").test == '__builtin_cpu_supports("avx512f") && may_use_tiles()'


def test_a_library_has_its_operators_alone() -> None:
    source = library_source([ATTENTION], ["avx2", "portable"], "0.1.0", "abc")
    assert 'constexpr PluginLibrary kLibrary{kPluginAbi, "0.1.0", "abc", kSchemas, kKernels};' in source
    assert "std::array<OpSchema, 1> kSchemas" in source
    assert "std::array<KernelEntry, 2> kKernels" in source
    assert "op_schemas()" not in source
