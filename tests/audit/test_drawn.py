"""Slips of recursive rejection sampling, planted in drawn trees: the tests of probabilities find each.

Two of them need other trees than this project draws, which are clean without the slip: children drawn independently
(SpecInfer), of which published code drops duplicates, and a draft whose distribution has fewer tokens than children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import clover.verify as verify_module
from clover.audit.judge import AuditResult
from clover.engine.verifiers import Verifier
from clover.rejection import draw_rule
from clover.sampling import Sampler
from clover.target import TargetModel
from clover.tree import TokenTree
from clover.verify import verify_drawn
from tests.audit.conftest import audit_of

Plant = Callable[[pytest.MonkeyPatch], None]
TREE = "drawn:clover2"


def given_to_verify(change: Callable[[TokenTree, Tensor, Tensor], tuple[TokenTree, Tensor, Tensor]]) -> Plant:
    """Verify another tree, with other probabilities or numbers."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def wrong(tree: TokenTree, target_probs: Tensor, tests: Tensor, bonus: Tensor) -> Any:
            return verify_drawn(*change(tree, target_probs, tests), bonus)

        patch.setattr(verify_module, "verify_drawn", wrong)

    return plant


def chances(tree: TokenTree) -> Tensor:
    """The draft's probability of each drawn token, float64 [B, N]; 1 for the root."""
    draws = tree.draws
    assert draws is not None
    nodes = draws.children.clamp(min=0)
    tokens = tree.tokens.gather(1, nodes.flatten(1)).view_as(nodes)
    found = draws.draft_probs.gather(2, tokens).masked_fill(draws.children < 0, 0)
    whole = torch.zeros(tree.tokens.shape, dtype=found.dtype)
    whole = whole.scatter_reduce(1, nodes.flatten(1), found.flatten(1), "amax")
    return whole.index_fill(1, torch.tensor(0), 1.0)


def improbable_siblings_pruned(tree: TokenTree, probs: Tensor, tests: Tensor) -> Any:
    return tree.without(chances(tree) < 0.05), probs, tests


def count_from_the_draws(tree: TokenTree, probs: Tensor, tests: Tensor) -> Any:
    """As many children are tested as there are probable ones among them."""
    draws = tree.draws
    assert draws is not None
    tokens = tree.tokens.gather(1, draws.children.clamp(min=0).flatten(1)).view_as(draws.children)
    probable = (draws.draft_probs.gather(2, tokens) > 0.05) & (draws.children >= 0)
    tested = torch.arange(tokens.shape[2]) < probable.sum(2, keepdim=True)
    changed = replace(draws, children=draws.children.masked_fill(~tested, -1))
    return replace(tree, draws=changed), probs, tests


def another_temperature(tree: TokenTree, probs: Tensor, tests: Tensor) -> Any:
    """The test takes the children for draws at half the temperature."""
    draws = tree.draws
    assert draws is not None
    squared = draws.draft_probs.square()
    changed = replace(draws, draft_probs=squared / squared.sum(2, keepdim=True))
    return replace(tree, draws=changed), probs, tests


def one_number_for_all_tests(tree: TokenTree, probs: Tensor, tests: Tensor) -> Any:
    return tree, probs, tests[:, :1].expand_as(tests)


def residual_kept(patch: pytest.MonkeyPatch) -> None:
    """The bonus token after refusals comes from the target's whole distribution."""

    def wrong(tree: TokenTree, draws: Any, target_probs: Tensor) -> tuple[Tensor, Tensor]:
        return draw_rule(tree, draws, target_probs)[0], target_probs

    patch.setattr(verify_module, "draw_rule", wrong)


def top_tokens_for_draws(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Sampler, probs: Tensor, nodes: Tensor, count: int, d2t: Tensor | None) -> Tensor:
        return probs.topk(count, dim=2).indices

    patch.setattr(Sampler, "draw", wrong)


def raw_bonus(patch: pytest.MonkeyPatch) -> None:
    """The token after a path that was accepted whole comes from the softmax without the processors."""
    target_probs = Sampler.target_probs

    def wrong(self: Sampler, logits: Tensor, tree: TokenTree) -> Tensor:
        probs = target_probs(self, logits, tree)
        leaf = ~(tree.parents.unsqueeze(1) == torch.arange(tree.tokens.shape[1]).unsqueeze(1)).any(2)
        raw = logits.double().softmax(-1)
        return torch.where((leaf & (tree.depths > 0)).unsqueeze(2), raw, probs)

    patch.setattr(Sampler, "target_probs", wrong)


def own_rule(replaced: bool = False, impossible: float = 0.0) -> Callable[..., tuple[Tensor, Tensor]]:
    """`draw_rule` for children drawn with or without replacement, those with probability 0 accepted so often."""

    def rule(tree: TokenTree, draws: Any, target_probs: Tensor) -> tuple[Tensor, Tensor]:
        target, draft, thresholds = target_probs, draws.draft_probs, []
        for child in draws.children.unbind(2):
            node = child.clamp(min=0)
            exists = ((child >= 0) & (tree.parents.gather(1, node) >= 0)).unsqueeze(2)
            token = tree.tokens.gather(1, node).unsqueeze(2)
            own, drawn = target.gather(2, token), draft.gather(2, token)
            ratio = torch.where(drawn > 0, own / drawn, impossible * (own > 0))
            thresholds.append(torch.where(exists, ratio, 0.0).clamp(max=1.0).squeeze(2))
            tested = exists & (drawn > 0)
            rest = (target - draft).clamp(min=0)
            total = rest.sum(2, keepdim=True)
            target = torch.where(tested & (total > 0), rest / total, target)
            if not replaced:
                rest = draft.scatter(2, token, 0.0)
                draft = torch.where(tested, rest / rest.sum(2, keepdim=True).clamp(min=1e-300), draft)
        return torch.stack(thresholds, dim=2), target

    return rule


