"""LiteLLM and LangChain talk to the server as to OpenAI's."""

import importlib

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "What is the capital of France?"


class Place(BaseModel):
    """The place where the user wants to go."""

    is_far: bool


@tool
def travel(is_far: bool) -> str:
    """Go somewhere."""
    return str(is_far)


@pytest.fixture(scope="module")
def chain(server):
    return ChatOpenAI(
        model="smollm2", base_url=f"{server.address}/v1", api_key="none", temperature=0, max_retries=0, max_tokens=60
    )


@pytest.fixture
def litellm(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks GitHub for prices
    return importlib.import_module("litellm")


@pytest.mark.filterwarnings("ignore::UserWarning:pydantic")
def test_litellm_gets_answers_whole_and_in_pieces(server, litellm):
    asked = {
        "model": "openai/smollm2",
        "api_base": f"{server.address}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 16,
        "num_retries": 0,
    }
    whole = litellm.completion(**asked)
    pieces = list(litellm.completion(**asked, stream=True))
    assert "Paris" in whole.choices[0].message.content
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": "far " * 600}]})


def test_langchain_gets_answers_whole_and_in_pieces(chain):
    whole = chain.invoke(QUESTION)
    pieces = list(chain.stream(QUESTION, stream_usage=True))
    assert "Paris" in whole.content
    assert "".join(piece.content for piece in pieces) == whole.content
    used = [piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata]
    assert sum(used) == whole.usage_metadata["output_tokens"] > 0


def test_langchain_has_functions_called(chain):
    caller = chain.bind_tools([travel], tool_choice="any", parallel_tool_calls=False, strict=True)
    calls = caller.invoke(QUESTION).tool_calls
    assert [call["name"] for call in calls] == ["travel"]
    assert isinstance(calls[0]["args"]["is_far"], bool)


def test_langchain_gives_results_of_functions_back(chain):
    caller = chain.bind_tools([travel], tool_choice="any", parallel_tool_calls=False, strict=True)
    asked = [HumanMessage(QUESTION), caller.invoke(QUESTION)]
    results = [travel.invoke(call) for call in asked[-1].tool_calls]
    assert chain.invoke([*asked, *results]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_parses_structures(chain, method):
    made = chain.with_structured_output(Place, method=method, strict=True).invoke(QUESTION)
    assert isinstance(made, Place)
