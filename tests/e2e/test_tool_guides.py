"""Tool calls that begin with special tokens, which a tiny model is forced to write."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from tokenizers import Tokenizer

from tests.models import USER, save_tiny_model
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.serve.parsers import Content, Tool, ToolCallArguments, ToolCallBegin, find_tool_parser, make_parser

SPECIAL = {
    "mistral": ("[ARGS]",),
    "deepseek_v31": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        "<｜tool▁sep｜>",
    ),
}
DRAFTS = {
    "mistral": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1},
    "deepseek_v31": None,
}
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("get_it", SCHEMA, strict=True)]


@pytest.fixture(scope="module", params=sorted(SPECIAL))
def named_llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LLM]]:
    """A parser's name, and a model whose tokenizer has the special tokens of that parser."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny_model("llama", directory, max_position_embeddings=256)
    _add_special_tokens(directory / "tokenizer.json", SPECIAL[request.param])
    limits = {"max_batch_size": 4, "max_input_len": 32, "max_seq_len": 256}
    with LLM(directory, **limits, speculative_config=DRAFTS[request.param]) as made:
        yield request.param, made


def _add_special_tokens(path: Path, names: tuple[str, ...]) -> None:
    """Add special tokens like published tokenizers: Mistral's are the first ids, which elsewhere stand for bytes."""
    tokenizer = Tokenizer.from_str(path.read_text().replace(USER, "[TOOL_CALLS]"))
    tokenizer.add_special_tokens(list(names))
    tokenizer.save(str(path))


def test_required_calls_are_written_and_read(named_llm: tuple[str, LLM]) -> None:
    name, llm = named_llm
    guide = find_tool_parser(name).guide(TOOLS, "required", parallel=False)
    params = SamplingParams(
        max_tokens=220, temperature=1.0, top_k=4, seed=3, n=4, guided_decoding=guide, skip_special_tokens=False
    )
    for output in llm.generate("the quick fox", params).outputs:
        parser = make_parser(tool_parser=name, tools=TOOLS)
        events = [*parser.push(output.text), *parser.finish()]
        assert [event.name for event in events if isinstance(event, ToolCallBegin)] == ["get_it"]
        arguments = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
        jsonschema.validate(json.loads(arguments), SCHEMA)
        assert not any(isinstance(event, Content) for event in events)
