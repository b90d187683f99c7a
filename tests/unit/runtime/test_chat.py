"""Chat templates: Hugging Face's conventions, in a sandbox, bounded in memory, time and output."""

import itertools
import os
from types import SimpleNamespace

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from trtllm_lite.errors import ArgumentError, EngineError, LimitError
from trtllm_lite.runtime.text import chat, template_process
from trtllm_lite.runtime.text.chat import ChatTemplate

USER = [{"role": "user", "content": "<b> & 'é'"}]
DOUBLING = "{% set ns = namespace(a=%s) %}{% for i in range(40) %}{% set ns.a = %s %}{% endfor %}{{ ns.a | length }}"


def render(source, messages=USER, **tokens):
    return ChatTemplate({"default": source}, tokens).render(messages)


def doubling(first, step):
    return DOUBLING.replace("%s", first, 1).replace("%s", step, 1)


def test_blocks_leave_no_whitespace():
    source = "  {% for m in messages %}\n    {% if true %}\n{{ m['content'] }}\n    {% endif %}\n  {% endfor %}"
    assert render(source) == "<b> & 'é'\n"


def test_names_that_templates_expect():
    source = "{{ bos_token }}{{ messages[0] | tojson }}{{ add_generation_prompt }}{{ tools }}{{ strftime_now('%%') }}"
    assert render(source, bos_token="<s>") == '<s>{"role": "user", "content": "<b> & \'é\'"}TrueNone%'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": [\n  2\n ],\n "b": 1\n}'


def test_loop_controls_and_generation_marks():
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source + "{% generation %}x{{ messages | length }}{% endgeneration %}") == "01x1"


def test_a_template_may_refuse():
    with pytest.raises(ArgumentError, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
        "{{ messages[0]['content'] / 2 }}",
        "{{ nonsense.attribute }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ raise_exception() }}",
        "{{ messages | map('nonsense') | list }}",
    ],
)
def test_hostile_templates_fail_cleanly(source):
    with pytest.raises(ArgumentError, match="template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a' * 10 ** 10) | length }}",
        "{{ 'a'.center(10 ** 10) | length }}",
        "{{ 'a'.zfill(10 ** 10) | length }}",
        "{{ ('%4000000000d' % 1) | length }}",
        "{{ '%4000000000d' | format(1) | length }}",
        "{{ '{:>4000000000}'.format(1) | length }}",
        "{{ 'a' | indent(10 ** 10) | length }}",
        doubling("'aaaaaaaa'", "ns.a ~ ns.a"),
        doubling("[1]", "ns.a + ns.a"),
        doubling("'aaaaaaaa'", "[ns.a, ns.a] | join"),
        doubling("'aaaaaaaa'", "ns.a.replace('a', 'aa')"),
    ],
)
def test_memory_is_bounded(source):
    before = _address_space_kib()
    with pytest.raises(ArgumentError, match="template"):
        render(source)
    assert _address_space_kib() < before + (1 << 16)