def duplicates(tree: TokenTree, probs: Tensor, tests: Tensor) -> Any:
    """Children with the token of an earlier one are dropped untested."""
    draws = tree.draws
    assert draws is not None
    tokens = tree.tokens.gather(1, draws.children.clamp(min=0).flatten(1)).view_as(draws.children)
    same = (tokens.unsqueeze(3) == tokens.unsqueeze(2)) & (draws.children >= 0).unsqueeze(2)
    again = same.tril(-1).any(3)
    return replace(tree, draws=replace(draws, children=draws.children.masked_fill(again, -1))), probs, tests


def independent_draws(dropped: bool) -> Plant:
    """Children drawn with replacement, and tested so; with duplicates or without."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        best, generator = Sampler.draw, torch.Generator().manual_seed(0)

        def drawn(
            self: Sampler, probs: Tensor, nodes: Tensor, count: int, d2t: Tensor | None = None
        ) -> Tensor:
            found = torch.multinomial(probs.flatten(0, 1), count, replacement=True, generator=generator)
            greedy = best(self, probs, nodes, count, d2t)
            return torch.where(self._greedy.view(-1, 1, 1), greedy, found.view_as(greedy))

        draft_probs = Sampler.draft_probs

        def uneven(self: Sampler, logits: Tensor) -> Tensor:
            """One improbable token most of the time, which is then drawn again, else one of the more probable half."""
            probs = draft_probs(self, logits)
            ranked = probs.sort(2, descending=True)
            below = 0.8 * ranked.values * (ranked.values.cumsum(2) <= 0.5)
            below[..., -1] = 1 - below[..., :-1].sum(2)
            return torch.zeros_like(probs).scatter(2, ranked.indices, below)

        patch.setattr(Sampler, "draft_probs", uneven)
        patch.setattr(Sampler, "draw", drawn)
        patch.setattr(verify_module, "draw_rule", own_rule(replaced=True))
        if dropped:
            given_to_verify(duplicates)(patch)

    return plant


def few_tokens(accepted: bool) -> Plant:
    """The draft says two tokens at each node, fewer than there are children; the others count as drawn, or not."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        draft_probs = Sampler.draft_probs

        def two(self: Sampler, logits: Tensor) -> Tensor:
            probs = draft_probs(self, logits)
            probs = probs.masked_fill(probs < probs.topk(2, dim=2).values[..., -1:], 0.0)
            return probs / probs.sum(2, keepdim=True)

        patch.setattr(Sampler, "draft_probs", two)
        if accepted:
            patch.setattr(verify_module, "draw_rule", own_rule(impossible=1.0))
            patch.setattr(TokenTree, "without", lambda self, nodes: self)

    return plant


PLANTS: dict[str, Plant] = {
    "independent draws without their duplicates": independent_draws(dropped=True),
    "more children than tokens": few_tokens(accepted=True),
    "improbable siblings pruned": given_to_verify(improbable_siblings_pruned),
    "number of tests from the draws": given_to_verify(count_from_the_draws),
    "draft of another temperature": given_to_verify(another_temperature),
    "one number for all tests": given_to_verify(one_number_for_all_tests),
    "residual kept": residual_kept,
    "top tokens for draws": top_tokens_for_draws,
    "raw bonus": raw_bonus,
}


FEW_DRAWS = 400  # in place of 1,000: enough for all slips but the subtle ones
SUBTLE = (
    "independent draws without their duplicates",
    "number of tests from the draws",
    "one number for all tests",
)


def drawn_audit(target: TargetModel, draws: int = 1000) -> AuditResult:
    """An audit of drawn trees; the draft sees the last token alone."""
    return audit_of(target, (TREE,), draws=draws).run()


@pytest.mark.long
@pytest.mark.parametrize("draws", [FEW_DRAWS, 1000])
def test_clean_draws_are_clean(target: TargetModel, draws: int) -> None:
    found = drawn_audit(target, draws)
    assert (found.defects, found.problems) == (0, [])
    assert max(method.tau for method in found.methods if method.name.startswith("drawn:")) > 1.3


@pytest.mark.long
@pytest.mark.parametrize("other", [independent_draws(dropped=False), few_tokens(accepted=False)])
def test_other_draws_are_clean_without_their_slip(
    target: TargetModel, other: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    other(monkeypatch)
    monkeypatch.setattr(
        "clover.engine.runner.verifier_for", lambda device: Verifier()
    )  # slips are planted in what a GPU does
    found = drawn_audit(target)
    assert (found.defects, found.problems) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_slip_is_found(target: TargetModel, plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[plant](monkeypatch)
    monkeypatch.setattr("clover.engine.runner.verifier_for", lambda device: Verifier())
    found = drawn_audit(target, 1000 if plant in SUBTLE else FEW_DRAWS)
    assert found.defects > 0 or found.problems
