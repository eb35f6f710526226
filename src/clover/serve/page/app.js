// The page: the composer, the turns of the conversation, the settings and the API key.

import { apiKey, LostConnection, servedModel } from "./api.js";
import { button, byId, make } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Turn } from "./turn.js";

const CHAT = ["Why does a bicycle stay upright?", "Write a short poem about rain.", "Give me ten uses of a paper clip."];
const TEXT = ["def area(self):", "class Store:\n    def __init__(self, path):", "Once upon a time"];

let model = null, early = false, chatting = true, turns = [], running = null, scrolled = 0;
const inspector = new Inspector((run, index) => turns.forEach((turn) => turn.mark(run, index)));
const page = {
  inspector,
  onToken(turn, run, index) {
    inspector.show(run, index, run === turn.fast.run ? (turn.plain?.run ?? null) : null);
    showSteps(true);
  },
  onChange: (run) => (byId("status").textContent = inShort(run)),
  retry: perform,
};

async function start() {
  byId("banner").hidden = true;
  try {
    model = await servedModel();
  } catch (error) {
    if (error.status === 401) return askForKey(start);
    return warn(error instanceof LostConnection ? "The server does not answer." : error.message);
  }
  const draft = model.draft ? `draft: ${model.draft}` : "no draft";
  byId("model").replaceChildren(make("span", { title: model.id }, model.id), make("span", { title: draft }, draft));
  byId("compare").disabled = !model.draft;
  limitTokens(Math.min(model.max_model_len, model.max_new_tokens ?? Infinity));
  byId("forget").hidden = !apiKey.get();
  byId("send").disabled = false;
  setMode(model.chat ?? true);
  if (early) byId("composer").requestSubmit(); // Enter was pressed before the server had named its model
  early = false;
}

/** Say why there is no model yet, and offer to look again. */
function warn(words) {
  byId("banner").replaceChildren(`${words} `, button("Try again", start, { class: "retry" }));
  byId("banner").hidden = false;
}

function limitTokens(most) {
  const input = byId("max-tokens");
  input.max = most ?? "";
  if (most && input.valueAsNumber > most) input.value = most;
}

function setMode(chat) {
  chatting = chat;
  byId("mode").value = chat ? "chat" : "text";
  byId("prompt-label").textContent = chat ? "Your message" : "Text to go on from";
  byId("prompt").placeholder = chat ? "Ask the model" : "Text for the model to go on from";
  byId("system-label").hidden = byId("tools-label").hidden = !chat;
  document.body.classList.toggle("plain-text", !chat);
  byId("suggestions").replaceChildren(...(chat ? CHAT : TEXT).map((text) => make("li", {}, button(text, () => {
    byId("prompt").value = text;
    byId("composer").requestSubmit();
  }))));
}

function ask(said) {
  turns.forEach((turn) => turn.settle());
  const turn = new Turn(question(said), turns.length + 1, page);
  turns.push(turn);
  byId("turns").append(turn.element);
  byId("welcome").hidden = true;
  byId("new").hidden = false;
  byId("prompt").value = "";
  fitPrompt();
  showSteps(false);
  turn.element.scrollIntoView({ block: "start" });
  perform(turn);
}

/** What to send for `said`: the conversation so far, or the text alone where the model cannot chat. */
function question(said) {
  const compare = byId("compare").checked && !byId("compare").disabled;
  const request = { model: model.id, temperature: byId("temperature").valueAsNumber, max_tokens: byId("max-tokens").valueAsNumber };
  if (byId("seed").value) request.seed = byId("seed").valueAsNumber;
  else if (compare && request.temperature > 0) request.seed = Math.floor(Math.random() * 2 ** 31);
  if (!chatting) return { said, compare, opening: said, path: "v1/completions", request: { ...request, prompt: said } };
  const system = byId("system").value.trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  let calls = [];
  for (const turn of turns.filter((each) => each.opening === null && each.fast.run.text)) {
    messages.push(...saidAfter(calls, turn.said), messageOf(turn.fast.run));
    calls = turn.fast.run.calls;
  }
  messages.push(...saidAfter(calls, said));
  const tools = byId("tools").value.trim();
  if (tools) request.tools = JSON.parse(tools);
  return { said, compare, opening: null, path: "v1/chat/completions", request: { ...request, messages } };
}

/** What the reader said, as messages: the result of each call of the answer before, else a question. */
function saidAfter(calls, said) {
  if (!calls.length) return [{ role: "user", content: said }];
  return calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: said }));
}

