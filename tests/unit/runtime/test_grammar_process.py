"""A grammar that crashes the compiler's process crashes no other process; white space in grammars is bounded."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import regex

from tests.models import EOS_ID, PAD_ID, tiny_tokenizer
from trtllm_lite import GuidedDecodingParams
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError
from trtllm_lite.runtime.session import grammar_process, grammar_texts, grammars
from trtllm_lite.runtime.session.guided_decoding import GrammarSource

from .test_guided_decoding import byte_level, grammars_of, grammars_of_file, matcher_of

MANY_RULES = "\n".join(
    ["start: " + " ".join(f"r{i}" for i in range(24_000)), *(f'r{i}: "a" "b"' for i in range(24_000))]
)


def chain_of_schemas(length: int, keyword: str) -> dict[str, Any]:
    """Each schema refers to the next: by a property, by items, or as one of allOf or anyOf."""
    names = [f"#/$defs/s{i}" for i in range(length)]
    inner: dict[str, Any] = {"properties": {"x": {}}, "items": {}, "allOf": {}, "anyOf": {}}

    def refer(name: str) -> dict[str, Any]:
        reference = {"$ref": name}
        if keyword == "properties":
            return {"type": "object", "properties": {"x": reference}}
        if keyword == "items":
            return {"type": "array", "items": reference}
        return {keyword: [reference, {"type": "integer"}]}

    assert keyword in inner
    schemas = {f"s{i}": refer(name) for i, name in enumerate(names[1:])}
    return {"$ref": names[0], "$defs": schemas | {f"s{length - 1}": {"type": "integer"}}}


def chain_of_rules(length: int, name: str) -> str:
    names = [f"{name}{i}" for i in range(length)]
    lines = [f'{one}: "a" {other} | "b"' for one, other in pairwise(names)]
    return "\n".join([f"start: {names[0]}", *lines, f'{names[-1]}: "c"'])


def source_of(**guided: Any) -> GrammarSource:
    return GuidedDecodingParams(**guided).source


@pytest.mark.parametrize(
    "guided",
    [
        *({"json": chain_of_schemas(2500, keyword)} for keyword in ("properties", "items", "allOf", "anyOf")),
        *({"grammar": chain_of_rules(6000, name)} for name in ("r", "T")),
        {"regex": "(" * 8000 + "a" + ")" * 8000},
        {
            "structural_tag": {
                "type": "structural_tag",
                "triggers": ["<"],
                "structures": [{"begin": "<a", "schema": chain_of_schemas(2500, "items"), "end": ">"}],
            }
        },
    ],
    ids=["properties", "items", "allOf", "anyOf", "rules", "terminals", "regex", "tag"],
)
def test_chains_end_their_own_process_and_no_other(guided):
    made = grammars_of(tiny_tokenizer())
    with pytest.raises((LimitError, ArgumentError), match="of guided_decoding: "):
        made.compile(source_of(**guided))
    assert matcher_of(made, regex="a").allowed(380)


def test_what_overflows_the_stack_is_told_so():
    made = grammars_of(tiny_tokenizer())
    with pytest.raises(LimitError, match=r"grammar of guided_decoding: .*\(1 MiB of stack\).*; simplify it"):
        made.compile(source_of(grammar=chain_of_rules(20_000, "rule_")))


def test_what_takes_too_long_is_ended(monkeypatch):
    made = grammars_of(tiny_tokenizer())
    monkeypatch.setattr(grammar_process, "MAX_CPU_SECONDS", 0.001)
    with pytest.raises(LimitError, match=r"choice of guided_decoding: .* within 0\.001 s of computing"):
        made.compile(source_of(choice=[f"{i * 7919} and more of it" for i in range(16_000)]))
    monkeypatch.setattr(grammar_process, "MAX_CPU_SECONDS", 2.0)
    monkeypatch.setattr(grammar_process, "MAX_WALL_SECONDS", 0.001)  # too short for 2 s of CPU time
    with pytest.raises(OverloadedError, match=r"choice of guided_decoding: .* within 0\.001 s, found this machine"):
        made.compile(source_of(choice=[f"{i * 7919} and more of that" for i in range(16_000)]))


def test_what_takes_too_much_memory_is_ended(monkeypatch):
    made = grammars_of(tiny_tokenizer())
    monkeypatch.setattr(grammar_process, "MAX_MEMORY_BYTES", 4 << 20)
    structures = [{"begin": f"<{i}>", "schema": {"type": "object"}, "end": "</>"} for i in range(600)]
    with pytest.raises(LimitError, match=r"structural_tag of guided_decoding: .* at most 4 MiB of memory"):
        made.compile(source_of(structural_tag={"type": "structural_tag", "triggers": ["<"], "structures": structures}))


@pytest.mark.parametrize(
    ("guided", "kind", "message"),
    [
        (
            {"structural_tag": {"type": "structural_tag", "triggers": ["<"], "structures": [
                {"begin": f"<{i}>", "schema": {}, "end": ">"} for i in range(4000)]}},
            LimitError, "it has 4,000 structures, which exceeds 1,024",
        ),
        ({"grammar": MANY_RULES}, LimitError, "more than 65,525 symbols"),
        ({"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, ArgumentError, "no text can match it"),
        ({"grammar": "start: a\na: b\nb: a"}, ArgumentError, "no text can match it"),
        ({"grammar": 'start: %json {"const": "\\ud800"}'}, ArgumentError, "refuses"),
        ({"grammar": 'start: %json {"const": }'}, ArgumentError, "expected JSON after %json"),
        ({"regex": "(panic: "}, ArgumentError, "unclosed group"),
    ],
)  # fmt: skip
def test_limits_are_named_and_the_library_is_not_quoted(guided, kind, message):
    made = grammars_of_file(tiny_tokenizer().to_str())
    with pytest.raises(kind, match=f"of guided_decoding: .*{message}") as caught:
        made.compile(source_of(**guided))
    assert "panic:" not in str(caught.value).replace("(panic: ", "")
    assert "backtrace" not in str(caught.value)


def test_a_process_that_was_killed_is_started_again():
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    made.compile(source_of(regex="ab"))
    os.kill(_pid(made), signal.SIGKILL)
    made.compile(source_of(regex="abc"))


def test_a_process_that_does_not_answer_is_replaced(monkeypatch):
    """The process is stopped by a signal, as if the machine gave it no CPU time."""
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    made.compile(source_of(regex="ab"))
    stopped = _pid(made)
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(grammar_process, "MAX_WALL_SECONDS", 0.1)
    monkeypatch.setattr(grammar_process, "_SPARE_SECONDS", 0.1)
    with pytest.raises(OverloadedError, match=r"to answer within 0\.2 s, found this machine too busy"):
        made.compile(source_of(regex="abc"))
    monkeypatch.undo()
    made.compile(source_of(regex="abcd"))
    assert _pid(made) != stopped


def test_the_process_ends_with_the_grammars():
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    process = _process(made)
    del made
    assert process.poll() == 0


@pytest.mark.parametrize("executable", ["/nonexistent/python", None])
def test_a_process_that_does_not_start_is_an_error(executable, monkeypatch):
    monkeypatch.setattr("sys.executable", executable)
    with pytest.raises(EngineError, match=r"does not start .*: let this process start Python, or leave"):
        grammars_of_file.__wrapped__(tiny_tokenizer().to_str())


def test_a_fork_has_a_process_of_its_own():
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    made.compile(source_of(regex="b"))
    ours = _pid(made)
    child = os.fork()
    if child == 0:
        try:
            made.compile(source_of(regex="c"))
            os._exit(1 if _pid(made) == ours else 0)
        finally:
            os._exit(2)  # or else the child would run the remaining tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.compile(source_of(regex="d"))
    assert _pid(made) == ours


def test_the_process_ends_with_one_that_is_killed():
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
            made.compile(source_of(regex="a"))
            os.write(writes, str(_pid(made)).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pid = int(os.read(reads, 100))
    os.close(reads)
    os.close(writes)
    while _is_alive(pid):
        pass


def _is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which has ended and whose parent has not waited for it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_more_than_compile_at_once_take_turns_or_are_told(monkeypatch):
    made = grammars_of(tiny_tokenizer())
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda i: made.compile(source_of(regex=f"turn{i}|x")), range(36)))
    monkeypatch.setattr(grammar_process, "MAX_WALL_SECONDS", 0.01)
    released = threading.Event()

    def hold() -> None:
        with made._process.place():
            held.release()
            released.wait()

    held = threading.Semaphore(0)
    with ThreadPoolExecutor(grammar_process.MAX_AT_ONCE) as pool:
        for _ in range(grammar_process.MAX_AT_ONCE):
            pool.submit(hold)
            held.acquire()
        try:
            with pytest.raises(OverloadedError, match=r"regex of guided_decoding: .*at most 4 grammars"):
                made.compile(source_of(regex="y"))
        finally:
            released.set()


def test_kept_grammars_are_bounded_in_memory(monkeypatch):
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    sources = [source_of(json={"type": "object", "properties": {f"a{i}": {"type": "string"}}}) for i in range(3)]
    first = made.compile(sources[0])
    monkeypatch.setattr(grammars, "MAX_KEPT_BYTES", made._kept._num_bytes * 3 // 2)  # room for one grammar
    assert made.compile(sources[0]) is first
    made.compile(sources[1])
    assert made.compile(sources[0]) is not first
    monkeypatch.setattr(grammars, "MAX_KEPT_BYTES", 1 << 30)
    again = made.compile(sources[0])
    made.compile(sources[2])
    assert made.compile(sources[0]) is again


def test_a_grammar_for_which_there_is_never_room_is_refused(monkeypatch):
    made = grammars_of_file.__wrapped__(tiny_tokenizer().to_str())
    monkeypatch.setattr(grammars, "MAX_KEPT_BYTES", 1 << 20)
    with pytest.raises(
        LimitError, match=r"choice of guided_decoding: .* at most 1 MiB when compiled, found one of \d+ MiB"
    ):
        made.compile(source_of(choice=[f"{i * 7919} and more of it" for i in range(8000)]))
    assert made._kept._num_bytes == 0


def _process(made: Any) -> Any:
    return made._process._worker.stop.peek()[2][0]


def _pid(made: Any) -> int:
    return _process(made).pid


def _allows(made: Any, guided: dict[str, Any], text: str) -> bool:
    """Whether a whole text matches a grammar."""
    _, texts = byte_level()
    matcher, names = matcher_of(made, **guided), {piece: token for token, piece in enumerate(texts)}
    for byte in text.encode():
        token = names[bytes([byte])]
        if token not in matcher.allowed(len(texts)):
            return False
        matcher.accept([token])
    return not {EOS_ID, PAD_ID}.isdisjoint(matcher.allowed(len(texts)))


LAYOUTS = (None, 0, 1, 2, 3, 4, 8, "\t")
OBJECT = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}}}


@pytest.mark.parametrize("indent", LAYOUTS)
def test_json_may_be_laid_out_as_usual(indent):
    made, value = grammars_of(tiny_tokenizer()), {"a": [1, 2], "b": {"c": {"d": [[], {}]}}}
    for guided in ({"json": OBJECT}, {"json_object": True}, {"grammar": f"start: %json {json.dumps(OBJECT)}"}):
        assert _allows(made, guided, json.dumps(value, indent=indent))
        assert _allows(made, guided, json.dumps(value, indent=indent, separators=(",", ":")))
        assert _allows(made, guided, json.dumps(value, indent=indent).replace("\n", "\r\n"))


TAGS = {
    "type": "structural_tag",
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": OBJECT, "end": "</f>"}],
}


@pytest.mark.parametrize(
    ("guided", "frame"),
    [
        ({"json": OBJECT}, "%s"),
        ({"json_object": True}, "%s"),
        ({"grammar": f'start: "x" %json {json.dumps(OBJECT)} // %json {{\n'}, "x%s"),
        ({"grammar": "start: %json true"}, "%s"),
        ({"structural_tag": TAGS}, "<f>%s</f>"),
        ({"json": {**OBJECT, "x-guidance": {"coerce_one_of": True}}}, "%s"),
    ],
    ids=["json", "json_object", "lark", "anything", "tag", "options"],
)
def test_white_space_is_bounded(guided, frame):
    made = grammars_of(tiny_tokenizer())
    assert _allows(made, guided, frame % '{"a":[1]}')
    for many in (" " * 200, "\n" * 3, "\t" * 90, "\n" + " " * 200, " \n" * 40):
        assert not _allows(made, guided, frame % f'{{"a":{many}[1]}}')
        assert not _allows(made, guided, frame % f'{{{many}"a":[1]}}')
        assert not _allows(made, guided, frame % f'{{"a":[1]{many}}}')


def test_a_schema_may_say_what_white_space_it_wants():
    made = grammars_of(tiny_tokenizer())
    compact = {"json": {**OBJECT, "x-guidance": {"whitespace_flexible": False}}}
    assert _allows(made, compact, '{"a":[1]}')
    assert not _allows(made, compact, '{"a": [1]}')


def test_the_pattern_of_white_space_is_one_line_break_at_most():
    for text in (" ", "\n", "  \r\n\t\t", "\n" + " " * 80):
        assert regex.fullmatch(grammar_texts.WHITE_SPACE, text)
    for text in ("", "\n\n", " " * 9, "\n" + " " * 81):
        assert not regex.fullmatch(grammar_texts.WHITE_SPACE, text)


@pytest.mark.parametrize("name", ["phone", "idn-email", "iri", "regex", "int32", "date-time-local"])
def test_formats_that_nobody_enforces_are_annotations(name):
    made = grammars_of(tiny_tokenizer())
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": name}}, "required": ["format"]}
    jsonschema.validate({"format": "no such thing"}, schema)
    nested = {"$defs": {"x": schema}, "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/x"}}]}
    assert _allows(made, {"json": schema}, '{"format":"no such thing"}')
    assert _allows(made, {"json": nested}, '[{"format":"no such thing"}]')
    assert _allows(made, {"json": {"const": {"format": name}}}, json.dumps({"format": name}, separators=(",", ":")))


@pytest.mark.parametrize("name", sorted(grammar_texts.KNOWN_FORMATS - {"unknown"}))
def test_known_formats_are_enforced(name):
    made = grammars_of(tiny_tokenizer())
    assert not _allows(made, {"json": {"type": "string", "format": name}}, '"?? ?"')
