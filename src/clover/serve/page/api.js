// Speaks to the server: the list of models, and answers as a stream of server-sent events.

/** The server answered, and said no. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The server cannot be reached, or the answer broke off. */
export class LostConnection extends Error {}

const KEY = "clover-api-key";

/** The API key; it lives as long as the tab. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** The model that the server serves: {id, draft, max_model_len, max_new_tokens, …}. */
export async function servedModel() {
  const answer = await request("v1/models", {});
  const [model] = (await answer.json()).data ?? [];
  if (!model) throw new Refusal("The server has no model.", answer.status);
  return model;
}

/** The chunks of a streamed answer, as objects, until the server says that it is done. */
export async function* chunks(path, body, signal) {
  const answer = await request(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
  for await (const data of events(answer.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(messageOf(chunk), chunk.error.code ?? 500);
    yield chunk;
  }
  throw new LostConnection("The connection was lost.");
}

async function request(path, options) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (options.body) headers["Content-Type"] = "application/json";
  // As UTF-8: a header's characters are bytes.
  if (apiKey.get()) headers.Authorization = String.fromCharCode(...new TextEncoder().encode(`Bearer ${apiKey.get()}`));
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw options.signal?.aborted ? error : new LostConnection("The server cannot be reached.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const text = await answer.text().catch(() => "");
  let said = null;
  try {
    said = messageOf(JSON.parse(text));
  } catch {
    // Not JSON: something between here and the server answered.
  }
  return new Refusal(said ?? `The server answered ${answer.status}.`, answer.status);
}

const messageOf = (answer) => answer?.error?.message ?? null;

/** The data of each event. https://html.spec.whatwg.org/multipage/server-sent-events.html */
async function* events(stream, signal) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let kept = "";
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) return;
      const parts = (kept + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      kept = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    throw signal?.aborted ? error : new LostConnection("The connection was lost.");
  }
}
