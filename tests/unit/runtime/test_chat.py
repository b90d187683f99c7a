"""Chat templates: Hugging Face's conventions, in a sandbox, bounded."""

import pytest

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.text.chat import ChatTemplate

USER = [{"role": "user", "content": "<b> & 'é'"}]


def render(source, messages=USER, **tokens):
    return ChatTemplate(source, tokens).render(messages)


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
    with pytest.raises(ArgumentError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10000000 }}",
        "{% for i in range(99999) %}{{ 'a' * 100 }}{% endfor %}",
        "{{ messages[0]['content'] / 2 }}",
        "{{ nonsense.attribute }}",
    ],
)
def test_hostile_templates_fail_cleanly(source):
    with pytest.raises(ArgumentError, match="template"):
        render(source)


def test_broken_templates_are_an_engine_error():
    with pytest.raises(EngineError, match="Jinja"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize("messages", [[], ["hi"], [{"role": "user"}], [{"content": "x"}], [{"role": 1, "content": ""}]])
def test_malformed_messages_are_refused(messages):
    with pytest.raises(ArgumentError):
        render("x", messages)


def test_settings_of_tokenizer_config():
    assert ChatTemplate.from_settings({}) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ eos_token }}"}]
    template = ChatTemplate.from_settings({"chat_template": named, "eos_token": {"content": "</s>"}, "pad_token": None})
    assert template.render(USER) == "</s>"
