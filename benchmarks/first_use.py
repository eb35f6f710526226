r"""What a new user gets: train with all defaults on each target of a panel, and with other flags beside them.

    python benchmarks/first_use.py benchmarks/panel.json --minutes 2 --flags '' '--lr 0.002' '--lr 0.008' \
        --systems recall clover2 clover1 medusa eagle eagle3 --json first_use.jsonl

`panel.json` lists targets with texts of yours, by paths from the current directory; benchmarks/panel.py makes two:

    [{"name": "letters", "target": "DIR", "data": "train.jsonl", "held_out": "held.jsonl"}, ...]

The target `embedded` is that of the package. The held-out file has `text`, whose first 40 tokens are the prompt, or
`messages` or `turns`, whose first turn is. Each training is a `clover train` of its own; τ is greedy, of 25 nodes
(the tree of Clover-2's paper, or for drafts that go less deep Clover-1's dynamic one) and of a chain of three, over
`--prompts` prompts of 64 new tokens, evenly spaced over the file, with its standard error over them. Prints one JSON
line per training, and at the end the τ of the first --flags divided by the best. Flags such as '--seed 1' give other
seeds; with '--max-steps 64' all end after as many steps, if the minutes last, so that the load of the machine decides
nothing. Trainings that the JSON file holds already are not run again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from clover import assets
from clover.api import Clover
from clover.data.tasks import spaced
from clover.drafting import parse_tree
from clover.drafts import load_draft
from clover.engine import Engine
from clover.measure.acceptance import tau_pairs
from clover.measure.report.provenance import Provenance
from clover.measure.report.statistics import ratio
from clover.target import TargetModel
from clover.train.record import read_record

DEEP, SHALLOW = "clover2", "budget:25"  # trees of 25 nodes; the first is five deep
PROMPT_TOKENS, NEW_TOKENS = 40, 64


def main() -> None:
    """Run what is missing, then compare."""
    options = _options()
    found = _done(options.json)
    for member in json.loads(options.panel.read_text(encoding="utf-8")):
        for system in options.systems:
            for minutes in options.minutes:
                for flags in options.flags:
                    key = (member["name"], system, minutes, flags)
                    if key not in found:
                        found[key] = _run(member, system, minutes, flags, options)
                        with options.json.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(found[key]) + "\n")
                        print(json.dumps(found[key]), flush=True)
    _compare(found, options.flags[0])


def _run(
    member: dict[str, str], system: str, minutes: float, flags: str, options: argparse.Namespace
) -> dict:
    with tempfile.TemporaryDirectory() as work:
        draft = Path(work, "draft")
        named = [] if member["target"] == "embedded" else ["--target", member["target"]]
        given = [*named, "--data", member["data"], "--system", system]
        command = ["train", *given, "--max-minutes", str(minutes), *shlex.split(flags)]
        arguments = [sys.executable, "-m", "clover", *command, "--output", str(draft)]
        subprocess.run(arguments, check=True, stdout=sys.stderr)
        result = read_record(draft).result
        target = TargetModel.load(named[-1] if named else assets.TARGET)
        taus = _taus(target, draft, _prompts(target, Path(member["held_out"]), options.prompts))
    here = Provenance.here("benchmarks/first_use.py", target.device, target.dtype)
    return {
        "name": member["name"], "system": system, "minutes": minutes, "flags": flags, **taus,
        "accuracy": (result.validation or result.training).accuracy,
        "steps": result.steps, "tokens": result.tokens, "prompts": options.prompts,
        "date": here.date, "machine": here.machine, "revision": here.revision,
    }  # fmt: skip


def _prompts(target: TargetModel, path: Path, count: int) -> list[list[int]]:
    model, prompts = Clover(Engine(target)), []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number in spaced(len(lines), count)[:count]:
        row = json.loads(lines[number])
        if "text" in row:
            prompts.append(model.encode(row["text"])[:PROMPT_TOKENS])
            continue
        words = row["turns"][0] if "turns" in row else row["messages"][0]["content"]
        tokenizer: Any = target.tokenizer
        if tokenizer.chat_template is None:
            prompts.append(model.encode(words))
        else:
            message = [{"role": "user", "content": words}]
            prompts.append(
                tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
            )
    return prompts


def _taus(target: TargetModel, draft: Path, prompts: list[list[int]]) -> dict[str, float]:
    loaded, taus = load_draft(draft, target), {}
    wide = SHALLOW if loaded.max_depth < 5 else DEEP
    for name, tree in {"tau_25_nodes": wide, "tau_chain_3": "chain:3"}.items():
        model = Clover(Engine(target, loaded, tree=parse_tree(tree)))
        results = model.generate(prompts, max_new_tokens=NEW_TOKENS, batch_size=8)
        tau = ratio(tau_pairs([result.acceptance for result in results]))
        taus |= {name: round(tau.value, 3), f"{name}_error": round(tau.error or 0.0, 3)}
    return taus


def _compare(found: dict[tuple, dict], defaults: str) -> None:
    groups: dict[tuple, dict[str, float]] = defaultdict(dict)
    for (name, system, minutes, flags), line in found.items():
        groups[name, system, minutes][flags] = line["tau_25_nodes"]
    for (name, system, minutes), taus in groups.items():
        best = max(taus, key=taus.__getitem__)
        if defaults in taus:
            share = taus[defaults] / taus[best]
            print(
                f"{name} {system} {minutes:g} min: [{defaults}] {taus[defaults]:.2f}, {share:.3f} of [{best}]"
            )


def _done(path: Path) -> dict[tuple, dict]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(line["name"], line["system"], line["minutes"], line["flags"]): line for line in lines}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("panel", type=Path)
    parser.add_argument("--systems", nargs="+", default=["recall"])
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0])
    parser.add_argument("--flags", nargs="+", default=[""])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--json", type=Path, default=Path("first_use.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
