"""Reasoning before structured output, calls and stop words, with a model that does not reason by itself."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.real_models import find_smollm2
from tests.serve.server import Server, serving
from tests.serve.test_openai_tools import NAMED, TOOLS
from tests.unit.serve.served import samples

ASKED = {"model": "smollm2", "temperature": 0, "messages": [{"role": "user", "content": "How is Rome?"}]}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}, "is_big": {"type": "boolean"}},
    "required": ["city", "is_big"],
    "additionalProperties": False,
}
GUIDED = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that treats its model as one that reasons like Qwen3."""
    limits = ("--max_batch_size", 8, "--max_seq_len", 1024, "--max_input_len", 512)
    parsers = ("--tool_call_parser", "hermes", "--reasoning_parser", "qwen3")
    ways = ("--dtype", "bfloat16", "--gather_context_logits")
    with serving(f"smollm2={find_smollm2()}", *ways, *limits, *parsers) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def behind(text: str, **fields: object) -> dict[str, object]:
    """The body of a request whose answer continues ``text``."""
    messages = [*ASKED["messages"], {"role": "assistant", "content": text}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    return {**ASKED, "messages": messages, "extra_body": extra, **fields}


def test_a_schema_holds_without_thoughts(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASKED, response_format=GUIDED, max_tokens=60).choices[0]
    assert set(json.loads(choice.message.content)) == set(SCHEMA["properties"])
    assert choice.finish_reason == "stop"
    chunks = client.chat.completions.create(**ASKED, response_format=GUIDED, max_tokens=60, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content


def test_a_schema_holds_behind_thoughts(client: openai.OpenAI) -> None:
    for text in ("<think>\nIt is big.\n</think>\n\n", "<think>\nIt is big.\n</think>"):
        choice = client.chat.completions.create(**behind(text, response_format=GUIDED, max_tokens=60)).choices[0]
        assert set(json.loads(choice.message.content)) == set(SCHEMA["properties"])


@pytest.mark.parametrize("tool_choice", ["required", NAMED])
def test_calls_are_made_without_thoughts(client: openai.OpenAI, tool_choice: object) -> None:
    asked = {**ASKED, "tools": TOOLS, "tool_choice": tool_choice, "parallel_tool_calls": False}
    choice = client.chat.completions.create(**asked, max_tokens=100).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls) == 1


@pytest.mark.parametrize("guided", [{}, {"response_format": GUIDED}])
def test_thoughts_that_do_not_end_are_told(server: Server, client: openai.OpenAI, guided: dict[str, object]) -> None:
    """Stop words do not end the reasoning, because they apply to the answer."""

    def num_empty() -> float:
        return samples(httpx.get(f"{server.address}/metrics").text)["trtllm_empty_answers_total", "length"]

    before = num_empty()
    asked = behind("<think>\nRome", max_tokens=16, **guided)
    thoughts = client.chat.completions.create(**asked).choices[0]
    word = thoughts.message.reasoning_content.split()[2]
    stopped = client.chat.completions.create(**asked, stop=[word, "\n"]).choices[0]
    for choice in (thoughts, stopped):
        assert (choice.finish_reason, choice.message.content) == ("length", "")
        assert choice.message.reasoning_content == thoughts.message.reasoning_content
        assert "thoughts did not end" in choice.warnings[0]
    *_, last = client.chat.completions.create(**asked, stream=True)
    assert last.choices[0].warnings == thoughts.warnings
    assert num_empty() == before + 3


def test_stop_words_end_the_answer(client: openai.OpenAI) -> None:
    for text in ("", "<think>\n\n</think>\n\n", "<think>\n\n</think>"):
        asked = behind(text, max_tokens=24) if text else {**ASKED, "max_tokens": 24}
        answer = client.chat.completions.create(**asked).choices[0].message.content
        word = answer.split()[3]
        choice = client.chat.completions.create(**asked, stop=word).choices[0]
        assert (choice.message.content, choice.finish_reason) == (answer[: answer.index(word)], "stop")
