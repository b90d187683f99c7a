"""What chat templates say of the parsers that their models need."""

import pytest

from trtllm_lite.serve.parsers import REASONING_PARSERS, TOOL_PARSERS, detect, needs_special_tokens, thoughts_of


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, (None, None)),
        ("{{ messages }}", (None, None)),
        (r"{%- if tools %}<tools>…return {\"name\": <function-name>}: <tool_call>\n", ("hermes", None)),
        (
            r"<tool_call>\n{\"name\": \"{{ tool.name }}\"}</tool_call>{{ '<think>\n\n</think>\n\n' }}",
            ("hermes", "qwen3"),
        ),
        ("<tool_call>\n<function={{ name }}>\n<parameter={{ key }}>", ("qwen3_coder", None)),
        ("<tool_call>\n<function={{ name }}>\n<parameter={{ key }}></think>", ("qwen3_coder", "qwen3")),
        ("<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key></think>", ("glm45", "qwen3")),
        ("{{ '[TOOL_CALLS] [' }}", ("mistral", None)),
        ("{{ '[TOOL_CALLS]' }}[THINK]{{ x }}[/THINK]", ("mistral", "mistral")),
        ("<|start_header_id|>…<|python_tag|>", ("llama3_json", None)),
        ('<|start_header_id|>{"name": function name, "parameters": dictionary}', ("llama3_json", None)),
        ("<|header_start|>…<|python_start|>", ("pythonic", None)),
        ("<|start|>assistant<|channel|>analysis<|message|>", ("openai", "openai_gptoss")),
        ("<｜User｜>…<｜Assistant｜><think>\n {% split('</think>') %}", (None, "deepseek_r1")),
        ("<｜Assistant｜><｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json\n", ("deepseek_v3", None)),
        ("<｜Assistant｜></think><｜tool▁calls▁begin｜>{{ name }}<｜tool▁sep｜>", ("deepseek_v31", "deepseek_r1")),
        ("<|tool_calls_section_begin|>{%- for tool_call in message['tool_calls'] -%}", ("kimi_k2", None)),
        ("Use <|START_ACTION|> … <|START_THINKING|>", ("cohere_command3", "cohere_command3")),
        ("Write 'Action:' followed by a json list … \"tool_name\": title", ("cohere_command3", None)),
        ("<|im_start|>environment name=<|plugin|>", ("internlm", None)),
        ("<function_calls>\n{{ call }}\n</function_calls>", ("olmo3", None)),
        ("{{ '<|' + role + '|>' + content + '<|tool|>' + tools + '<|/tool|>' }}", ("phi4_mini_json", None)),
        ("write <|tool_call|> followed by a json list. Here is my thought process:", ("granite", "granite")),
        ("Write your thoughts after 'Here is my thought process:'", (None, "granite")),
    ],
)
def test_templates_speak_for_parsers(template, expected):
    assert detect(template) == expected


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_thoughts_have_an_end(name):
    expected = {
        "cohere_command3": (("<|END_THINKING|>",),),
        "granite": (("Here is my response:", "Here's my response:"),),
        "mistral": (("[/THINK]",),),
        "openai_gptoss": (("<|channel|>final",), ("<|message|>",)),
    }
    assert thoughts_of(name).ends == expected.get(name, (("</think>",),))


def test_formats_of_special_tokens_are_known():
    assert {name for name in TOOL_PARSERS if not needs_special_tokens(name, None)} == {
        *("hermes", "pythonic", "qwen3_coder"),
    }
    needing = {name for name in REASONING_PARSERS if needs_special_tokens(None, name)}
    assert needing == {"cohere_command3", "mistral", "openai_gptoss"}
