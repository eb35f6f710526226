"""The model card of the embedded default: data, licences, losses, time, samples, and how well each draft does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clover.api import Clover, load
from clover.engine import Generation
from clover.files import write_json, write_text
from clover.metrics import Acceptance
from clover.recipe.corpus import HELD_OUT_SHARE, Source
from clover.recipe.drafts import DraftFacts
from clover.report.words import system_name

_SAMPLES, _SAMPLE_TOKENS, _EVALUATION_TOKENS = 4, 96, 128
_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class TargetFacts:
    """How the target was trained: when, where and by which command. Losses in nats per token; minutes of wall clock."""

    steps: int
    tokens: int
    training_loss: float
    minutes: float
    held_out_loss: float
    parameters: int
    corpus_tokens: int
    made: str
    command: str


def write_cards(
    output: Path,
    sources: Sequence[Source],
    target: TargetFacts,
    drafts: Sequence[DraftFacts],
    prompts: Sequence[str],
    device: str,
) -> None:
    """Try the finished models on development prompts and write `README.md` and `facts.json` into `output`."""
    tau, new = {}, {}
    for draft in drafts:
        model = load(output / "target", output / draft.system, method="draft", dtype="float32", device=device)
        texts = {
            t: model.generate(prompts, max_new_tokens=_EVALUATION_TOKENS, temperature=t)
            for t in _TEMPERATURES
        }
        tau[draft.system] = {f"{t:g}": _total(found).tau for t, found in texts.items()}
        new = {f"{t:g}": _variety(found) for t, found in texts.items()}
    facts = {
        "target": asdict(target),
        "drafts": [asdict(draft) for draft in drafts],
        "tau": tau,
        "new_token_share": new,
        "sources": [asdict(source) for source in sources],
    }
    write_json(output / "facts.json", facts)
    plain = load(output / "target", method="plain", dtype="float32", device=device)
    write_text(
        output / "README.md", _card(facts, target, drafts, sources, _samples(plain, prompts[:_SAMPLES]))
    )


def _total(generations: Sequence[Generation]) -> Acceptance:
    return sum((g.acceptance for g in generations), Acceptance())


def _variety(generations: Sequence[Generation]) -> float:
    """Distinct four-token sequences of a text, as a share of all: near 1 for text, near 0 for a loop."""
    runs = [[tuple(g.tokens[i : i + 4]) for i in range(len(g.tokens) - 3)] for g in generations]
    return sum(len(set(found)) for found in runs) / max(sum(map(len, runs)), 1)


def _samples(model: Clover, prompts: Sequence[str]) -> str:
    parts = []
    for prompt in prompts:
        written = model.generate(prompt, max_new_tokens=_SAMPLE_TOKENS, temperature=0.8).text
        shown = "\n".join(prompt.rstrip().splitlines()[-6:])
        parts.append(f"```python\n{shown}\n# … from here on the model writes\n{written.rstrip()}\n```")
    return "\n\n".join(parts)


def _card(
    facts: dict[str, Any],
    target: TargetFacts,
    drafts: Sequence[DraftFacts],
    sources: Sequence[Source],
    samples: str,
) -> str:
    listed = "\n".join(
        f"| {s.name} | {s.version} | {s.licence} | {s.files} | {s.bytes / 1e6:.2f} |" for s in sources
    )
    return f"""# The embedded target and its drafts

A small Llama that writes Python-like text, and three drafts for it: Clover-1 and Clover-2 as their papers describe
them, and Recall, this project's own. They exist so that every command works without a download, and so that speed and
acceptance can be measured anywhere. The target is far too small to be of use as a code model.

{_target_table(facts, target)}

{_draft_table(facts, drafts)}

τ is the acceptance length on 24 development prompts with the tree that the draft names, of 8 nodes.
Weights are stored as bf16 safetensors.

## Data

Python source from the machine the recipe ran on: the standard library and installed packages whose declared licence is
permissive. Tests, vendored code and files that are mostly tables are left out, and no package gives more than 6 MB.
{HELD_OUT_SHARE:.0%} of the files, chosen by the hash of their text, were never trained on; the demo's prompts come
from them. Development prompts come from them too, but from other files. Each draft was trained on texts that the target
wrote from openings of training files, half greedily, half at temperature 1, and on as many tokens of the corpus.

| source | version | licence | files | MB |
|---|---|---|---|---|
{listed}

## Samples

Continuations of development prompts at temperature 0.8, as they came.

{samples}
"""


def _target_table(facts: dict[str, Any], target: TargetFacts) -> str:
    new = facts["new_token_share"]
    rows = [
        ("target", f"Llama, 16 layers, width 256, {target.parameters / 1e6:.1f} M parameters, context 1,024"),
        ("tokenizer", "byte-level BPE, 4,096 entries, trained on the same text"),
        (
            "training",
            f"{target.steps:,} steps, {target.tokens / 1e6:.1f} M tokens (the corpus has "
            f"{target.corpus_tokens / 1e6:.1f} M), {target.minutes:.0f} minutes",
        ),
        ("made", f"{target.made}; `{target.command}`"),
        ("last training loss", f"{target.training_loss:.3f} nats per token"),
        ("**held-out loss**", f"**{target.held_out_loss:.3f} nats per token**"),
        ("four-token runs that are new", f"{new['0']:.0%} greedy, {new['0.8']:.0%} at temperature 0.8"),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _draft_table(facts: dict[str, Any], drafts: Sequence[DraftFacts]) -> str:
    head = ("draft", "parameters", "steps", "tokens seen, of different ones", "minutes", "accuracy per head")
    head += ("τ, T 0", "τ, T 0.8", "made")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for draft in drafts:
        tau = facts["tau"][draft.system]
        accuracy = ", ".join(f"{100 * value:.0f}" for value in draft.accuracy) or "–"
        different = draft.tokens + draft.corpus_tokens
        rows.append(
            f"| {system_name(draft.system)} | {draft.parameters / 1e6:.1f} M | {draft.steps:,} | "
            f"{draft.seen / 1e6:.1f} M, {different / 1e6:.1f} M | {draft.minutes:.0f} | {accuracy} % | "
            f"{tau['0']:.2f} | {tau['0.8']:.2f} | {draft.made}; `{draft.command}` |"
        )
    return "\n".join(rows)