def _address_space_kib():
    """The largest address space, in KiB, that this process, without its children, has had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (7 ** (7 ** 9)) % 2 }}",  # one long computation in C
    ],
)
def test_time_is_bounded_and_others_go_on(source, monkeypatch):
    template_process._small.stop()
    monkeypatch.setattr(template_process, "_CPU_SECONDS", 1)
    with pytest.raises(ArgumentError, match="computes for more than 1 s"):
        render(source)
    assert render("{{ messages | length }}") == "1"
    template_process._small.stop()


@pytest.mark.parametrize(("seconds", "was_quick"), [(0.0005, True), (0.1, False)])
def test_renderings_are_timed(seconds, was_quick, monkeypatch):
    times = itertools.count(step=seconds)
    monkeypatch.setattr(chat, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    template = ChatTemplate({"default": "{{ messages[0].content }}{{ raise_exception('no') if fails }}"}, {})
    assert not template.was_quick
    template.render(USER)
    assert template.was_quick == was_quick
    monkeypatch.undo()
    monkeypatch.setattr(chat, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    with pytest.raises(ArgumentError):
        template.render(USER, arguments={"fails": True})
    assert not template.was_quick, "a template that fails is timed, too"


def test_a_process_that_was_killed_is_started_again():
    assert render("x") == "x"
    os.kill(template_process._small._process.pid, 9)
    template_process._small._process.wait()
    assert render("y") == "y"


@pytest.mark.parametrize("executable", ["/nonexistent/python", None])
def test_a_process_that_does_not_start_is_an_error(executable, monkeypatch):
    template_process._small.stop()
    monkeypatch.setattr("sys.executable", executable)
    with pytest.raises(EngineError, match=r"does not start .*: let this process start Python, or render"):
        render("x")


def test_a_fork_has_a_process_of_its_own():
    assert render("x") == "x"
    ours = template_process._small._process.pid
    child = os.fork()
    if child == 0:
        try:
            is_other = render("{{ 1 + 1 }}") == "2" and template_process._small._process.pid != ours
            template_process._small.stop()
            os._exit(0 if is_other else 1)
        finally:
            os._exit(2)  # or else the child would run the remaining tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert render("y") == "y"
    assert template_process._small._process.pid == ours


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' | nonsense }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "{%"])
def test_broken_templates_are_an_engine_error(source):
    with pytest.raises(EngineError, match="not valid Jinja"):
        render(source)


@pytest.mark.parametrize("message", ["hi", {"role": "user"}, {"content": "x"}, {"role": 1, "content": ""}, None])
def test_malformed_messages_are_refused(message):
    with pytest.raises(ArgumentError):
        render("x", [message])


def test_other_malformed_conversations_are_refused():
    with pytest.raises(ArgumentError, match="empty"):
        render("x", [])
    with pytest.raises(ArgumentError, match="not JSON"):
        render("x", [{"role": "user", "content": "x", "extra": {1, 2}}])
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="not JSON"):
        render("x", [{"role": "user", "content": "x", "extra": deep}])
    with pytest.raises(LimitError, match=r"33,554,432.*shorten"):
        render("x", [{"role": "user", "content": "x" * (1 << 25)}])
    with pytest.raises(ArgumentError) as raised:
        render("x", [{"role": "user", "content": {"text": "x" * 300_000}}])
    assert len(str(raised.value)) < 500


def test_text_parts_are_lines_and_others_are_refused():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"
    image = [*parts, {"type": "image_url", "image_url": {"url": "http://x"}}]
    with pytest.raises(ArgumentError, match="of type 'image_url': expected"):
        render("x", [{"role": "user", "content": image}])
    for part in ("text", {"type": "text"}, {"type": "text", "text": 1}):
        with pytest.raises(ArgumentError, match="a part of a chat message's content is"):
            render("x", [{"role": "user", "content": [part]}])


def test_a_call_of_a_tool_has_no_content():
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    source = "{{ messages[1].tool_calls[0].function.name }}"
    for message in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        assert render(source, [*USER, {**message, "tool_calls": calls}]) == "f"


def test_settings_of_tokenizer_config():
    assert ChatTemplate.from_settings({}) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ eos_token }}"}]
    settings = {"chat_template": named, "eos_token": {"content": "</s>"}, "pad_token": None, "x_token": [1]}
    template = ChatTemplate.from_settings(settings)
    assert template.render(USER) == "</s>"
    assert template.render(USER, tools=[{"name": "f"}]) == "t"
    assert template.render(USER, template="tool_use") == "t"
    assert template.render(USER, template="default", tools=[{"name": "f"}]) == "</s>"
    for name in ("rag", 7, []):
        with pytest.raises(ArgumentError, match=r"no chat template named .*, only 'default', 'tool_use': name one"):
            template.render(USER, template=name)
    with pytest.raises(ArgumentError, match="no chat template named 'default', only 'rag'"):
        ChatTemplate.from_settings({"chat_template": [{"name": "rag", "template": "r"}]}).render(USER)


@pytest.mark.parametrize("value", [7, ["x"], [{"name": "default"}], [{"name": [], "template": "x"}], {"default": 1}])
def test_malformed_settings_are_an_engine_error(value):
    with pytest.raises(EngineError, match="chat_template"):
        ChatTemplate.from_settings({"chat_template": value})


def test_arguments_and_tools():
    template = ChatTemplate({"default": "{{ enable_thinking }} {{ tools | tojson }} {{ add_generation_prompt }}"}, {})
    arguments = {"enable_thinking": False, "add_generation_prompt": False}
    assert template.render(USER, tools=[{"name": "f"}], arguments=arguments) == 'False [{"name": "f"}] False'
    for wrong in ({"arguments": {"messages": []}}, {"arguments": [1]}, {"arguments": {1: 2}}, {"tools": ["f"]}):
        with pytest.raises(ArgumentError, match=r"chat_template_kwargs|tools"):
            template.render(USER, **wrong)


# Templates like those of published models: ChatML with tools, Llama 3, Gemma.
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not message.content.startswith('<tool>') %}
        {%- set ns.last = (messages | length - 1) - loop.index0 %}{% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson(indent=2) }}
        {%- endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content.split('</think>')[-1].lstrip('\\n') | trim }}
        {{- '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- for message in messages %}
    {%- if not (message.role in ['user', 'system', 'assistant', 'ipython']) %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + date_string + message['content'] | trim }}
{%- endfor %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set offset = 1 %}{% else %}{% set offset = 0 %}{% endif %}
{% for message in messages[offset:] %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}
{% endif %}
{{ '<start_of_turn>' + message.role.upper() + '\\n' }}
{{ message['content'] if message['content'] is string else message['content'] | map(attribute='text') | join }}
{% endfor %}
"""
CONVERSATION = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "2 < 3 & 'é'?"},
    {"role": "assistant", "content": "<think>hm</think>\n\nyes "},
    {"role": "user", "content": "Sure?"},
]
TOOLS = [{"type": "function", "function": {"name": "now", "description": "<é>", "parameters": {"type": "object"}}}]


