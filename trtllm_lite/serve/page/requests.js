// Requests to the server.
const withoutTemplate = new Set(); // models without a chat template, which only continue texts

class ServerError extends Error {
  constructor(status, error) {
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

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

function post(path, own, signal) {
  return ask(path, { method: "POST", body: JSON.stringify({ ...settings(), ...own }), signal });
}

async function answer(signal) {
  const system = byId("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...conversation] : conversation;
  const { model } = settings();
  if (!withoutTemplate.has(model)) {
    try {
      return await post("/v1/chat/completions", { messages, ...chatSettings() }, signal);
    } catch (error) {
      if (error.code !== "no_chat_template") throw error;
      withoutTemplate.add(model);
    }
  }
  const prompt = messages.map((message) => message.content).join("\n");
  return post("/v1/completions", { prompt }, signal);
}
