"""How good the choices of auto are, without the noise of a machine: recorded paths, replayed at measured costs.

    python benchmarks/replay.py [--json FILE]

`docs/results/replay/paths-*.json` hold what was recorded of several pairs: texts that the target wrote, at each of
their tokens how many of the draft's best chain, and of its own tree, are right; and seconds of steps by batch size.
From that follows what any chain, the tree and prompt lookup accept at any place. So batches of these texts are run by
the policy of auto, by plain decoding and by fixed chains without a model. Requests join as others end. The policy sees
times with noise (6 % per step, and a drift of 10 %); what is added up is without.

Printed per pair, with and without a tuning, kind of text and batch size: the speed of auto against plain decoding, and
its time divided by that of the best of plain decoding and three chains, chosen afterwards.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean, geometric_mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from clover.drafting import (
    PLAIN_DRAFTER,
    AutoTree,
    Drafter,
    FixedPolicy,
    LookupDrafter,
    Policy,
    StepOutcome,
    UpcomingStep,
    parse_tree,
)
from clover.drafting.tuning import Choice, Tuning, VerifyCost
from clover.drafts.ngrams import RepeatingText

PATHS = Path(__file__).parents[1] / "docs" / "results" / "replay"
SIZES, CHAINS, LOOKUPS = (1, 4, 16), (1, 3, 8), (7, 15, 31)
TUNED_CHAINS = (1, 2, 4, 6, 8)
NOISE, DRIFT, DRIFT_KEPT = 0.06, 0.1, 0.98
CATCH_UP = 0.004  # of a plain step, for each position that the draft takes in late
ROUNDS = 2


@dataclass(frozen=True)
class Text:
    """A text as the target wrote it.

    Attributes:
        chain, tree: at each new token, how many of the draft's best chain and of its own tree are right there.
    """

    prompt: tuple[int, ...]
    new: tuple[int, ...]
    chain: tuple[int, ...]
    tree: tuple[int, ...]

    def then(self, other: Text) -> Text:
        """Return this text, going on as another one."""
        new = self.new[: len(self.chain)] + other.new
        return replace(self, new=new, chain=self.chain + other.chain, tree=self.tree + other.tree)


class Pair:
    """A target and a draft as they were recorded."""

    def __init__(self, file: Path):
        found = json.loads(file.read_text())
        self.name, self.tree = found["pair"], parse_tree(found["tree"])
        self._costs = {float(size): costs for size, costs in found["costs"].items()}
        self.texts: dict[float, list[Text]] = {}
        for one in found["texts"]:
            depths = [tuple(int(digit, 36) for digit in one[kind]) for kind in ("chain", "tree")]
            text = Text(tuple(one["prompt"]), tuple(one["new"]), *depths)
            self.texts.setdefault(one["temperature"], []).append(text)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes whose costs were measured."""
        return tuple(size for size in SIZES if size <= max(self._costs))

    def seconds(self, batch: int, drafter: Drafter) -> float:
        """Of a step, on lines through what was measured."""
        points = [(size, self._step(costs, drafter)) for size, costs in sorted(self._costs.items())]
        return on_line(points, batch)

    def _step(self, costs: dict[str, Any], drafter: Drafter) -> float:
        plain, nodes = costs["plain"], drafter.max_nodes
        if nodes == 1:
            return plain
        if isinstance(drafter, LookupDrafter):
            passes = {int(n): s / costs["verify"]["1"] * plain for n, s in costs.get("verify", {}).items()}
            measured = {1: plain, **{1 + n: costs[f"lookup:{n}"] for n in LOOKUPS if f"lookup:{n}" in costs}}
            return max(on_line(sorted((passes or measured).items()), nodes), plain)
        if not is_chain(drafter) and "tree" in costs:
            return costs["tree"]
        chains = sorted((int(name[6:]), s) for name, s in costs.items() if name.startswith("chain:"))
        seconds = on_line(chains, drafter.max_depth)
        if not is_chain(drafter):  # drafted like a chain as deep; the target's pass is over more nodes
            passes = sorted((int(n), s) for n, s in costs["verify"].items())
            seconds += on_line(passes, nodes) - on_line(passes, drafter.max_depth + 1)
        return max(seconds, plain)


