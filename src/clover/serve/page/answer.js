// Shows one answer in the conversation: its tokens as they come, its speed, and how it ended.

import { button, make, soon } from "./dom.js";
import { shortNumber } from "./inspector.js";
import { stepText } from "./token.js";

const ENDED = {
  stopped: () => "Stopped.",
  lost: (run) => `${run.message} ${run.text ? "What came is kept." : ""}`,
  refused: (run) => run.message,
  done: (run) => run.calls.length ? "Your next message is the result of the call." : (run.reason === "length" ? `Ended at the limit of ${run.tokens} tokens.` : run.text ? "" : "The model ended its answer at once."),
};

export class AnswerView {
  /** `name` is shown above the answer, or only told to screen readers where `alone`; `onToken(index)` is called with a clicked token's step. */
  constructor(run, name, { alone, onToken }) {
    this.run = run;
    this.shown = 0;
    this.update = soon(() => this.#draw());
    this.speed = make("span", { class: "speed" });
    this.text = make("div", { class: "text", dir: "auto" });
    this.note = make("p", { class: "note" });
    const title = make("h3", {}, make("span", { class: "name" }, name), this.speed);
    this.element = make("section", { class: alone ? "answer alone" : "answer", "aria-label": name }, title, this.text, this.note);
    if (run.prompt) this.text.append(make("span", { class: "opening" }, run.prompt));
    this.text.addEventListener("click", (event) => {
      const step = event.target.closest("[data-step]");
      if (step && !String(getSelection())) onToken(Number(step.dataset.step));
    });
  }

  /** Say how the run ended; `retry`, where given, is offered. */
  end(retry) {
    this.#draw();
    const words = ENDED[this.run.state](this.run).trim();
    const failed = ["lost", "refused"].includes(this.run.state);
    this.note.className = failed ? "note failed" : "note";
    this.note.replaceChildren(words, ...(failed && retry ? [" ", button("Try again", retry, { class: "retry" })] : []));
  }

  /** Take back the offer to try again. */
  settle() {
    this.note.querySelector(".retry")?.remove();
  }

  /** Mark the tokens of one step, or none. */
  mark(index) {
    this.text.querySelector(".now")?.classList.remove("now");
    this.text.querySelector(`[data-step="${index}"]`)?.classList.add("now");
  }

  #draw() {
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
    const { steps, state, tokensPerSecond } = this.run;
    const news = steps.slice(this.shown).map((step, i) => stepText(step, this.shown + i));
    this.shown = steps.length;
    this.text.append(...news);
    this.element.dataset.state = state;
    this.speed.textContent = tokensPerSecond ? `${shortNumber(tokensPerSecond)} tokens/s` : state === "waiting" ? "waiting …" : "";
    if (atEnd && news.length) scrollTo(0, document.documentElement.scrollHeight);
  }
}