/** An answer as a message. */
function messageOf({ content, reasoning, calls }) {
  const message = { role: "assistant", content };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls.length) message.tool_calls = calls;
  return message;
}

/** Whether there are no tools, or a list of them. */
function toolsAreRead() {
  const text = byId("tools").value.trim();
  try {
    return !text || Array.isArray(JSON.parse(text));
  } catch {
    return false;
  }
}

async function perform(turn, from) {
  if (running) return;
  running = new AbortController();
  busy(true);
  byId("status").textContent = "The model is answering.";
  try {
    await turn.run(running.signal, from);
  } finally {
    running = null;
    busy(false);
  }
  const { status, message } = turn.fast.run;
  if (status === 401) askForKey(() => perform(turn));
  else if (chatting && turns.length === 1 && status === 400 && /chat template/i.test(message)) goOnWithoutChat(turn);
}

/** The model has no chat template: take what was said as text to go on from. */
function goOnWithoutChat(turn) {
  setMode(false);
  clear();
  ask(turn.said);
}

function busy(yes) {
  const focused = document.activeElement.matches("#send, #stop, .retry");
  byId("send").hidden = yes;
  byId("stop").hidden = !yes;
  byId("new").disabled = yes;
  if (focused) byId(yes ? "stop" : touched() ? "send" : "prompt").focus();
}

/** Whether fingers write here: Enter is a new line then, and the keyboard must not open by itself. */
function touched() {
  return matchMedia("(pointer: coarse)").matches;
}

function inShort(run) {
  if (run.state === "stopped") return "Stopped.";
  if (run.state !== "done") return run.message;
  const mean = run.meanAcceptanceLength?.toFixed(1);
  return `${run.speculation ? "Answer" : "Answer by plain decoding"} finished: ${run.tokens} tokens${mean ? `, ${mean} per step` : ""}.`;
}

/** Begin anew. */
function clear() {
  turns = [];
  byId("turns").replaceChildren();
  byId("welcome").hidden = false;
  byId("new").hidden = true;
  inspector.clear();
  showSteps(false);
}

/** On a narrow screen, show the steps in the place of the conversation, or the other way round. */
function showSteps(yes) {
  if (document.body.classList.contains("show-steps") === yes) return;
  if (yes) scrolled = scrollY;
  document.body.classList.toggle("show-steps", yes);
  byId("view").textContent = yes ? "Show text" : "Show steps";
  if (matchMedia("(max-width: 61.99rem)").matches) scrollTo(0, yes ? 0 : scrolled);
}

function askForKey(then) {
  const dialog = byId("key-dialog");
  byId("key-error").textContent = apiKey.get() ? "The server refuses this key." : "";
  byId("key").value = "";
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    apiKey.set(byId("key").value);
    dialog.close();
    then();
  };
  if (!dialog.open) dialog.showModal();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (model && !running) ask(byId("prompt").value);
});
byId("composer").addEventListener("invalid", (event) => {
  if (byId("settings").contains(event.target)) showSettings(true);
}, true);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || touched()) return;
  event.preventDefault();
  if (!model) early = true;
  else if (!byId("send").disabled) byId("composer").requestSubmit();
});
byId("tools").addEventListener("input", () => byId("tools").setCustomValidity(toolsAreRead() ? "" : "This is no JSON list of tools."));
byId("prompt").addEventListener("input", fitPrompt); // where CSS cannot
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", () => {
  clear();
  byId("prompt").focus();
});
byId("view").addEventListener("click", () => showSteps(!document.body.classList.contains("show-steps")));
byId("settings-button").addEventListener("click", () => showSettings(byId("settings").hidden));
byId("mode").addEventListener("change", () => setMode(byId("mode").value === "chat"));
byId("depths").addEventListener("change", () => document.body.classList.toggle("depths", byId("depths").checked));
byId("forget").addEventListener("click", () => {
  apiKey.forget();
  model = null;
  byId("send").disabled = true;
  start();
});

byId("key-dialog").addEventListener("cancel", () => {
  if (!model) warn("This server asks for an API key.");
});

function fitPrompt() {
  byId("prompt").rows = Math.min(byId("prompt").value.split("\n").length, 10);
}

function showSettings(yes) {
  byId("settings").hidden = !yes;
  byId("settings-button").setAttribute("aria-expanded", String(yes));
}

start();