def on_line(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate; beyond the ends on the line of the last two points there, which never falls."""
    if len(points) < 2 or points[0][0] <= x <= points[-1][0]:
        return float(np.interp(x, *zip(*points, strict=True)))
    (x0, y0), (x1, y1) = points[:2] if x < points[0][0] else points[-2:]
    slope = max((y1 - y0) / (x1 - x0), 0.0)
    return y1 + slope * (x - x1) if x > x1 else max(y0 + slope * (x - x0), 0.0)


def is_chain(drafter: Drafter) -> bool:
    return drafter.max_nodes == drafter.max_depth + 1


def fixed(depth: int) -> Any:
    """As much of a chain's drafter as the replay looks at."""
    return SimpleNamespace(max_depth=depth, max_nodes=depth + 1)


def run(policy: Policy, queue: Sequence[Text], size: int, pair: Pair, rng: Random) -> float:
    """Seconds that these requests take, so many at once."""
    at, total, drift, behind = [0] * len(queue), 0.0, 0.0, 0
    read = [RepeatingText(text.prompt) for text in queue]
    while live := [n for n, text in enumerate(queue) if at[n] < len(text.chain)][:size]:
        for n in live:
            done = len(read[n]) - len(queue[n].prompt)
            read[n].extend(queue[n].new[done : at[n]])
        texts = [read[n] for n in live]
        upcoming = UpcomingStep(len(live), texts=lambda texts=texts: texts)
        drafter = policy.choose(upcoming)
        emitted = tuple(1 + accepted(queue[n], at[n], drafter, read[n]) for n in live)
        asks = drafter.max_nodes > 1 and not isinstance(drafter, LookupDrafter)
        backlog, behind = (behind, 0) if asks else (0, behind + max(emitted))
        seconds = pair.seconds(len(live), drafter)
        seconds += CATCH_UP * backlog * pair.seconds(len(live), PLAIN_DRAFTER)
        drift = DRIFT_KEPT * drift + rng.gauss(0, DRIFT * (1 - DRIFT_KEPT**2) ** 0.5)
        seen = seconds * rng.lognormvariate(0, NOISE) * exp(drift)
        policy.record(StepOutcome(drafter.max_nodes, emitted, seen, backlog))
        for n, tokens in zip(live, emitted, strict=True):
            at[n] += tokens
        total += seconds
    return total


def accepted(text: Text, at: int, drafter: Drafter, read: RepeatingText) -> int:
    if isinstance(drafter, LookupDrafter):
        pairs = zip(read.following(drafter.max_depth), text.new[at:-1], strict=False)
        wrong = [place for place, (found, right) in enumerate(pairs) if found != right]
        return wrong[0] if wrong else min(len(text.new) - 1 - at, drafter.max_depth if read.match else 0)
    return min((text.chain if is_chain(drafter) else text.tree)[at], drafter.max_depth)


def auto(pair: Pair, tuned: bool) -> Policy:
    """Return what `clover.load` would make of the pair."""
    draft: Any = SimpleNamespace(max_depth=12, config=SimpleNamespace(tree_shape=pair.tree.shape))
    draft.d2t = draft.session_tokens = None
    draft.target = SimpleNamespace(device=torch.device("cpu"), vocab_size=1 << 16)
    if not tuned:
        return AutoTree().policy(draft)
    choices, verify = [], []
    for size in pair.sizes:
        trees = [("plain", PLAIN_DRAFTER, 1.0)]
        trees += [(f"chain:{d}", fixed(d), tau(pair, d)) for d in TUNED_CHAINS]
        for name, drafter, yields in trees:
            seconds = pair.seconds(size, drafter)
            choices.append(Choice(size, name, yields, seconds, yields * size / seconds))
        lookups = [(1, PLAIN_DRAFTER), *((1 + n, LookupDrafter(n)) for n in LOOKUPS)]
        verify += [VerifyCost(size, nodes, pair.seconds(size, one)) for nodes, one in lookups]
    return AutoTree().policy(
        draft, Tuning("cpu", "float32", "", 1, "", {}, None, False, "", tuple(verify), tuple(choices))
    )


def tau(pair: Pair, depth: int) -> float:
    """Tokens per step of a chain on the greedy texts, which is what a tuning measures."""
    steps = tokens = 0
    for text in pair.texts[0.0]:
        at = 0
        while at < len(text.chain):
            at += 1 + min(text.chain[at], depth)
            steps += 1
        tokens += at
    return tokens / steps


def kinds(pair: Pair) -> dict[str, list[Text]]:
    """Texts of each temperature, and those that change from one to the other half-way."""
    greedy, warm = (texts for _, texts in sorted(pair.texts.items()))
    changing = [part for a, b in zip(greedy, warm, strict=False) for part in (a.then(b), b.then(a))]
    return {"greedy": greedy, "sampled": warm, "changing": changing}


def replay(pair: Pair, tuned: bool, texts: Sequence[Text], size: int) -> dict[str, float]:
    """Mean seconds of auto, of plain decoding and of the best fixed choice."""
    found = []
    for number in range(ROUNDS):
        rng = Random(1000 * number + size)
        some = rng.sample(list(texts), len(texts))
        queue = [some[n % len(some)] for n in range(max(12, 4 * size))]
        own = run(auto(pair, tuned), queue, size, pair, rng)
        every = [
            run(FixedPolicy(one), queue, size, pair, rng) for one in (PLAIN_DRAFTER, *map(fixed, CHAINS))
        ]
        found.append((own, every[0], min(every)))
    return dict(zip(("auto", "plain", "best"), map(fmean, zip(*found, strict=True)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options, rows = parser.parse_args(), list[dict[str, Any]]()
    for pair in map(Pair, sorted(PATHS.glob("paths-*.json"))):
        for tuned in (False, True):
            for kind, texts in kinds(pair).items():
                for size in pair.sizes:
                    row = {"pair": pair.name, "tuned": tuned, "texts": kind, "batch_size": size}
                    rows.append(row | replay(pair, tuned, texts, size))
                    print(*row.values(), f"{rows[-1]['plain'] / rows[-1]['auto']:.3f}", flush=True)
    for name in dict.fromkeys(row["pair"] for row in rows):
        own = [row for row in rows if row["pair"] == name]
        speeds = [row["plain"] / row["auto"] for row in own]
        loss = geometric_mean([row["auto"] / row["best"] for row in own])
        print(
            f"{name}: {geometric_mean(speeds):.3f} times plain, at least {min(speeds):.3f}; time/best {loss:.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
