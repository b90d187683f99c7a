"""The built-in page in a real browser, on the real server or on made-up answers."""

import json
import re

import pytest
import requests
from markdown_it import MarkdownIt

from tests.browser import NAMES, browsing, find_browser

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: expected {', '.join(NAMES)}")

HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"
IS_IDLE = "document.getElementById('stop').disabled"
ANSWER = "([...document.querySelectorAll('.assistant > .said')].at(-1)?.textContent ?? '')"
NOTICE = "document.getElementById('notice').textContent"
# Replaces fetch: ANSWERS maps a path to a function of the request's headers and body, which returns [status, body].
ANSWERS = """
window.asked = [];
window.fetch = async (path, options) => {
  const body = options.body ? JSON.parse(options.body) : null;
  window.asked.push({ path, body });
  const [status, content] = ANSWERS[path](options.headers, body);
  return new Response(typeof content === "string" ? content : JSON.stringify(content), { status });
};
const asEvent = (found) => `data: ${JSON.stringify(found)}\\n\\n`;
const stream = (...found) => found.map(asEvent).join("") + "data: [DONE]\\n\\n";
const chunk = (delta) => ({ choices: [{ index: 0, delta }] });
"""


@pytest.fixture(scope="module")
def browser():
    with browsing(BROWSER) as page:
        yield page


@pytest.fixture
def page(browser, server):
    """The server's page, just opened."""
    _open(browser, server)
    return browser


def _open(page, server):
    page.complaints.clear()
    page.resize(1280)
    page.open_url(f"{server.address}/")
    page.wait_for("document.getElementById('model').options.length || document.getElementById('notice').textContent")


def _set(page, **values):
    for name, value in values.items():
        page.evaluate(f"document.getElementById({json.dumps(name)}).value = {json.dumps(value)}")


def _send(page, text, **values):
    _set(page, text=text, **values)
    page.evaluate("document.getElementById('send').click()")


def _figure(page, name):
    return page.evaluate(f"document.getElementById('{name}').textContent")


def _prepared(page, answers):
    return page.prepared(f"const ANSWERS = {{ {answers} }};{ANSWERS}")


def test_a_prompt_is_answered_in_pieces(page, server):
    page.evaluate("""window.lengths = new Set();
        new MutationObserver(() => lengths.add(document.querySelector('.assistant > .said')?.textContent.length))
            .observe(document.getElementById('turns'), { subtree: true, childList: true, characterData: true })""")
    _send(page, "What is the capital of France?", temperature="0", most="24")
    page.wait_for(f"{IS_IDLE} && {ANSWER}")
    assert "Paris" in page.evaluate(ANSWER)
    assert page.evaluate("lengths.size") > 3
    assert float(_figure(page, "rate")) > 0
    assert re.fullmatch(r"\d+ ms", _figure(page, "first"))
    page.wait_for("/^\\d+$/.test(document.getElementById('running').textContent)")
    assert re.fullmatch(r"[\d.]+%", _figure(page, "cache"))
    assert page.evaluate("document.getElementById('text').value") == ""
    assert page.complaints == []
    assert {url.split("/", 3)[2] for url in page.requests if not url.startswith("data:")} == {
        server.address.removeprefix("http://")
    }


def test_an_answer_is_stopped(page, server):
    page.evaluate("{ const own = settings; settings = () => ({ ...own(), ignore_eos: true }); }")
    _send(page, "Tell me a very long story.", most="900")
    page.wait_for(f"{ANSWER}.length > 20")
    assert not page.evaluate(IS_IDLE)
    page.wait_for("document.getElementById('running').textContent === '1'")
    page.evaluate("document.getElementById('stop').click()")
    page.wait_for(IS_IDLE)
    page.wait_for("document.getElementById('running').textContent === '0'")
    assert requests.get(f"{server.address}/load", timeout=20).json()["server_load"] == 0
    assert page.evaluate(ANSWER)
    assert page.complaints == []


def test_the_headers_let_nothing_else_run(page, server):
    headers = requests.get(f"{server.address}/", timeout=20).headers
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert "unsafe" not in headers["Content-Security-Policy"]
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 1'}))")
    assert page.evaluate("typeof window.hacked") == "undefined"
    page.evaluate("fetch('http://127.0.0.1:9/').catch(() => { window.refused = true; })")
    page.wait_for("window.refused")
    assert all("Content Security Policy" in complaint for complaint in page.complaints)


def test_texts_of_a_server_are_no_html(browser, server):
    name = json.dumps(HOSTILE)
    answers = f"""
      "/v1/models": () => [200, {{ data: [{{ id: {name}, root: {name} }}] }}],
      "/load": () => [200, {{ models: {{}} }}],
      "/v1/chat/completions": (headers, body) => body.messages.at(-1).content === "fail"
        ? [400, {{ error: {{ message: {name} }} }}]
        : [200, stream(chunk({{ reasoning_content: {name} }}), chunk({{ content: {name} }}))],"""
    with _prepared(browser, answers):
        _open(browser, server)
        _send(browser, HOSTILE)
        browser.wait_for(IS_IDLE)
        assert browser.evaluate(ANSWER) == HOSTILE
        assert browser.evaluate("document.querySelector('.reasoning .said').textContent") == HOSTILE
        assert browser.evaluate("document.querySelector('.user .said').textContent") == HOSTILE
        _send(browser, "fail")
        browser.wait_for(f"{IS_IDLE} && {NOTICE}")
        assert browser.evaluate(NOTICE) == HOSTILE
        assert browser.evaluate("document.getElementById('text').value") == "fail"
        assert browser.evaluate("document.images.length + document.scripts.length") == 1
        assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.complaints == []


