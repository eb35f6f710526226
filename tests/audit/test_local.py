"""Clean audits are clean, and every planted defect is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.audit.judge import ALARM, AuditResult, Rounding
from clover.audit.texts import make_modes, mixed_params
from clover.cache import KVCache
from clover.engine import Engine
from clover.measure.budget import Budget
from clover.sampling import Sampler
from clover.target import TargetModel
from clover.tree import TokenTree
from clover.verify import Verified, verify
from tests.audit.conftest import NEW_TOKENS, audit_of, prompts_of
from tests.families import by_turns, tiny_model

Plant = Callable[[pytest.MonkeyPatch], None]


def test_a_clean_engine_is_clean(target: TargetModel) -> None:
    found = audit_of(target, ("chain:4", "clover2"), (1, 3)).run()
    assert (found.defects, found.near_ties, found.problems) == (0, 0, [])
    assert found.p_value is not None
    drafted = [method for method in found.methods if not method.name.startswith("plain")]
    assert min(method.tau for method in drafted) > 1.1 and max(method.tau for method in drafted) > 1.5
    assert 0 < max(method.worst for method in found.methods) < found.rounding.most / 2


def test_little_time_is_enough_for_some_texts_and_one_comparison(target: TargetModel) -> None:
    audit = audit_of(target, ("chain:4", "clover2"), (1, 3))
    found = audit.run(budget=Budget(0.0))
    assert (len(found.methods), found.defects, found.methods[0].tokens > 0) == (1, 0, True)
    assert audit.ended == "after 2 of 10 texts (2 cut short), 1 of 12 comparisons, by --max-minutes 0"
    assert len(audit.missing) >= 11 and "clover2, batch 3, mixed, T = 0.8" in audit.missing
    audit = audit_of(target, ("chain:4",), (1,))
    audit.run(budget=Budget(60.0))
    assert (audit.ended, audit.missing) == ("", [])


def ticking(minutes: float) -> Budget:
    """Return a budget whose clock each look at it moves on by a tenth of a second."""
    ticks = count(0, 1)
    return Budget(minutes, lambda: next(ticks) / 10)


@pytest.mark.parametrize("minutes", [0.05, 0.2, 0.5, 1.0])
def test_an_audit_ends_a_unit_after_its_time(target: TargetModel, minutes: float) -> None:
    """Each step and each token is a look at the clock; what was cut is compared as far as it goes, and named."""
    audit, budget = audit_of(target, ("chain:4", "drawn:clover2"), (1, 3), draws=40), ticking(minutes)
    found = audit.run(budget=budget)
    assert budget.used < 60 * minutes + 1.0  # a look or two per part
    assert found.defects == 0 and audit.ended and audit.missing
    reached = {one.name for one in found.methods if not one.cut}
    assert not reached & {*audit.missing} and len(found.methods) + len(audit.missing) >= 12
    assert all(one.cut == (f"the rest of {one.name}" in audit.missing) for one in found.methods)


def test_an_interrupt_keeps_what_was_compared(target: TargetModel) -> None:
    def interrupt_at(start: str) -> Callable[[str], None]:
        def report(doing: str) -> None:
            if doing.startswith(start):
                raise KeyboardInterrupt

        return report

    audit = audit_of(target, ("chain:4",), (1,))
    with pytest.raises(KeyboardInterrupt):  # nothing was compared: there is no verdict
        audit.run(interrupt_at("plain, batch 1"))
    assert len(audit.run(interrupt_at("chain:4, batch 1")).methods) == 1
    assert audit.ended.endswith("by Ctrl-C")


def test_texts_that_may_differ_are_not_counted_as_compared(target: TargetModel) -> None:
    ways = {
        method.name: method.tokens
        for method in audit_of(target, ("chain:4", "drawn:clover2"), (2,)).run().methods
    }
    for name, tokens in ways.items():
        if name.startswith("drawn:clover2"):
            whole = ways[name.replace("drawn:clover2", "chain:4")]
            assert tokens == whole if name.endswith("greedy") else tokens < whole


@pytest.mark.parametrize(("factor", "off"), [(1.0, False), (1.001, True)])
def test_a_copy_of_the_model_that_is_off_is_found(
    factor: float, off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TargetModel(tiny_model("llama", dtype=torch.float32))
    assert target.base is not target.model.base_model
    forward = target.base.forward

    def scaled(*given: Any, **named: Any) -> Any:
        output = forward(*given, **named)
        output.last_hidden_state = output.last_hidden_state * factor
        return output

    monkeypatch.setattr(target.base, "forward", scaled)
    found = audit_of(target, ("chain:4",), (1,)).run()
    assert any("log-probabilities are off" in problem for problem in found.problems) == off
    assert off or found.defects == 0


def test_one_prompt_fills_every_batch_and_tests_every_processor(target: TargetModel) -> None:
    (prompt,) = prompts_of(target, count=1)
    sets = mixed_params(0.8, target.vocab_size)
    modes = make_modes([prompt], NEW_TOKENS, sets, 8)
    for cases in modes.values():
        assert [one.prompt for one in cases] == [prompt] * 8
    sampled = [one.params for one in modes["mixed, T = 0.8"]]
    assert {params.seed for params in sampled} == set(range(8))
    for own in sets:
        assert any(dataclasses.replace(params, seed=own.seed) == own for params in sampled)
    assert [len(cases) for cases in make_modes([prompt], NEW_TOKENS, sets, 1).values()] == [1, len(sets)]


def test_one_prompt_runs_in_a_real_batch(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_batch = list[int](), Engine.open

    def remembered(self: Engine, rows: int, *rest: Any) -> Any:
        opened.append(rows)
        return open_batch(self, rows, *rest)

    monkeypatch.setattr(Engine, "open", remembered)
    found = audit_of(target, (), (8,), prompts=prompts_of(target, count=1)).run()
    assert opened == [8, 8]
    assert [method.tokens for method in found.methods] == [8 * NEW_TOKENS] * 2 and found.defects == 0


def test_a_repeated_prompt_keeps_its_number(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with_verified(accepts_too_much)(monkeypatch)
    found = audit_of(target, sizes=(7,)).run()
    assert {one.prompt for one in found.mismatches} == {1, 2, 3, 4, 5}


def test_all_tests_share_the_chance_of_an_alarm() -> None:
    """Of two tests each has half of the chance, so that an audit raises an alarm no more often than one test."""
    results = [
        AuditResult(Rounding(), p_values=p_values)
        for p_values in ({"a test": 0.8 * ALARM}, {"a test": 0.8 * ALARM, "another": 1.0})
    ]
    assert [result.defects for result in results] == [1, 0]
    assert [result.p_value for result in results] == [pytest.approx(0.8 * ALARM), pytest.approx(1.6 * ALARM)]


def positions_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """All nodes below the root."""
    forward = TargetModel.forward

    def wrong(
        self: TargetModel, tokens: Tensor, positions: Tensor, cache: KVCache, mask: Any = None, *rest: Any
    ) -> Any:
        if mask is not None and tokens.shape[1] > 1:
            positions = torch.cat((positions[:, :1], positions[:, 1:] + 1), 1)
        return forward(self, tokens, positions, cache, mask, *rest)

    patch.setattr(TargetModel, "forward", wrong)


def with_kept(change: Callable[[Tensor], Tensor]) -> Plant:
    """Let the cache keep another path [B, D] of nodes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        keep = KVCache.keep
        patch.setattr(KVCache, "keep", lambda self, path, counts: keep(self, change(path), counts))

    return plant


