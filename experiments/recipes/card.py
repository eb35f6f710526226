"""The model card of the embedded default, with its losses, time and samples."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import torch

from clover.api import load
from clover.engine import Generation
from clover.files import write_json, write_text
from clover.measure.systems import system_name
from clover.metrics import Acceptance
from experiments.recipes.corpus import Source
from experiments.recipes.drafts import DraftFacts, made_here
from experiments.recipes.pretrain import TargetFacts

_SAMPLES, _SAMPLE_TOKENS, _EVALUATION_TOKENS = 4, 96, 128
_TEMPERATURES = (0.0, 0.8)


def write_card(
    output: Path,
    sources: Sequence[Source],
    target: TargetFacts,
    drafts: Sequence[DraftFacts],
    prompts: Sequence[str],
    device: str,
    command: str,
) -> None:
    """Try the finished models on development prompts and write `README.md` and `facts.json` into `output`."""
    tau, new = {}, {}
    for draft in drafts:
        model = load(output / "target", output / draft.system, tree="own", dtype="float32", device=device)
        texts = {
            f"{t:g}": model.generate(prompts, max_new_tokens=_EVALUATION_TOKENS, temperature=t)
            for t in _TEMPERATURES
        }
        tau[draft.system] = {
            t: sum((g.acceptance for g in found), Acceptance()).tau for t, found in texts.items()
        }
        new = {t: _variety(found) for t, found in texts.items()}  # all drafts give the same texts
    facts = {
        "target": asdict(target),
        "drafts": [asdict(draft) for draft in drafts],
        "drafts_made": f"{made_here(torch.device(device), torch.bfloat16)}; `{command}`",
        "tau": tau,
        "new_token_share": new,
        "sources": [asdict(source) for source in sources],
    }
    write_json(output / "facts.json", facts)
    plain = load(output / "target", tree="plain", dtype="float32", device=device)
    samples = [
        (
            "\n".join(prompt.rstrip().splitlines()[-6:]),
            plain.generate(prompt, max_new_tokens=_SAMPLE_TOKENS, temperature=0.8).text.rstrip(),
        )
        for prompt in prompts[:_SAMPLES]
    ]
    objects = {"target": target, "drafts": drafts, "sources": sources, "samples": samples}
    write_text(output / "README.md", render("card.md", facts | objects))


def render(name: str, facts: dict[str, Any]) -> str:
    """Return a card: the template of this folder called `name`, filled in."""
    source = Path(__file__).with_name(name).read_text(encoding="utf-8")
    template = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True).from_string(source)
    return template.render(facts, name=system_name)


def _variety(generations: Sequence[Generation]) -> float:
    """Distinct four-token sequences of a text, as a share of all: near 1 for text, near 0 for a loop."""
    runs = [[tuple(g.tokens[i : i + 4]) for i in range(len(g.tokens) - 3)] for g in generations]
    return sum(len(set(found)) for found in runs) / max(sum(map(len, runs)), 1)