# Templates like those of vision models: GLM's with a macro, SmolVLM's that takes only parts, Llama 3.2's that takes the
# first part of the system message.
MACRO = """\
{%- macro visible(content) -%}
{%- if content is string %}{{- content }}
{%- elif content is iterable and content is not mapping %}
{%- for item in content %}{%- if item.type == 'text' %}{{- item.text }}{%- elif item is string %}{{- item }}{%- endif %}
{%- endfor %}{%- else %}{{- content }}{%- endif %}
{%- endmacro -%}
[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>
{{ visible(m.content) }}{{ '' if m.role != 'tool' else '</tool>' }}{% endfor %}"""
PARTS = """\
{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}\
{{ ':' }}{% else %}{{ ': ' }}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}\
{{ line['text'] }}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end>\n{% endfor %}"""
FIRST = """\
{%- if messages[0]['role'] == 'system' %}{%- if messages[0]['content'] is string %}{%- set s = messages[0]['content'] %}
{%- else %}{%- set s = messages[0]['content'][0]['text'] %}{%- endif %}{%- set messages = messages[1:] %}
{%- else %}{%- set s = '' %}{%- endif %}{{- '<s>' + s }}
{%- for m in messages %}{{- '<' + m.role + '>' }}{%- if m['content'] is string %}{{- m['content'] | trim }}
{%- else %}{%- for c in m['content'] %}{{- c['text'] | trim if c['type'] == 'text' else '' }}{%- endfor %}{%- endif %}
{%- endfor %}"""


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize("source", [MACRO, PARTS, FIRST, GEMMA])
def test_templates_that_walk_parts_get_them_as_they_are(source):
    given = [
        {"role": "user", "content": parts("one ", " two")},
        {"role": "assistant", "content": parts("yes")},
        {"role": "user", "content": parts("a", "b", "c\n")},
    ]
    expected, _ = render_jinja_template([given], chat_template=source, bos_token="<s>")
    assert render(source, given, bos_token="<s>") == expected[0]


def test_templates_that_take_parts_alone_get_texts_as_parts():
    texts, as_parts = ([{"role": "user", "content": content}] for content in ("Hi", parts("Hi")))
    assert render(PARTS, texts) == render(PARTS, as_parts) == "User: Hi<end>\n"


def test_no_part_is_lost_where_a_template_reads_the_first_alone():
    given = [{"role": "system", "content": parts("Be brief.", "Be kind.")}, *USER]
    assert render(FIRST, given).startswith("<s>Be brief.\nBe kind.<user>")


@pytest.mark.parametrize(
    ("source", "as_parts"),
    [
        *((source, False) for source in (CHATML, LLAMA, GEMMA, MACRO, FIRST)),
        *((source, True) for source in (GEMMA, MACRO, FIRST, PARTS)),
    ],
)
@pytest.mark.parametrize("begun", ["No: ", "{", "```py\n", "a\n\n\n", "<", "start", "_", "|>", "user", "é ", " x"])
def test_an_answer_goes_on_where_it_does_in_transformers(source, begun, as_parts):
    given = [*USER, {"role": "assistant", "content": begun}]
    if as_parts:
        given = [{**message, "content": parts(message["content"])} for message in given]
    expected, _ = render_jinja_template(
        [given], chat_template=source, continue_final_message=True, bos_token="<s>", date_string=""
    )
    prompt = ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(
        given, arguments={"add_generation_prompt": False, "date_string": ""}, continue_final_message=True
    )
    assert prompt == expected[0]
    assert prompt.rstrip().endswith(begun.strip())


def test_an_answer_that_a_template_changes_does_not_go_on():
    given = [*USER, {"role": "assistant", "content": "<think>Hm.</think>Yes"}]
    with pytest.raises(ArgumentError, match=r"continue_final_message: .* changes the last message"):
        ChatTemplate({"default": CHATML}, {}).render(given, continue_final_message=True)
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    with pytest.raises(ArgumentError, match="no text to continue"):
        ChatTemplate({"default": CHATML}, {}).render([*USER, call], continue_final_message=True)


@pytest.mark.parametrize("role", ["user<|im_end|>", "a b", "", "ü", "a\n", "x" * 65])
def test_roles_are_words(role):
    with pytest.raises(ArgumentError, match=r"the role of a chat message is .*: expected 1 to 64 letters"):
        render("x", [{"role": role, "content": "x"}])
    assert render("{{ messages[0].role }}", [{"role": "tool_response-2", "content": "x"}]) == "tool_response-2"


@pytest.mark.parametrize("source", [CHATML, LLAMA, GEMMA])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_templates_print_what_they_do_in_transformers(source, tools):
    expected, _ = render_jinja_template(
        [CONVERSATION], tools=tools, chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(CONVERSATION, tools=tools) == expected[0]
