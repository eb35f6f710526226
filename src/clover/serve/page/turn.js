// One turn: what was asked, the answer, and where wished the same without speculation beside it.

import { AnswerView } from "./answer.js";
import { chunks, LostConnection, Refusal } from "./api.js";
import { draw, make } from "./dom.js";
import { shortNumber, speedUp } from "./inspector.js";
import { firstDifference, Run } from "./run.js";

export class Turn {
  /**
   * `request` is the body to send to `path`; `said` is what the reader wrote, and `opening` the text that the answer goes on from.
   *
   * `page` has inspector, onToken(turn, run, index), onChange(run) and retry(turn, from).
   */
  constructor({ said, opening, path, request, compare }, number, page) {
    Object.assign(this, { said, opening, path, request, compare, page, fast: null, plain: null });
    this.answers = make("div", { class: "answers" });
    this.verdict = make("div", { class: "verdict" });
    const question = opening ? [] : [make("p", { class: "said", dir: "auto" }, make("span", { class: "unseen" }, "You: "), said)];
    this.element = make("article", { class: "turn", "aria-label": `Turn ${number}` }, ...question, this.answers, this.verdict);
  }

  /** Get the answers: both, or again only the one without speculation, from "fast" or "plain" on. */
  async run(signal, from = "fast") {
    const before = this[from];
    this.verdict.replaceChildren();
    if (from === "fast") this.fast = this.#made(true);
    this.plain = this.compare ? this.#made(false) : null;
    this.#arrange();
    this.page.inspector.follow(this.fast.run);
    await this.#perform(from, signal);
    if (from === "fast" && this.fast.run.state !== "done") this.plain = null;
    if (from === "fast" && this.plain) await this.#perform("plain", signal);
    const tried = this[from].run;
    if (before?.run.text && !tried.text && tried.state !== "done") this.#bringBack(from, before);
    this.#arrange();
    if (this.plain?.run.state === "done") this.#compare();
  }

  #arrange() {
    this.answers.replaceChildren(...this.#all.map((each) => each.view.element));
  }

  /** Show again what came before a new try that brought nothing, and why that failed. */
  #bringBack(which, before) {
    const { state, status, message } = this[which].run;
    Object.assign(before.run, { state, status, message });
    this[which] = before;
    before.view.end(() => this.page.retry(this, which));
    this.page.inspector.follow(this.fast.run);
  }

  get #all() {
    return [this.fast, this.plain].filter(Boolean);
  }

  #made(speculation) {
    const run = new Run({ speculation });
    run.prompt = this.opening ?? "";
    const name = !this.compare ? "Answer" : speculation ? "with the draft" : "plain decoding";
    const view = new AnswerView(run, name, { alone: !this.compare, onToken: (index) => this.page.onToken(this, run, index) });
    return { run, view };
  }

  async #perform(which, signal) {
    const { run, view } = this[which];
    view.update();
    const body = { ...this.request, stream_options: { include_usage: true, include_speculation: true } };
    if (!run.speculation) body.speculation = false;
    try {
      for await (const chunk of chunks(this.path, body, signal)) {
        if (!run.add(chunk)) continue;
        view.update();
        this.page.inspector.news();
      }
      run.state = "done";
    } catch (error) {
      this.#failed(run, error, signal);
    }
    view.end(() => this.page.retry(this, which));
    this.page.inspector.update();
    this.page.onChange(run);
  }

  #failed(run, error, signal) {
    run.state = signal.aborted ? "stopped" : error instanceof LostConnection ? "lost" : "refused";
    run.status = error.status ?? null;
    run.message = error instanceof LostConnection || error instanceof Refusal ? error.message : `The answer could not be read: ${error.message}`;
  }

  #compare() {
    const fast = this.fast.run, plain = this.plain.run, ratio = speedUp(fast, plain);
    const speeds = [["with the draft", fast, "draft"], ["plain decoding", plain, "target"]];
    const most = Math.max(fast.tokensPerSecond ?? 0, plain.tokensPerSecond ?? 0);
    const rows = most ? speeds.map(([name, run, kind]) => speedRow(name, run.tokensPerSecond ?? 0, most, kind)) : [];
    const words = ratio ? `${ratio.toFixed(2)} times as fast as plain decoding, ` : "";
    this.verdict.replaceChildren(...rows, make("p", {}, make("strong", {}, words + this.#difference())));
    this.page.inspector.against(plain);
  }

  #difference() {
    const at = firstDifference(this.fast.run.text, this.plain.run.text);
    if (at < 0) return "and the same text, character by character.";
    const sampled = this.request.temperature > 0 ? "; trees drawn at random keep the probabilities, not each token" : "";
    return `but the texts differ from character ${at + 1} on${sampled}.`;
  }

  /** Take back the offers to try again. */
  settle() {
    for (const { view } of this.#all) view.settle();
  }

  /** Mark the tokens of one step of `run`; no others. */
  mark(run, index) {
    for (const each of this.#all) each.view.mark(each.run === run ? index : -1);
  }
}

function speedRow(name, speed, most, kind) {
  const bar = draw("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: `bar ${kind}`, width: (speed / most) * 100, height: 1 }));
  return make("div", { class: "race" }, make("span", {}, name), bar, make("span", {}, `${shortNumber(speed)} tokens/s`));
}
