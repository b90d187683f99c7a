"""gpt-oss's messages: against what its format says, and against openai-harmony."""

import importlib.util
import os
import random
from pathlib import Path

import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.serve.parsers import make_parser, needs_special_tokens

from .parsing import parsed

NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|call|>"}<|call|>'
CALLED = ["f", '{"a": "<|call|>"}']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Yes.<|return|>", ["Yes."]),
        ("<|channel|>analysis<|message|>Hm.<|end|>", [("thinks", "Hm.")]),
        (f"<|channel|>analysis<|message|>Hm.{NEXT}<|channel|>final<|message|>1 <| 2", [("thinks", "Hm."), "1 <| 2"]),
        (f"<|channel|>analysis<|message|>Hm.{NEXT}{CALL}", [("thinks", "Hm."), CALLED]),
        (f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}", ["I look.", CALLED]),
        (f"{CALL}<|start|>assistant{CALL}", [CALLED, CALLED]),
        (" to=functions.f<|channel|>commentary json<|message|>{}", [["f", "{}"]]),
        (f"<|channel|>final<|message|>a{NEXT} to=functions.f<|channel|>commentary<|message|>{{}}", ["a", ["f", "{}"]]),
        ("<|channel|>analysis to=functions.f<|message|>{}", [["f", "{}"]]),
        ("<|channel|>commentary to=f<|message|>{}", [["f", "{}"]]),
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", [("thinks", "1+1")]),
        ("<|channel|>commentary to=browser.open<|message|>{}", [("thinks", "{}")]),
        (f"<|channel|>final<|message|>a<|channel|>final<|message|>b{NEXT}", ["ab<|start|>assistant"]),
        ("<|start|>functions.f to=assistant<|channel|>commentary<|message|>{}", ["{}"]),
        ("Yes.", ["Yes."]),
        ("Yes.<|channel|>final<|message|>No.", ["Yes.No."]),
        (" to be", [" to be"]),
        (" to=functions.f is it", [" to=functions.f is it"]),
        ("<|channel|>final", ["<|channel|>final"]),
        ("<|channel|>final<|end|>", ["<|channel|>final<|end|>"]),
        (
            "<|channel|>commentary to=functions.f<|message|>no<|call|>",
            ["<|channel|>commentary to=functions.f<|message|>no<|call|>"],
        ),
        ('<|channel|>commentary to=functions.f<|message|>{"a": 1} so<|call|>a', [["f", '{"a": 1}'], "a"]),
        ("<|channel|>commentary to=functions.f<|channel|>commentary<|message|>{}", [["f", "{}"]]),
        (" to=functions.f<|channel|>commentary<|constrain|>json<|message|>{}", [["f", "{}"]]),
    ],
)
def test_messages_are_of_channels(text, expected):
    for names in ({"tool_parser": "openai"}, {"reasoning_parser": "openai_gptoss"}):
        assert parsed(text, **names) == expected


def test_malformed_arguments_are_no_content():
    call = '<|channel|>commentary to=functions.f<|message|>{"a": 1, '
    text = f"{call}b}}<|call|>"
    assert parsed(f"{text}<|channel|>final<|message|>a", "openai") == [["f", '{"a": 1}', "…", text], "a"]
    assert parsed(call, "openai") == [["f", '{"a": 1}', "…", call]]


def test_a_prompt_may_have_begun_the_thoughts():
    text = f"Hm.{NEXT}<|channel|>final<|message|>Yes."
    assert parsed(text, "openai", starts_inside=True) == [("thinks", "Hm."), "Yes."]


def test_without_tools_messages_are_read_and_nothing_is_called():
    text = f"<|channel|>analysis<|message|>Hm.{NEXT}<|channel|>commentary to=functions.f<|message|>{{}}<|call|>"
    assert parsed(text, "openai", tools=[]) == [("thinks", "Hm."), "{}"]


def test_the_format_goes_with_no_other():
    with pytest.raises(ArgumentError, match="openai reads all of the text; leave qwen3 out"):
        make_parser(tool_parser="openai", reasoning_parser="qwen3")
    with pytest.raises(ArgumentError, match="openai_gptoss reads all of the text; leave hermes out"):
        make_parser(tool_parser="hermes", reasoning_parser="openai_gptoss")
    assert needs_special_tokens(None, "openai_gptoss")
    assert needs_special_tokens("openai", None)
    assert not needs_special_tokens("hermes", "qwen3")


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    """openai-harmony's encoding, with the vocabulary that litellm ships, as the package's own comes from a network."""
    directory = tmp_path_factory.mktemp("vocabulary")
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    shipped = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    (directory / "o200k_base.tiktoken").symlink_to(shipped / "fb374d419588a4632f3f557e76b4b70aebbca790")
    package = pytest.importorskip("openai_harmony")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TIKTOKEN_ENCODINGS_BASE", str(directory))
        return package, package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)


def reference(harmony, text):
    """What openai-harmony finds in a text."""
    package, encoding = harmony
    tokens = encoding.encode(text, allowed_special="all")
    result = []
    for message in encoding.parse_messages_from_completion_tokens(tokens, package.Role.ASSISTANT):
        body = "".join(content.text for content in message.content)
        if message.recipient is not None and message.recipient.startswith("functions."):
            result.append([message.recipient.removeprefix("functions."), body])
        elif body:
            result.append(("thinks", body) if message.channel == "analysis" else body)
    return result


def test_messages_are_as_openai_harmony_reads_them(harmony):
    draw = random.Random(0)
    bodies = ("Hm.", "1 < 2 <| 3", "é🙂 你好", "{}", '{"a": [1, "x"]}', "\n\nto=functions.f\n")
    heads = (
        *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
        *("<|channel|>commentary to=functions.f <|constrain|>json<|message|>",),
        *(" to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",),
        *("<|channel|>commentary to=functions.f json<|message|>", " to=functions.f<|channel|>analysis<|message|>"),
    )
    for _ in range(200):
        messages = []
        for head in draw.choices(heads, k=draw.randint(1, 4)):
            body = draw.choice(bodies[3:5] if "to=functions" in head else bodies)
            messages.append(head + body + ("<|call|>" if "to=functions" in head else "<|end|>"))
        text = "<|start|>assistant".join(messages)
        assert joined(parsed(text, "openai")) == joined(reference(harmony, text)), text


def joined(items):
    """Join neighbours of one kind, because a stream does not say where messages of one channel end."""
    result = []
    for item in items:
        if result and type(item) is type(result[-1]) and not isinstance(item, list):
            last = result.pop()
            item = last + item if isinstance(item, str) else ("thinks", last[1] + item[1])
        result.append(item)
    return result
