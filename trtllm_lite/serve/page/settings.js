// The fields of a request that the settings give.
const NUMBERS = {
  temperature: "temperature", most: "max_tokens", top_p: "top_p", top_k: "top_k", min_p: "min_p", seed: "seed",
  repetition_penalty: "repetition_penalty", presence_penalty: "presence_penalty", frequency_penalty: "frequency_penalty",
};

// The JSON of a field, or undefined if it is empty. An error says which field it is.
function jsonOf(id, what) {
  const written = byId(id).value.trim();
  if (!written) return undefined;
  try {
    return JSON.parse(written);
  } catch (error) {
    throw new Error(`The ${what} is not JSON: ${error.message}`);
  }
}

function settings() {
  const body = { model: byId("adapter").value || byId("model").value, stream: true, stream_options: { include_usage: true } };
  for (const [id, name] of Object.entries(NUMBERS)) {
    const value = byId(id).valueAsNumber;
    if (!Number.isNaN(value)) body[name] = value;
  }
  if (byId("stop_text").value) body.stop = byId("stop_text").value.split("\n").filter(Boolean);
  return body;
}

// The additional fields of chats: a schema that answers follow, and functions that the model may call.
function chatSettings() {
  const body = {};
  const schema = jsonOf("schema", "JSON schema");
  if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = jsonOf("tools", "list of tools");
  if (tools !== undefined) body.tools = tools.map((tool) => (tool.type ? tool : { type: "function", function: tool }));
  return body;
}