def stale_cache_entry(path: Tensor) -> Tensor:
    """The last accepted node is not moved to where it belongs."""
    return torch.cat((path[:, :-1], path[:, -2:-1]), dim=1) if path.shape[1] > 1 else path


def not_moved(path: Tensor) -> Tensor:
    return torch.arange(path.shape[1]).expand_as(path)


def mask_leaks(node: int, sibling: int) -> Plant:
    """A node sees another that is no ancestor."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        attention_mask = KVCache.attention_mask

        def wrong(self: KVCache, ancestor_mask: Tensor) -> Tensor:
            if ancestor_mask.shape[1] > max(node, sibling):
                ancestor_mask = ancestor_mask.clone()
                ancestor_mask[:, node, sibling] = True
            return attention_mask(self, ancestor_mask)

        patch.setattr(KVCache, "attention_mask", wrong)

    return plant


def mask_forgets_the_parent(patch: pytest.MonkeyPatch) -> None:
    attention_mask = KVCache.attention_mask

    def wrong(self: KVCache, ancestor_mask: Tensor) -> Tensor:
        ancestor_mask = ancestor_mask.clone()
        if ancestor_mask.shape[1] > 5:
            ancestor_mask[:, 5, 1] = False
        return attention_mask(self, ancestor_mask)

    patch.setattr(KVCache, "attention_mask", wrong)


def processor_forgotten(patch: pytest.MonkeyPatch) -> None:
    """On the branch of the first child the token with the largest logit is chosen, whatever the parameters are."""
    choose = Sampler.choose

    def wrong(self: Sampler, logits: Tensor, tree: TokenTree) -> Tensor:
        chosen = choose(self, logits, tree)
        return torch.where(tree.ancestor_mask[:, :, 1:2].any(2), logits.argmax(-1), chosen)

    patch.setattr(Sampler, "choose", wrong)


def with_tree(change: Callable[[TokenTree], TokenTree]) -> Plant:
    """Let the sampler see another tree."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        choose = Sampler.choose
        patch.setattr(Sampler, "choose", lambda self, logits, tree: choose(self, logits, change(tree)))

    return plant


