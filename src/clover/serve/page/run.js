// One answer as it comes: its steps, its text, and the numbers that follow from them.

/**
 * A step: {kind, number, seconds, drafted, parents, nodes, accepted, tokens, start}.
 *
 * `kind` is "reasoning", "answer" or "call", `parents` and `nodes` are the token tree (parent -1: child of the root, and the text of each node), `accepted` the nodes on the
 * accepted path, `tokens` the text that the step gave, as {text, source, depth}, and `start` how much text there was before it.
 * Text that was held back (half a character, the beginning of a stop string) comes with a later step, before that step's own.
 */
export class Run {
  constructor({ speculation }) {
    this.speculation = speculation;
    this.steps = [];
    this.text = ""; // all that is shown
    this.content = ""; // the answer, which later turns go on from, and beside it:
    this.reasoning = "";
    this.calls = []; // {id, type, function: {name, arguments}}
    this.state = "waiting"; // then "writing", and in the end "done", "stopped", "lost" or "refused"
    this.message = "";
    this.reason = null;
    this.usage = null;
    this.measured = null;
  }

  get ended() {
    return !["waiting", "writing"].includes(this.state);
  }

  /** Take what one chunk brings; true where it brought text. */
  add(chunk) {
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? { content: choice?.text };
    const calls = (delta.tool_calls ?? []).map(({ index, ...call }) => call);
    const shown = calls.map((call) => `→ ${call.function.name}(${call.function.arguments})`).join("\n");
    this.usage = chunk.usage ?? this.usage;
    this.measured = chunk.speculative_decoding ?? this.measured;
    this.reason = choice?.finish_reason ?? this.reason;
    this.content += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? "";
    this.calls.push(...calls);
    const parts = [["reasoning", delta.reasoning_content], ["answer", delta.content], ["call", shown]].filter(([, text]) => text);
    if (!parts.length && chunk.speculation) parts.push([this.steps.at(-1)?.kind ?? "answer", ""]);
    parts.forEach(([kind, text], at) => {
      this.steps.push(stepOf(at ? null : chunk.speculation, text, this, kind));
      if (text) this.state = "writing";
      this.text += text;
    });
    return parts.length > 0;
  }

  get tokens() {
    return this.usage?.completion_tokens ?? this.steps.reduce((sum, step) => sum + step.tokens.length, 0);
  }

  /** Tokens per second of the engine's time; the network takes no part in it. */
  get tokensPerSecond() {
    const seconds = this.steps.reduce((sum, step) => sum + step.seconds, 0);
    return seconds ? this.tokens / seconds : null;
  }

  get meanAcceptanceLength() {
    const steps = this.steps.filter((step) => step.number !== null);
    if (this.measured) return this.measured.mean_acceptance_length;
    return steps.length ? 1 + steps.reduce((sum, step) => sum + step.accepted.length, 0) / steps.length : null;
  }

  /** The share of the drafted depths that were accepted; several candidates at one depth count once, as in the server's rate. */
  get draftAcceptanceRate() {
    const drafted = this.steps.reduce((sum, step) => sum + deepest(step.parents), 0);
    if (this.measured) return this.measured.draft_acceptance_rate;
    return drafted ? this.steps.reduce((sum, step) => sum + step.accepted.length, 0) / drafted : null;
  }

  /** How many steps accepted 0, 1, 2 … tokens. */
  get histogram() {
    if (this.measured) return this.measured.acceptance_histogram;
    const counts = [];
    for (const step of this.steps) {
      if (step.number === null) continue;
      while (counts.length <= step.accepted.length) counts.push(0);
      counts[step.accepted.length] += 1;
    }
    return counts;
  }
}

function stepOf(speculation, text, run, kind) {
  const told = speculation ?? {};
  const tokens = told.tokens ?? [];
  const whole = tokens.map((token) => token.text).join("") === text;
  return {
    kind,
    number: told.step ?? null,
    seconds: told.seconds ?? 0,
    drafted: told.drafted ?? 0,
    parents: told.tree?.parents ?? [],
    nodes: told.tree?.tokens ?? [],
    accepted: told.accepted ?? [],
    tokens: whole ? tokens : [{ text, source: null, depth: null }],
    start: run.text.length,
  };
}

/** The deepest level of a tree in which parents come before their children; 0 without nodes. */
function deepest(parents) {
  const depths = [];
  for (const parent of parents) depths.push(parent < 0 ? 1 : depths[parent] + 1);
  return Math.max(0, ...depths);
}

/** The token that the model itself added to what the step accepted; null where it is held back, or cut off by the end. */
export function ownToken(step) {
  const last = step.tokens.at(-1);
  return last?.source === "target" ? last : null;
}

/** Where two texts part: the index of the first character that differs, or -1. */
export function firstDifference(one, other) {
  const length = Math.max(one.length, other.length);
  for (let i = 0; i < length; i++) if (one[i] !== other[i]) return i;
  return -1;
}
