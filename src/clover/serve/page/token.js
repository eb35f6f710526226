// Shows tokens as text that says how each came: by tint, by the line under it, and by its title.

import { make } from "./dom.js";

const DEEPEST = 6; // deeper tokens share one tint

/** The text that step `index` of a run gave, token by token. */
export function stepText(step, index) {
  const tokens = step.tokens.filter((token) => token.text).map((token) => {
    const words = wordsFor(token), depth = token.source === "target" ? null : token.depth;
    return make("span", { class: classOf(token), title: words && `${words}, step ${index + 1}`, "data-depth": depth }, token.text);
  });
  return make("span", { class: step.kind === "answer" ? "step" : `step ${step.kind}`, "data-step": index }, ...tokens);
}

/** The class of a token or of a node of the tree. */
export function classOf({ source, depth }) {
  if (source === "draft") return `token draft depth-${Math.min(Math.max(depth, 1), DEEPEST)}`;
  return source ? `token ${source === "copied" ? "copied" : "target"}` : "token";
}

/** How a token came, in words. */
export function wordsFor({ source, depth }) {
  if (source === "draft") return `drafted, accepted at depth ${depth}`;
  if (source === "copied") return `copied, accepted at depth ${depth}`;
  return source ? "the model's own" : null;
}