def penalty_without_the_path(tree: TokenTree) -> TokenTree:
    return dataclasses.replace(tree, ancestor_mask=tree.ancestor_mask & (tree.depths == 0).unsqueeze(1))


def one_random_number(tree: TokenTree) -> TokenTree:
    return dataclasses.replace(tree, depths=tree.depths.clamp(max=1))


def with_verified(change: Callable[[TokenTree, Tensor], Verified]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("clover.verify.verify", change)

    return plant


def accepts_too_much(tree: TokenTree, choices: Tensor) -> Verified:
    honest = verify(tree, choices)
    return dataclasses.replace(honest, tokens=torch.cat((tree.tokens[:, 1:2], honest.tokens[:, 1:]), dim=1))


def bonus_of_the_parent(tree: TokenTree, choices: Tensor) -> Verified:
    """The bonus token is the choice one node too high."""
    honest = verify(tree, choices)
    last = honest.counts.unsqueeze(1) - 1
    node = honest.path.gather(1, (last - 1).clamp(min=0))
    return dataclasses.replace(honest, tokens=honest.tokens.scatter(1, last, choices.gather(1, node)))


def raw_bonus(patch: pytest.MonkeyPatch) -> None:
    """The token after a path that was accepted whole comes from the softmax without the processors."""
    choose = Sampler.choose

    def wrong(self: Sampler, logits: Tensor, tree: TokenTree) -> Tensor:
        chosen = choose(self, logits, tree)
        leaf = ~(tree.parents.unsqueeze(1) == torch.arange(tree.tokens.shape[1]).unsqueeze(1)).any(2)
        raw = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1).view_as(chosen)
        return torch.where(leaf & (tree.depths > 0) & ~self._greedy, raw, chosen)

    patch.setattr(Sampler, "choose", wrong)


PLANTS: dict[str, Plant] = {
    "positions one too far": positions_one_too_far,
    "stale cache entry": with_kept(stale_cache_entry),
    "path not moved": with_kept(not_moved),
    "mask leaks a sibling": mask_leaks(2, 1),
    "mask forgets the parent": mask_forgets_the_parent,
    "processor forgotten on one branch": processor_forgotten,
    "penalty without the path": with_tree(penalty_without_the_path),
    "one random number for two draws": with_tree(one_random_number),
    "accepts too much": with_verified(accepts_too_much),
    "bonus of the parent": with_verified(bonus_of_the_parent),
    "raw bonus": raw_bonus,
}

ALONE = ("path not moved",)  # shows where all rows have the same length


@pytest.mark.parametrize("plant", by_turns([*PLANTS]))
def test_a_planted_defect_is_found(target: TargetModel, plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[plant](monkeypatch)
    assert audit_of(target, sizes=(1,) if plant in ALONE else (3,)).run().defects > 0
