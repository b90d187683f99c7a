"""The memory that grammars take: the cache counts the bytes of each kept grammar, and all other memory is freed.

test_grammar_memory.py runs these cases in a process of their own, whose memory nothing else changes.
"""

import ctypes
import gc
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny_tokenizer
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.runtime.session import grammars

from .test_guided_decoding import SPECIAL_IDS, grammars_of_file

MIB = 1 << 20
VOCAB = 380  # tokens of the tiny tokenizer
WORDS = [f"{i * 7919:x} {i}" for i in range(12_000)]
SCHEMA = {"type": "object", "properties": {f"p{i}": {"type": "string", "format": "date"} for i in range(30)}}


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated() -> int:
    """Bytes that malloc has handed out in this process."""
    gc.collect()
    read = ctypes.CDLL(None).mallinfo2
    read.restype = _MallocInfo
    info = read()
    return info.uordblks + info.hblkhd


def resident() -> int:
    """Bytes of this process's own memory that are in RAM."""
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


def compile_fields(made: Any, **guided: Any) -> Any:
    return made.compile(GuidedDecodingParams(**guided).source)


def many_tags(number: int) -> dict[str, Any]:
    """Structural tags, which take several times as much memory while they are compiled as they hold afterwards."""
    structures = [{"begin": f"<f={i}>", "schema": {"type": "object"}, "end": "</f>"} for i in range(number)]
    return {"type": "structural_tag", "triggers": ["<f"], "structures": structures}


@pytest.mark.parametrize(
    "guided",
    [{"regex": "[a-f]{3}-x"}, {"json": SCHEMA}, {"choice": WORDS}, {"grammar": "start: (a | b)+\na: /[0-9]+/\nb: a"}],
    ids=["regex", "json", "choice", "grammar"],
)
def test_a_grammar_is_charged_what_it_holds(guided):
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    compile_fields(made, regex="warm")
    before, charged = allocated(), made._kept._num_bytes
    compile_fields(made, **guided)
    charged = made._kept._num_bytes - charged
    assert charged == pytest.approx(allocated() - before, rel=0.1, abs=MIB // 2)


def test_texts_leave_a_kept_grammar_as_it_was():
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    grammar = compile_fields(made, regex="(.*[a-m].{60})&(.*[e-z].{90})")
    before, rng = allocated(), random.Random(0)
    matcher = _testing.start_grammar(grammar)
    for _ in range(200):
        matcher.accept([rng.choice([token for token in matcher.allowed(VOCAB) if token not in SPECIAL_IDS])])
    assert allocated() - before > MIB  # states of the text's own lexer
    del matcher
    assert allocated() - before < MIB // 4


def test_what_compiling_leaves_and_kept_grammars_that_make_room_is_given_back(monkeypatch):
    monkeypatch.setattr(grammars, "MAX_KEPT", 1)
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    compile_fields(made, structural_tag=many_tags(1))
    before = resident()
    for number in (500, 900, 600, 800):
        compile_fields(made, structural_tag=many_tags(number))
        assert resident() - before < made._kept._num_bytes + 12 * MIB
        compile_fields(made, regex=f"x{number}")
        assert resident() - before < 12 * MIB
