// The panel of steps: the numbers, and one step of an answer with its tree, its place in the text, and the slider through them all.

import { histogramPicture, stripPicture } from "./chart.js";
import { byId, calmly, make, soon } from "./dom.js";
import { stepText } from "./token.js";
import { inShort, inWords, treePicture } from "./tree.js";

const BEFORE = 120, AFTER = 80; // characters of the excerpt
const PACE = 450; // milliseconds per step when played
const CALM = 200; // milliseconds between pictures of an answer that is being written

export class Inspector {
  /** `onShow(run, index)` is called whenever another step is shown. */
  constructor(onShow) {
    this.onShow = onShow;
    this.update = soon(() => this.#draw());
    this.news = calmly(this.update, CALM);
    this.clear();
    byId("slider").addEventListener("input", () => this.#go(byId("slider").valueAsNumber - 1));
    byId("previous").addEventListener("click", () => this.#go(this.index - 1));
    byId("next").addEventListener("click", () => this.#go(this.index + 1));
    byId("play").addEventListener("click", () => (this.timer ? this.#pause() : this.#play()));
  }

  clear() {
    this.#pause();
    this.run = null;
    this.plain = null;
    this.index = 0;
    this.update();
  }

  /** Show `run` as it comes, always its last step, until the reader chooses another. */
  follow(run) {
    this.#pause();
    this.run = run;
    this.plain = null;
    this.following = true;
    this.update();
  }

  /** Show one step of `run`; `plain` is the same prompt without speculation, where there is one. */
  show(run, index, plain) {
    this.run = run;
    this.plain = plain;
    this.#go(index);
  }

  /** Compare the shown run's speed with that of `plain`. */
  against(plain) {
    this.plain = plain;
    this.update();
  }

  #go(index) {
    this.#pause();
    this.#step(index);
  }

  #step(index) {
    const last = this.run.steps.length - 1;
    this.index = Math.min(Math.max(index, 0), last);
    this.following = this.index === last && !this.run.ended;
    this.update();
  }

  #play() {
    if (this.index >= this.run.steps.length - 1) this.#step(0);
    byId("play").textContent = "Pause";
    this.timer = setInterval(() => {
      this.#step(this.index + 1);
      if (this.index >= this.run.steps.length - 1) this.#pause();
    }, PACE);
  }

  #pause() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
  }

  #draw() {
    const run = this.run, seen = Boolean(run?.steps.length);
    byId("step").hidden = !seen;
    byId("no-steps").hidden = seen;
    byId("numbers").hidden = !run;
    this.#numbers();
    if (!seen) return;
    if (this.following) this.index = run.steps.length - 1;
    const step = run.steps[this.index];
    this.#slider(step);
    byId("strip").replaceChildren(stripPicture(run, this.index));
    this.#tree(step);
    byId("excerpt").replaceChildren(...excerpt(run, this.index));
    byId("histogram").replaceChildren(histogramPicture(run.histogram, step.accepted.length));
    this.onShow(run, this.index);
  }

  #numbers() {
    const run = this.run, rate = run?.draftAcceptanceRate, ratio = speedUp(run, this.plain);
    byId("speed").textContent = shortNumber(run?.tokensPerSecond);
    byId("tau").textContent = run?.meanAcceptanceLength?.toFixed(2) ?? "–";
    byId("accepted").textContent = rate === null || rate === undefined ? "–" : `${Math.round(rate * 100)} %`;
    byId("ratio").textContent = ratio ? `${ratio.toFixed(2)}×` : "–";
  }

  #slider(step) {
    const slider = byId("slider"), count = this.run.steps.length;
    slider.max = count;
    slider.value = this.index + 1;
    slider.setAttribute("aria-valuetext", `${this.index + 1} of ${count}, ${inShort(step)}`);
    byId("step-name").textContent = `step ${this.index + 1} of ${count}${step.seconds ? `, ${(step.seconds * 1000).toFixed(1)} ms` : ""}`;
    byId("previous").disabled = this.index === 0;
    byId("next").disabled = this.index === count - 1;
    byId("play").disabled = count < 2;
  }

  #tree(step) {
    const before = this.index ? this.run.steps[this.index - 1].tokens.at(-1)?.text : null;
    byId("tree").replaceChildren(treePicture(step, before || (this.index ? "…" : "prompt")));
    byId("tree-text").textContent = inWords(step);
  }
}

/** How many times as fast `run` was as `plain`; null where that is not known. */
export function speedUp(run, plain) {
  return run?.tokensPerSecond && plain?.tokensPerSecond ? run.tokensPerSecond / plain.tokensPerSecond : null;
}

/** A speed with as many digits as matter. */
export function shortNumber(value) {
  return value ? value.toFixed(value < 10 ? 1 : 0) : "–";
}

function excerpt(run, index) {
  const step = run.steps[index];
  const end = step.start + step.tokens.reduce((sum, token) => sum + token.text.length, 0);
  // Characters may be two units long, and must not be cut in half.
  const before = Array.from((run.prompt + run.text.slice(0, step.start)).slice(-2 * BEFORE));
  const after = Array.from(run.text.slice(end, end + 2 * AFTER)).slice(0, AFTER).join("");
  const last = before.slice(-BEFORE).join("");
  const shown = before.length > BEFORE ? `…${last.replace(/^\S*/, "")}` : last; // from a whole word on
  return [shown, make("mark", {}, stepText(step, index)), after];
}
