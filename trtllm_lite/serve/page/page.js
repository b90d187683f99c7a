// What comes from the server is put into text nodes alone, so that no text of a model is ever read as HTML.
const byId = (id) => document.getElementById(id);
const [form, text, send, stop, turns, notice, modelField] =
  ["form", "text", "send", "stop", "turns", "notice", "model"].map(byId);
const LOAD_MILLISECONDS = 2000;

let models = [];
let conversation = []; // the messages, as the server takes them
let calls = []; // tool calls whose results are still to be typed
let live = null; // the latest answer, which may be asked for again
let running = null; // the AbortController of the answer that is coming

// The shown turns.

function showTurn(role, who, content) {
  const said = element("div", "said", content);
  const turn = element("li", role, element("p", "who", who), said);
  turns.append(turn);
  turn.scrollIntoView({ block: "end" });
  return { turn, said, reasoning: null, text: "", chat: false, calls: [], frame: 0 };
}

// Follow what is added to a turn, unless the reader has scrolled up.
function following(change) {
  const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
  change();
  if (follows) turns.scrollTop = turns.scrollHeight;
}

function addText(node, added) {
  following(() => (node.lastChild ? node.lastChild.appendData(added) : node.append(added)));
}

// Show an answer as it is now: in a chat as Markdown, at most once for each frame.
function showAnswer(shown) {
  cancelAnimationFrame(shown.frame);
  shown.said.classList.toggle("markdown", shown.chat);
  following(() => (shown.chat ? showMarkdown(shown.said, shown.text) : shown.said.replaceChildren(shown.text)));
}

function addAnswer(shown, added) {
  shown.text += added;
  cancelAnimationFrame(shown.frame);
  shown.frame = requestAnimationFrame(() => showAnswer(shown));
}

// Put together the parts of calls as they come.
function addCalls(shown, parts) {
  for (const part of parts) {
    const call = (shown.calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= part.id ?? "";
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
}

function showCalls(shown) {
  for (const call of shown.calls) shown.turn.append(codeBlock(call.function.arguments, call.function.name));
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

// The speed of an answer; the server counts its tokens, or the page counts events if the answer was stopped.
function showSpeed({ asked, first, last, tokens }) {
  byId("first").textContent = first ? `${Math.round(first - asked)} ms` : "–";
  byId("rate").textContent = tokens > 1 && last > first ? ((tokens - 1) / ((last - first) / 1000)).toFixed(1) : "–";
}

// The line below a finished answer: its figures, and for the latest answer a button to ask again.
function showFoot(shown, speed) {
  live?.again.remove();
  const again = element("button", "again", "Regenerate");
  again.type = "button";
  again.addEventListener("click", regenerate);
  const figures = `${speed.tokens} tokens, ${byId("rate").textContent} a second, the first after ${byId("first").textContent}`;
  following(() => shown.turn.append(element("div", "foot", element("span", "", figures), again)));
  live = { ...shown, again };
}

async function receive(shown, speed) {
  for await (const found of events(await answer(running.signal))) {
    const choice = found.choices[0];
    const said = choice?.delta?.content ?? choice?.text;
    const thought = choice?.delta?.reasoning_content;
    const called = choice?.delta?.tool_calls;
    shown.chat ||= Boolean(choice?.delta);
    if (said || thought || called) {
      speed.last = performance.now();
      if (!speed.first) refreshLoad();
      speed.first ||= speed.last;
      speed.tokens += 1;
      if (thought) addReasoning(shown, thought);
      if (said) addAnswer(shown, said);
      if (called) addCalls(shown, called);
    }
    speed.tokens = found.usage?.completion_tokens ?? speed.tokens;
    showSpeed(speed);
  }
}

// Ask for an answer to the conversation; returns whether there was one.
async function reply() {
  tell("");
  setRunning(new AbortController());
  const shown = showTurn("assistant", settings().model, "");
  shown.turn.setAttribute("aria-busy", "true");
  const speed = { asked: performance.now(), first: 0, last: 0, tokens: 0 };
  try {
    await receive(shown, speed);
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
  showAnswer(shown);
  shown.turn.removeAttribute("aria-busy");
  setRunning(null);
  refreshLoad();
  const answered = Boolean(shown.text || shown.reasoning || shown.calls.length);
  if (answered) {
    conversation.push({ role: "assistant", content: shown.text, ...(shown.calls.length ? { tool_calls: shown.calls } : {}) });
    calls = [...shown.calls];
    showCalls(shown);
    showFoot(shown, speed);
  } else shown.turn.remove();
  showPlaceholder();
  return answered;
}

function showPlaceholder() {
  text.placeholder = calls.length ? `The result of ${calls[0].function.name}` : "Ask something";
}

async function sendText() {
  const content = text.value.trim();
  if (!content || running) return;
  const call = calls.shift();
  conversation.push(call ? { role: "tool", tool_call_id: call.id, content } : { role: "user", content });
  const question = showTurn("user", call ? `Result of ${call.function.name}` : "You", content);
  text.value = "";
  showPlaceholder();
  if (calls.length || (await reply())) return;
  // Nothing was answered: the question can be changed and sent again.
  if (call) calls.unshift(call);
  conversation.pop();
  question.turn.remove();
  text.value ||= content;
}

async function regenerate() {
  if (running) return;
  const [before, shown, open] = [conversation.pop(), live, calls];
  shown.turn.hidden = true;
  calls = [];
  if (await reply()) shown.turn.remove();
  else {
    conversation.push(before);
    calls = open;
    shown.turn.hidden = false;
    showPlaceholder();
  }
}

// Figures and models.

async function showModels() {
  const found = await (await ask("/v1/models")).json();
  const chosen = modelField.value;
  models = found.data;
  const bases = models.filter((model) => !model.parent);
  modelField.replaceChildren(...bases.map((model) => new Option(model.id, model.id)));
  if (bases.some((model) => model.id === chosen)) modelField.value = chosen;
  showAdapters();
}

// The adapters of the chosen model, and the name at the head.
function showAdapters() {
  const chosen = models.find((model) => model.id === modelField.value);
  const own = models.filter((model) => model.parent && (model.parent === chosen?.id || model.parent === chosen?.root));
  byId("adapter").replaceChildren(new Option("none", ""), ...own.map((model) => new Option(model.id, model.id)));
  byId("name").textContent = modelField.value;
  document.title = `${modelField.value} – trtllm_lite`;
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
  [conversation, calls, live] = [[], [], null];
  turns.replaceChildren();
  showPlaceholder();
  tell("");
  text.focus();
});
byId("key").addEventListener("change", start);
byId("key-field").addEventListener("submit", (event) => event.preventDefault());
modelField.addEventListener("change", () => (showAdapters(), refreshLoad()));
document.addEventListener("visibilitychange", refreshLoad);
setInterval(refreshLoad, LOAD_MILLISECONDS);
byId("settings").open = matchMedia("(min-width: 761px)").matches;
start();
text.focus();