MARKDOWN = [
    "Some *words* and **strong *ones***, `code` and ``a `tick` ``.\nA second line, 2 * 3 * 4 and snake_case_names.",
    "# One\n\n### Three ###\ntext behind it\n\n---\n\nend",
    "- one\n- two\n  - inner\n  - other\n- three\n\n1. first\n2. second",
    "```python\ndef f(x):\n    return x**2  # <b>\n```\n\n~~~\nplain\n\n- no list\n~~~",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n> quoted\n> text\n\n[a link](https://example.com/x?y=1)",
    "```\nnever ended",
    HOSTILE,
]
# The names of elements and the texts in them. The reference's headings get two levels lower, for the page has its own.
TREE = """(function tree(node) { return [...node.childNodes].flatMap(child => child.nodeType === 3
    ? [child.textContent] : child.nodeName === "BUTTON" || child.className === "code-head" ? []
    : ["DIV", "SPAN"].includes(child.nodeName) ? tree(child) : [[child.nodeName, ...tree(child)]]); })"""


@pytest.mark.parametrize("text", MARKDOWN)
def test_answers_are_read_as_markdown(page, text):
    """The reference is markdown-it without raw HTML; white space between blocks does not count."""
    reference = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    reference = re.sub(r"<(/?)h(\d)>", lambda found: f"<{found[1]}h{min(int(found[2]) + 2, 6)}>", reference)
    page.evaluate(f"""window.made = element("div", ""); showMarkdown(made, {json.dumps(text)});
        window.expected = new DOMParser().parseFromString({json.dumps(reference)}, "text/html").body; 0""")
    made, expected = (page.evaluate(f"{TREE}({name})") for name in ("made", "expected"))
    assert _without_blanks(made) == _without_blanks(expected)


def _without_blanks(tree):
    texts = [item if isinstance(item, list) else " ".join(item.split()) for item in tree]
    return [_without_blanks(item) if isinstance(item, list) else item for item in texts if item]


def test_markdown_makes_no_other_elements_and_no_other_links(page):
    text = f"[a](javascript:alert(1)) [b](data:text/html,x) ![i](http://h/x.png)\n{HOSTILE}\n```\n{HOSTILE}\n```"
    found = f"""(node => {{ showMarkdown(node, {json.dumps(text)}); return [...node.querySelectorAll('*')]
        .map(item => item.nodeName + (item.href ?? '')); }})(element('div', ''))"""
    assert set(page.evaluate(found)) <= {"P", "DIV", "SPAN", "BUTTON", "PRE", "CODE", "Ahttp://h/x.png"}
    assert page.evaluate("typeof window.hacked") == "undefined"


def test_an_answer_has_code_to_copy_and_is_asked_for_again(browser, server):
    answers = """
      "/v1/models": () => [200, { data: [{ id: "m", root: "m", parent: null }, { id: "a", root: "p", parent: "m" }] }],
      "/load": () => [200, { models: {} }],
      "/v1/chat/completions": (headers, body) => [200, stream(
        chunk({ content: asked.length + ": \\n\\n```py\\nx = " }), chunk({ content: "1\\n```" }))],"""
    with _prepared(browser, answers):
        _open(browser, server)
        assert browser.evaluate("[document.title, document.getElementById('name').textContent]") == [
            "m – trtllm_lite",
            "m",
        ]
        _send(browser, "One?", adapter="a", top_p="0.5", seed="7", stop_text="x\ny", schema='{"type": "object"}')
        browser.wait_for(IS_IDLE)
        browser.evaluate("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
        browser.call("Runtime.evaluate", expression="document.querySelector('.copy').click()", userGesture=True)
        assert browser.evaluate("copied") == "x = 1"
        first = browser.evaluate("document.querySelector('.markdown p').textContent")
        browser.evaluate("document.querySelector('.again').click()")
        browser.wait_for(IS_IDLE)
        assert browser.evaluate("document.querySelector('.markdown p').textContent") != first
        assert browser.evaluate("document.querySelectorAll('.assistant').length") == 1
        *_, before, after = browser.evaluate("asked.filter(({ body }) => body).map(({ body }) => body)")
        assert before == after
        assert (before["model"], before["top_p"], before["seed"], before["stop"]) == ("a", 0.5, 7, ["x", "y"])
        form = {"name": "answer", "schema": {"type": "object"}}
        assert before["response_format"] == {"type": "json_schema", "json_schema": form}
        _send(browser, "Two?", schema="{")
        browser.wait_for(f"{IS_IDLE} && {NOTICE}")
        assert "The JSON schema is not JSON" in browser.evaluate(NOTICE)
    assert browser.complaints == []


def test_the_results_of_tools_are_typed_one_after_the_other(browser, server):
    answers = """
      "/v1/models": () => [200, { data: [{ id: "m", root: "m" }] }],
      "/load": () => [200, { models: {} }],
      "/v1/chat/completions": (headers, body) => [200, body.messages.at(-1).role === "tool"
        ? stream(chunk({ content: "Done." }))
        : stream(chunk({ tool_calls: [{ index: 0, id: "c0", function: { name: "f", arguments: '{"x":' } }] }),
            chunk({ tool_calls: [{ index: 0, function: { arguments: " 1}" } }] }),
            chunk({ tool_calls: [{ index: 1, id: "c1", function: { name: "g", arguments: "{}" } }] }))],"""
    with _prepared(browser, answers):
        _open(browser, server)
        _send(browser, "Go.", tools='[{"name": "f"}, {"type": "function", "function": {"name": "g"}}]')
        browser.wait_for(IS_IDLE)
        assert browser.evaluate("document.querySelector('.assistant .code').textContent") == 'fCopy{"x": 1}'
        assert browser.evaluate("document.getElementById('text').placeholder") == "The result of f"
        _send(browser, "one")
        assert browser.evaluate("document.getElementById('text').placeholder") == "The result of g"
        _send(browser, "two")
        browser.wait_for(f"{IS_IDLE} && {ANSWER}.includes('Done')")
        bodies = browser.evaluate("asked.filter(({ body }) => body).map(({ body }) => body)")
        functions = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
        assert bodies[0]["tools"] == functions
        _, said, *results = bodies[1]["messages"]
        assert [(call["id"], call["function"]["arguments"]) for call in said["tool_calls"]] == [
            ("c0", '{"x": 1}'),
            ("c1", "{}"),
        ]
        assert [(one["role"], one["tool_call_id"], one["content"]) for one in results] == [
            ("tool", "c0", "one"),
            ("tool", "c1", "two"),
        ]
    assert browser.complaints == []


def test_a_conversation_is_kept_and_begun_anew(browser, server):
    answers = """
      "/v1/models": () => [200, { data: [{ id: "m", root: "m" }] }],
      "/load": () => [200, { models: {} }],
      "/v1/chat/completions": () => [200, stream(chunk({ content: "Yes." }))],"""
    with _prepared(browser, answers):
        _open(browser, server)
        for question in ("One?", "Two?"):
            _send(browser, question, system="Be brief.")
            browser.wait_for(IS_IDLE)
        bodies = "asked.filter(({ body }) => body).map(({ body }) => body.messages.map(({ content }) => content))"
        assert browser.evaluate(bodies)[-1] == ["Be brief.", "One?", "Yes.", "Two?"]
        browser.evaluate("document.getElementById('clear').click()")
        _send(browser, "Three?")
        browser.wait_for(IS_IDLE)
        assert browser.evaluate(bodies)[-1] == ["Be brief.", "Three?"]


def test_a_model_without_a_chat_template_continues_the_text(browser, server):
    answers = """
      "/v1/models": () => [200, { data: [{ id: "m", root: "m" }] }],
      "/load": () => [200, { models: {} }],
      "/v1/chat/completions": () => [400, { error: { message: "none", code: "no_chat_template" } }],
      "/v1/completions": (headers, body) => [200, stream({ choices: [{ text: ` after ${body.prompt}` }] })],"""
    with _prepared(browser, answers):
        _open(browser, server)
        for _ in range(2):
            _send(browser, "Once")
            browser.wait_for(IS_IDLE)
        assert browser.evaluate(ANSWER) == " after Once\n after Once\nOnce"
        paths = browser.evaluate("asked.filter(({ body }) => body).map(({ path }) => path)")
        assert paths == ["/v1/chat/completions", "/v1/completions", "/v1/completions"]


def test_a_key_is_asked_for(browser, server):
    answers = """
      "/v1/models": (headers) => headers["Authorization"] === "Bearer right"
        ? [200, { data: [{ id: "m", root: "m" }] }] : [401, { error: { message: "no key" } }],
      "/load": () => [200, { models: {} }],"""
    with _prepared(browser, answers):
        _open(browser, server)
        assert browser.evaluate(NOTICE) == "no key"
        assert browser.evaluate("document.getElementById('key').checkVisibility()")
        _set(browser, key="right")
        browser.evaluate("document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait_for("document.getElementById('model').value === 'm'")
        assert browser.evaluate(NOTICE) == ""
        assert browser.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    page.resize(width, 740)
    page.evaluate("document.getElementById('settings').open = true")
    page.evaluate("showTurn('assistant', 'm'.repeat(300), 'x'.repeat(900)); tell('e'.repeat(300))")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [width, True]
    assert page.evaluate("[...document.querySelectorAll('button')].every(item => item.checkVisibility())")


def test_every_field_has_a_label(page):
    fields = "[...document.querySelectorAll('input, select, textarea')]"
    assert page.evaluate(f"{fields}.filter(field => !field.labels.length).map(field => field.id)") == []
    assert page.evaluate("document.activeElement.id") == "text"
