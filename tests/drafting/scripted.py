"""A draft that says what a function of the text tells it to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from clover.drafting import CommittedInput, DraftInput
from clover.sampling import Sampler, SamplingParams
from clover.sampling.numbers import gumbels
from clover.tree import TokenTree

Text = tuple[int, ...]


class ScriptedDraft:
    """Its logits are ``opinion(text)``, [V]; the text is all but a prompt's first token."""

    usable = True

    def __init__(self, target: Any, opinion: Callable[[Text], Tensor], max_depth: int = 6):
        self.target, self.opinion, self.max_depth = target, opinion, max_depth
        self.config, self.d2t = SimpleNamespace(hidden_state="post_norm"), None
        self.session_tokens = None

    def for_inference(self, full_precision: bool = False) -> ScriptedDraft:
        return self

    def new_session(self, batch_size: int, capacity: int) -> ScriptedSession:
        return ScriptedSession(self, [()] * batch_size)


class ScriptedSession:
    def __init__(self, draft: ScriptedDraft, texts: list[Text]):
        self.draft, self.texts = draft, texts
        self.frontier = [[text] for text in texts]

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def commit(self, hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
        new = next_tokens.tolist()
        self.texts = [text + tuple(new[row][: counts[row]]) for row, text in enumerate(self.texts)]
        self.frontier = [[text] for text in self.texts]
        return self._logits()[:, 0]

    def advance(self, parents: Tensor, tokens: Tensor) -> Tensor:
        self.frontier = [
            [texts[slot] + (token,) for slot, token in zip(row_parents, row_tokens)]
            for texts, row_parents, row_tokens in zip(self.frontier, parents.tolist(), tokens.tolist())
        ]
        return self._logits()

    def drop(self, row: int) -> None:
        self.texts[row] = self.texts[-1]
        self.texts.pop()

    @contextmanager
    def first_rows(self, rows: int) -> Iterator[None]:
        aside = self.texts[rows:]
        del self.texts[rows:]
        yield
        self.texts += aside

    def crop(self, lengths: list[int]) -> None:
        self.texts = [text[:length] for text, length in zip(self.texts, lengths)]

    def _logits(self) -> Tensor:
        return torch.stack([torch.stack([self.draft.opinion(text) for text in row]) for row in self.frontier])


def random_opinion(vocab: int, ties: bool, seed: int = 0) -> Callable[[Text], Tensor]:
    """Logits [V] at random, with many equals or with none, and some impossible tokens."""

    @cache
    def opinion(text: Text) -> Tensor:
        rng = random.Random(f"{seed} {text}")
        sharpness = rng.choice((0.5, 2.0, 6.0))
        values = [rng.choice((0.0, 1.0, 1.0, 2.0)) if ties else rng.gauss(0, 1) for _ in range(vocab)]
        logits = torch.tensor(values, dtype=torch.float64) * sharpness
        for token in rng.sample(range(vocab), rng.choice((0, 0, vocab - 2))):
            logits[token] = -torch.inf
        return logits

    return opinion


# Rows that sample, with equal seeds too, and a greedy one.
SAMPLED = [SamplingParams(temperature=0.4 + 0.3 * row, seed=row % 5) for row in range(7)] + [SamplingParams()]


def sampler_of(params: Sequence[SamplingParams], vocab: int) -> Sampler:
    return Sampler(params, [[0]] * len(params), vocab, "cpu")


def raced(opinion: Callable[[Text], Tensor], params: SamplingParams) -> Callable[[Text], Tensor]:
    """The opinion after texts of a row's first step, with the numbers of the target's choices added; 2 says so."""

    def scores(text: Text) -> Tensor:
        logits = opinion(text)
        numbers = gumbels(torch.tensor([params.seed]), 2, len(text) - 1, torch.arange(len(logits)))
        return logits if params.greedy else logits / params.temperature + numbers

    return scores


def paths_of(tree: TokenTree, row: int) -> list[Text]:
    """Tokens from below the root down to each node that is no padding, in the order of the nodes."""
    paths: dict[int, Text] = {0: ()}
    for node, parent in enumerate(tree.parents[row].tolist()):
        if parent >= 0:
            paths[node] = (*paths[parent], int(tree.tokens[row, node]))
    return list(paths.values())[1:]


def fake_target(vocab: int) -> SimpleNamespace:
    """As much of a target as drafters look at."""
    return SimpleNamespace(device=torch.device("cpu"), vocab_size=vocab)


def draft_input(session: Any, logits: Tensor, root: Tensor, sampler: Any) -> DraftInput:
    """Return the input of a step whose draft has just committed everything."""
    return CommittedInput(root.unsqueeze(1), sampler, session, logits.unsqueeze(1))


def grown(drafter: Any, draft: ScriptedDraft, rows: int, sampler: Sampler | None = None) -> TokenTree:
    """One step's trees; row b's text is (b,), and all rows are greedy unless a sampler is given."""
    sampler = sampler or sampler_of([SamplingParams()] * rows, draft.target.vocab_size)
    session = ScriptedSession(draft, [(row,) for row in range(rows)])
    logits = torch.stack([draft.opinion((row,)) for row in range(rows)])
    return drafter.grow(draft_input(session, logits, torch.arange(rows), sampler))
