// Draws the token tree of one step as SVG: the last token on the left, deeper tokens to the right, rejected ones pale and dashed.

import { draw, visible } from "./dom.js";
import { ownToken } from "./run.js";
import { classOf, wordsFor } from "./token.js";

const ROW = 32, HEIGHT = 24, GAP = 18, LETTER = 7.3, PADDING = 16, LONGEST = 12, MARGIN = 4, SMALLEST = 0.75;
const MOST_SAID = 12;

/**
 * The tree of `step`, whose root shows the text `root`.
 *
 * The first child goes on in its parent's row, so that the draft's favourite path is a straight line.
 */
export function treePicture(step, root) {
  const nodes = nodesOf(step, root);
  place(nodes);
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + MARGIN;
  const height = (Math.max(...nodes.map((node) => node.row)) + 1) * ROW;
  const picture = draw("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": inWords(step) },
    ...nodes.slice(1).map(edge), ...nodes.map(box));
  picture.style.minWidth = `${width * SMALLEST}px`;
  return picture;
}

/** How much of the tree was accepted. */
export function inShort(step) {
  return step.drafted ? `${step.accepted.length || "none"} of ${step.drafted} accepted` : "nothing drafted";
}

/** What the step did, in a sentence. */
export function inWords(step) {
  const own = ownToken(step), kept = step.accepted.slice(0, MOST_SAID).map((node) => `“${visible(step.nodes[node] ?? "")}”`);
  if (step.accepted.length > MOST_SAID) kept.push("…");
  const then = own ? `${kept.length ? "then its own" : "the model's own"} “${visible(own.text)}”` : "";
  const words = `${inShort(step)}${kept.length ? `: ${kept.join(" ")}` : ""}${then ? `; ${then}` : ""}.`;
  return words[0].toUpperCase() + words.slice(1);
}

function nodesOf(step, root) {
  const source = step.tokens.findLast((token) => token.source && token.source !== "target")?.source ?? "draft";
  const known = Math.min(step.nodes.length, step.parents.length);
  const nodes = [{ text: root, parent: null, kind: "root", taken: true }];
  for (let i = 0; i < known; i++) {
    const parent = step.parents[i] >= 0 && step.parents[i] < i ? step.parents[i] + 1 : 0;
    nodes.push({ text: step.nodes[i], parent, kind: source, taken: step.accepted.includes(i) });
  }
  const own = ownToken(step), last = (step.accepted.at(-1) ?? -1) + 1;
  if (own) nodes.push({ text: own.text, parent: Math.min(last, nodes.length - 1), kind: "target", taken: true });
  return nodes;
}

function place(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => i && children[node.parent].push(i));
  nodes.forEach((node) => {
    node.depth = node.parent === null ? 0 : nodes[node.parent].depth + 1;
    node.label = shortened(visible(node.text));
    node.width = Math.max(node.label.length, 1) * LETTER + PADDING;
  });
  let rows = 0;
  const waiting = [0];
  while (waiting.length) {
    const i = waiting.pop();
    const first = i > 0 && children[nodes[i].parent][0] === i;
    nodes[i].row = i === 0 || !first ? rows++ : nodes[nodes[i].parent].row;
    waiting.push(...children[i].toReversed());
  }
  const columns = [];
  for (const node of nodes) columns[node.depth] = Math.max(columns[node.depth] ?? 0, node.width);
  for (const node of nodes) node.x = MARGIN + columns.slice(0, node.depth).reduce((sum, width) => sum + width + GAP, 0);
  for (const node of nodes) node.from = node.parent === null ? null : nodes[node.parent];
}

const shortened = (label) => (label.length > LONGEST ? `${label.slice(0, LONGEST - 1)}…` : label);
const middle = (node) => node.row * ROW + ROW / 2;
const state = (node) => (node.taken ? "taken" : "offered");

function edge(node) {
  const [x1, y1, x2, y2] = [node.from.x + node.from.width, middle(node.from), node.x, middle(node)];
  const turn = x2 - GAP / 2;
  return draw("path", { class: `edge ${node.kind} ${state(node)}`, d: `M${x1} ${y1}H${x2 - GAP}C${turn} ${y1} ${turn} ${y2} ${x2} ${y2}` });
}

function box(node) {
  const y = middle(node);
  const token = { source: node.kind === "root" ? null : node.kind, depth: node.depth };
  const words = node.kind === "root" ? "the last token so far" : node.taken ? wordsFor(token) : `drafted at depth ${node.depth}, not accepted`;
  const shape = draw("rect", { x: node.x, y: y - HEIGHT / 2, width: node.width, height: HEIGHT, rx: node.kind === "target" ? 3 : HEIGHT / 2 });
  const label = draw("text", { x: node.x + node.width / 2, y: y + 4, "text-anchor": "middle" }, node.label);
  const kind = node.kind === "root" ? "root" : node.taken ? classOf(token) : "draft";
  return draw("g", { class: `node ${kind} ${state(node)}` }, draw("title", {}, `${visible(node.text)}: ${words}`), shape, label);
}
