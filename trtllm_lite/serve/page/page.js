"use strict";
// What comes from the server is put into text nodes alone, so that no text of a model is ever read as HTML.
const byId = (id) => document.getElementById(id);
const [form, text, send, stop, turns, notice, modelField] =
  ["form", "text", "send", "stop", "turns", "notice", "model"].map(byId);
const LOAD_MILLISECONDS = 2000;

let models = [];
let conversation = []; // of {role, content}
let running = null; // the AbortController of the answer that is coming
const withoutTemplate = new Set(); // models that continue texts, and hold no chats

class ServerError extends Error {
  constructor(status, error) {
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

// Requests.

async function ask(path, options = {}) {
  const headers = {};
  if (byId("key").value) headers["Authorization"] = `Bearer ${byId("key").value}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  if (response.status === 401) {
    byId("key-field").hidden = false;
    byId("settings").open = true;
  }
  throw new ServerError(response.status, found.error ?? {});
}

// The data of server-sent events, parsed, until [DONE].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const found = JSON.parse(data);
      if (found.error) throw new ServerError(200, found.error);
      yield found;
    }
  }
}

function settings() {
  const body = { model: modelField.value, stream: true, stream_options: { include_usage: true } };
  const temperature = byId("temperature").valueAsNumber;
  const most = byId("most").valueAsNumber;
  if (!Number.isNaN(temperature)) body.temperature = temperature;
  if (!Number.isNaN(most)) body.max_tokens = most;
  return body;
}

function post(path, own, signal) {
  return ask(path, { method: "POST", body: JSON.stringify({ ...settings(), ...own }), signal });
}

async function answer(signal) {
  const system = byId("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...conversation] : conversation;
  const model = modelField.value;
  if (!withoutTemplate.has(model)) {
    try {
      return await post("/v1/chat/completions", { messages }, signal);
    } catch (error) {
      if (error.code !== "no_chat_template") throw error;
      withoutTemplate.add(model);
    }
  }
  const prompt = messages.map((message) => message.content).join("\n");
  return post("/v1/completions", { prompt }, signal);
}

// What is shown.

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

function showTurn(role, who, content) {
  const said = element("div", "said", content);
  const turn = element("li", role, element("p", "who", who), said);
  turns.append(turn);
  turn.scrollIntoView({ block: "end" });
  return { turn, said, reasoning: null };
}

// Add to a turn's text, and follow it unless the reader has scrolled up.
function addText(node, added) {
  const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
  if (node.lastChild) node.lastChild.appendData(added);
  else node.append(added);
  if (follows) turns.scrollTop = turns.scrollHeight;
}

function addReasoning(shown, added) {
  if (!shown.reasoning) {
    shown.reasoning = element("div", "said");
    const details = element("details", "reasoning", element("summary", "", "Reasoning"), shown.reasoning);
    details.open = true;
    shown.said.before(details);
  }
  addText(shown.reasoning, added);
}

function tell(message) {
  notice.textContent = message;
  notice.hidden = !message;
}

function setRunning(controller) {
  running = controller;
  send.disabled = byId("clear").disabled = controller !== null;
  stop.disabled = controller === null;
}

// How fast an answer came; tokens are counted by the server, or by events if the answer was stopped.
function showSpeed(asked, first, last, tokens) {
  byId("first").textContent = first ? `${Math.round(first - asked)} ms` : "–";
  byId("rate").textContent = tokens > 1 && last > first ? ((tokens - 1) / ((last - first) / 1000)).toFixed(1) : "–";
}

async function sendText() {
  const content = text.value.trim();
  if (!content || running) return;
  tell("");
  setRunning(new AbortController());
  conversation.push({ role: "user", content });
  const question = showTurn("user", "You", content);
  const shown = showTurn("assistant", modelField.value, "");
  shown.turn.setAttribute("aria-busy", "true");
  text.value = "";
  const asked = performance.now();
  let [first, last, tokens] = [0, 0, 0];
  try {
    for await (const found of events(await answer(running.signal))) {
      const choice = found.choices[0];
      const said = choice?.delta?.content ?? choice?.text;
      const thought = choice?.delta?.reasoning_content;
      if (said || thought) {
        last = performance.now();
        if (!first) refreshLoad();
        first ||= last;
        tokens += 1;
        if (thought) addReasoning(shown, thought);
        if (said) addText(shown.said, said);
      }
      tokens = found.usage?.completion_tokens ?? tokens;
      showSpeed(asked, first, last, tokens);
    }
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
  shown.turn.removeAttribute("aria-busy");
  setRunning(null);
  refreshLoad();
  const replied = shown.said.textContent;
  if (replied || shown.reasoning) {
    conversation.push({ role: "assistant", content: replied });
    return;
  }
  // Nothing was answered: the question can be changed and sent again.
  conversation.pop();
  question.turn.remove();
  shown.turn.remove();
  text.value ||= content;
}

// Figures and models.

async function showModels() {
  const found = await (await ask("/v1/models")).json();
  const chosen = modelField.value;
  models = found.data;
  modelField.replaceChildren(...models.map((model) => new Option(model.id, model.id)));
  if (models.some((model) => model.id === chosen)) modelField.value = chosen;
}

async function showLoad() {
  if (document.visibilityState !== "visible" || !models.length) return;
  const found = await (await ask("/load")).json();
  const model = models.find((entry) => entry.id === modelField.value);
  const load = found.models[model?.parent ?? model?.root];
  byId("running").textContent = load ? load.num_requests_running : "–";
  byId("waiting").textContent = load ? load.num_requests_waiting : "–";
  byId("cache").textContent = load ? `${(100 * load.kv_cache_usage).toFixed(1)}%` : "–";
}

function start() {
  showModels()
    .then(() => tell(""))
    .then(showLoad)
    .catch((error) => tell(error.message));
}

function refreshLoad() {
  showLoad().catch(() => ["running", "waiting", "cache"].forEach((id) => (byId(id).textContent = "–")));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sendText();
});
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  sendText();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
stop.addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  conversation = [];
  turns.replaceChildren();
  tell("");
  text.focus();
});
byId("key").addEventListener("change", start);
byId("key-field").addEventListener("submit", (event) => event.preventDefault());
modelField.addEventListener("change", refreshLoad);
document.addEventListener("visibilitychange", refreshLoad);
setInterval(refreshLoad, LOAD_MILLISECONDS);
byId("settings").open = matchMedia("(min-width: 761px)").matches;
start();
text.focus();
