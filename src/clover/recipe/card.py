"""The model card of the embedded default: data, licences, losses, time, samples, and how well the draft does."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from clover.api import Clover, load
from clover.engine import Generation
from clover.files import write_json, write_text
from clover.metrics import Acceptance
from clover.recipe.corpus import HELD_OUT_SHARE, Source

_SAMPLES, _SAMPLE_TOKENS, _EVALUATION_TOKENS = 4, 96, 128


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


@dataclass(frozen=True)
class DraftFacts:
    """How the draft was trained: texts and tokens the target wrote, tokens of the corpus beside them, and so on."""

    texts: int
    tokens: int
    corpus_tokens: int
    steps: int
    minutes: float
    parameters: int
    made: str
    command: str


def made_here(device: str) -> str:
    """Date, machine and versions, for the card."""
    date, machine = datetime.now(timezone.utc).date().isoformat(), platform.machine()
    threads = f"{torch.get_num_threads()} threads, {device}"
    return f"{date}, {machine}, {threads}, Python {platform.python_version()}, PyTorch {torch.__version__}"


def write_cards(
    output: Path,
    sources: Sequence[Source],
    target: TargetFacts,
    draft: DraftFacts,
    prompts: Sequence[str],
    device: str,
) -> None:
    """Try the finished pair on development prompts and write `README.md` and `facts.json` into `output`."""
    model = load(output / "target", output / "draft", tree="clover2", dtype="float32", device=device)
    greedy = model.generate(prompts, max_new_tokens=_EVALUATION_TOKENS)
    sampled = model.generate(prompts, max_new_tokens=_EVALUATION_TOKENS, temperature=0.8)
    facts = {
        "target": asdict(target),
        "draft": asdict(draft),
        "tau": {"greedy": _total(greedy).tau, "temperature 0.8": _total(sampled).tau},
        "new_token_share": {"greedy": _variety(greedy), "temperature 0.8": _variety(sampled)},
        "sources": [asdict(source) for source in sources],
    }
    write_json(output / "facts.json", facts)
    write_text(
        output / "README.md", _card(facts, target, draft, sources, _samples(model, prompts[:_SAMPLES]))
    )


def _total(generations: Sequence[Generation]) -> Acceptance:
    return sum((g.acceptance for g in generations), Acceptance())


def _variety(generations: Sequence[Generation]) -> float:
    """Distinct four-token sequences over all of them: near 1 for text, near 0 for a loop."""
    runs = [tuple(g.tokens[i : i + 4]) for g in generations for i in range(len(g.tokens) - 3)]
    per_text = [{tuple(g.tokens[i : i + 4]) for i in range(len(g.tokens) - 3)} for g in generations]
    return sum(map(len, per_text)) / max(len(runs), 1)


def _samples(model: Clover, prompts: Sequence[str]) -> str:
    parts = []
    for prompt in prompts:
        written = model.generate(prompt, max_new_tokens=_SAMPLE_TOKENS, temperature=0.8).text
        shown = "\n".join(prompt.rstrip().splitlines()[-6:])
        parts.append(f"```python\n{shown}\n# … from here on the model writes\n{written.rstrip()}\n```")
    return "\n\n".join(parts)


def _card(
    facts: dict[str, Any], target: TargetFacts, draft: DraftFacts, sources: Sequence[Source], samples: str
) -> str:
    rows = "\n".join(
        f"| {s.name} | {s.version} | {s.licence} | {s.files} | {s.bytes / 1e6:.2f} |" for s in sources
    )
    summary = "\n".join(f"| {name} | {value} |" for name, value in _summary(facts, target, draft))
    return f"""# The embedded target and its Clover-2 draft

A small Llama that writes Python-like text, and a Clover-2 draft for it. They exist so that every command works
without a download, and so that speed and acceptance can be measured anywhere. The target is far too small to be of
use as a code model.

| | |
|---|---|
{summary}

Weights are stored as bf16 safetensors.

## Data

Python source from the machine the recipe ran on: the standard library and installed packages whose declared licence is
permissive. Tests, vendored code and files that are mostly tables are left out, and no package gives more than 6 MB.
{HELD_OUT_SHARE:.0%} of the files, chosen by the hash of their text, were never trained on; the demo's prompts come
from them. Development prompts come from them too, but from other files.

| source | version | licence | files | MB |
|---|---|---|---|---|
{rows}

## Samples

Continuations of development prompts at temperature 0.8, as they came.

{samples}
"""


def _summary(facts: dict[str, Any], target: TargetFacts, draft: DraftFacts) -> list[tuple[str, str]]:
    tau, new = facts["tau"], facts["new_token_share"]
    return [
        ("target", f"Llama, 16 layers, width 256, {target.parameters / 1e6:.1f} M parameters, context 1,024"),
        ("tokenizer", "byte-level BPE, 4,096 entries, trained on the same text"),
        (
            "target training",
            f"{target.steps:,} steps, {target.tokens / 1e6:.1f} M tokens (the corpus has "
            f"{target.corpus_tokens / 1e6:.1f} M), {target.minutes:.0f} minutes",
        ),
        ("target made", f"{target.made}; `{target.command}`"),
        ("last training loss", f"{target.training_loss:.3f} nats per token"),
        ("**held-out loss**", f"**{target.held_out_loss:.3f} nats per token**"),
        (
            "draft",
            f"Clover-Recall, 5 heads, {draft.parameters / 1e6:.1f} M parameters of its own",
        ),
        (
            "draft training",
            f"{draft.texts:,} texts ({draft.tokens / 1e6:.2f} M tokens) that the target wrote, half greedily, "
            f"half at temperature 1, and {draft.corpus_tokens / 1e6:.2f} M tokens of the corpus; "
            f"{draft.steps:,} steps, {draft.minutes:.0f} minutes",
        ),
        ("draft made", f"{draft.made}; `{draft.command}`"),
        (
            "τ, development prompts, 25 nodes",
            f"{tau['greedy']:.2f} greedy, {tau['temperature 0.8']:.2f} at temperature 0.8",
        ),
        (
            "four-token runs that are new",
            f"{new['greedy']:.0%} greedy, {new['temperature 0.8']:.0%} at temperature 0.8",
        ),
    ]
