// The two small charts: how many tokens each step gave, and how many steps accepted how many tokens.

import { draw } from "./dom.js";

/** One thin bar per step, as high as the tokens that it gave; step `shown` is marked. */
export function stripPicture(run, shown) {
  const most = Math.max(2, ...run.steps.map((step) => step.tokens.length));
  const paths = { draft: "", copied: "", target: "" };
  run.steps.forEach((step, i) => stack(step, i, paths));
  const bars = Object.entries(paths).map(([source, d]) => draw("path", { class: `bar ${source}`, d }));
  const mark = draw("rect", { class: "mark", x: shown, y: 0, width: 1, height: most });
  return draw("svg", { class: "strip", viewBox: `0 0 ${run.steps.length} ${most}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    mark, draw("g", { transform: `matrix(1 0 0 -1 0 ${most})` }, ...bars));
}

function stack(step, i, paths) {
  let y = 0;
  for (const source of Object.keys(paths)) {
    const count = step.tokens.filter((token) => (token.source ?? "target") === source).length;
    if (count) paths[source] += `M${i + 0.1} ${y}h.8v${count}h-.8z`;
    y += count;
  }
}

const BAR = 18, LINE = 24, LEFT = 26, LONGEST = 230, RIGHT = 56;

/** The histogram of accepted tokens per step; the row of `accepted` is marked. */
export function histogramPicture(counts, accepted) {
  const most = Math.max(1, ...counts), steps = counts.reduce((sum, count) => sum + count, 0);
  const rows = counts.map((count, i) => {
    const length = (count / most) * LONGEST, y = i * LINE;
    return draw("g", { class: i === accepted ? "row shown" : "row" },
      draw("text", { x: LEFT - 8, y: y + 16, "text-anchor": "end" }, String(i)),
      draw("rect", { class: i ? "bar draft" : "bar target", x: LEFT, y: y + 3, width: Math.max(length, count ? 1.5 : 0), height: BAR, rx: 2 }),
      draw("text", { x: LEFT + length + 7, y: y + 16 }, String(count)));
  });
  const words = counts.map((count, i) => `${i} accepted: ${count}`).join(", ");
  const height = counts.length * LINE;
  return draw("svg", { class: "histogram", viewBox: `0 0 ${LEFT + LONGEST + RIGHT} ${height}`, width: LEFT + LONGEST + RIGHT, height, role: "img",
    "aria-label": `Of ${steps} steps, ${words}` }, ...rows);
}
