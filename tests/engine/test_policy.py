"""Whatever a policy chooses, and whenever it changes its mind, the text is that of plain decoding."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from clover.drafting import (
    PLAIN_DRAFTER,
    AutoTree,
    Drafter,
    LookupDrafter,
    PlainDrafter,
    Policy,
    StepOutcome,
    UpcomingStep,
    parse_tree,
)
from clover.drafts.loading import SYSTEMS
from clover.engine import Engine, EngineLimits, Request
from clover.engine.batch import Batch
from clover.sampling import SamplingParams
from clover.target import TargetModel
from tests.engine.test_lossless import SETTINGS, requests_of, run, tokens_of
from tests.families import by_turns, tiny_model

TREES = ("chain:4", "chain:9:0.02", "clover2", "budget:4", "eagle2:8:3")
NEW = 24


class ScriptedPolicy(Policy):
    """Chooses as it is told, over and over, and notes how it went."""

    def __init__(self, choices: Sequence[Drafter]):
        self.choices = list(choices)
        self.max_nodes = max(choice.max_nodes for choice in choices)
        self.max_depth = max(choice.max_depth for choice in choices)
        self.asked: list[UpcomingStep] = []
        self.outcomes: list[StepOutcome] = []

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        self.asked.append(upcoming)
        return self.choices[(len(self.asked) - 1) % len(self.choices)]

    def record(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


WITHOUT_DRAFT = (PLAIN_DRAFTER, LookupDrafter(3), LookupDrafter(9))


def random_choices(
    draft: Any, trees: Sequence[str], seed: int, others: Sequence[Drafter] = (PLAIN_DRAFTER,)
) -> list[Drafter]:
    """Runs of one to six steps of the same kind; every other run is one of the others, plain steps if none is named."""
    rng = random.Random(seed)
    drafters = [parse_tree(tree).drafter(draft) for tree in trees]
    runs = [[rng.choice(others if i % 2 else drafters)] * rng.randrange(1, 7) for i in range(8)]
    return [choice for part in runs for choice in part]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel(tiny_model("llama"))


@pytest.fixture(scope="module", params=by_turns(sorted(SYSTEMS)))
def draft(request: pytest.FixtureRequest, target: TargetModel) -> Any:
    torch.manual_seed(1)
    return SYSTEMS[request.param].from_target(target, num_heads=5).to(target.dtype).eval()


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("batch", [1, 3])
def test_any_choices_give_the_tokens_of_plain_decoding(target: TargetModel, draft: Any, batch: int) -> None:
    requests = requests_of(batch, SETTINGS[batch % 2 :], NEW)
    expected = tokens_of(run(Engine(target), requests))
    for seed in range(2):
        policy = ScriptedPolicy(random_choices(draft, TREES, seed, WITHOUT_DRAFT))
        engine = Engine(target, draft, limits=EngineLimits(prefill_chunk=3, new_tokens=1), policy=policy)
        assert tokens_of(run(engine, requests)) == expected
        found = {e.index: e.generation.tokens for e in engine.run(requests, max_sequences=2) if e.generation}
        assert [found[i] for i in range(batch)] == expected
        assert max(outcome.backlog for outcome in policy.outcomes) > 3, "no catching up in several parts"


def test_greedy_rows_of_drawn_trees_do_not_depend_on_the_choices(target: TargetModel, draft: Any) -> None:
    requests = requests_of(3, [SamplingParams()], NEW)
    policy = ScriptedPolicy(random_choices(draft, ("drawn:chain:4", "drawn:clover2", "chain:2"), 5))
    engine = Engine(target, draft, limits=EngineLimits(prefill_chunk=4), policy=policy)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))


class Committed:
    """Notes what every row of a draft's session takes in, until one is dropped and the last takes its place."""

    def __init__(self, draft: Any, monkeypatch: pytest.MonkeyPatch):
        self.taken: list[list[tuple[Tensor, int]]] = []
        self.widest = 0
        make = draft.new_session
        monkeypatch.setattr(draft, "new_session", lambda *sizes: self._watch(make(*sizes)))

    def _watch(self, session: Any) -> Any:
        commit, drop, self.taken = session.commit, session.drop, [[] for _ in session.lengths]
        dropped = []

        def noted(hidden: Tensor, next_tokens: Tensor, counts: list[int]) -> Tensor:
            self.widest = max(self.widest, hidden.shape[1])
            for row, count in enumerate(() if dropped else counts):
                self.taken[row] += [(hidden[row, i].clone(), int(next_tokens[row, i])) for i in range(count)]
            return commit(hidden, next_tokens, counts)

        def drop_noted(row: int) -> None:
            dropped.append(row)
            drop(row)

        session.commit, session.drop = noted, drop_noted
        return session


@pytest.mark.parametrize(("rows", "others"), [(3, (PLAIN_DRAFTER,)), (1, WITHOUT_DRAFT)])
def test_the_draft_takes_in_every_position_once_and_in_order(
    target: TargetModel,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    others: Sequence[Drafter],
) -> None:
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    requests = [Request((3, *range(5, 8 + 4 * i)), 30, eos=()) for i in reversed(range(rows))]
    policy = ScriptedPolicy(random_choices(draft, TREES, 3, others))
    seen = Committed(draft, monkeypatch)
    generations = run(Engine(target, draft, limits=EngineLimits(prefill_chunk=4), policy=policy), requests)
    for taken, request, generation in zip(seen.taken, requests, generations, strict=True):
        text = torch.tensor([[*request.prompt, *generation.tokens]])
        hidden = target.train_forward(text).hidden[0]
        assert len(taken) > len(request.prompt) + 10
        assert [token for _, token in taken] == text[0, 1 : len(taken) + 1].tolist()
        torch.testing.assert_close(torch.stack([own for own, _ in taken]), hidden[: len(taken)])
    assert seen.widest <= max(4, 1 + max(drafter.max_depth for drafter in policy.choices))


def test_a_long_plain_text_waits_for_the_draft_in_few_parts(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft then commits every position, as without plain steps before, and the outcome says how many."""
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    tree = parse_tree("chain:3").drafter(draft)
    requests = [Request((3, 4, 5), target.longest_run, eos=()), Request((6,), target.longest_run, eos=())]
    plain = target.longest_run - 12
    policy = ScriptedPolicy([*[PLAIN_DRAFTER] * plain, *[tree] * 99])
    scheduler = Engine(target, draft, policy=policy).open(2)
    for request in requests:
        scheduler.add(request)
    parts, add = list[int](), Batch.add_uncommitted
    monkeypatch.setattr(
        Batch,
        "add_uncommitted",
        lambda self, part: (add(self, part), parts.append(len(self.uncommitted))),
    )
    events = []
    while not scheduler.idle:
        events += scheduler.step()
    assert max(parts) <= 66 < plain
    assert policy.outcomes[plain].backlog == plain
    found = {event.index: event.generation.tokens for event in events if event.generation}
    assert [found[0], found[1]] == tokens_of(run(Engine(target), requests))


@pytest.mark.parametrize("longer", range(0, 12, 4))
def test_the_automatic_choice_survives_that_only_plain_requests_are_left(
    target: TargetModel, longer: int
) -> None:
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    requests = [Request((3, 4, 5), 30 + longer, eos=()), Request((6, 7), 60, eos=(), plain=True)]
    policy = MovedClock(draft)
    assert tokens_of(run(Engine(target, draft, policy=policy), requests)) == tokens_of(
        run(Engine(target), requests)
    )


def test_outcomes_say_what_happened(target: TargetModel) -> None:
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    tree = parse_tree("chain:3").drafter(draft)
    policy = ScriptedPolicy([tree, PLAIN_DRAFTER, PLAIN_DRAFTER, tree])
    requests = [Request((3, 4, 5), 20, eos=()), Request((6,), 9, eos=())]
    generations = run(Engine(target, draft, policy=policy), requests)
    assert policy.asked[0] == UpcomingStep(2) and policy.asked[0].room == target.longest_run - 2
    assert [outcome.nodes for outcome in policy.outcomes[:4]] == [4, 1, 1, 4]
    assert [outcome.backlog for outcome in policy.outcomes[:4]][1:3] == [0, 0]
    assert policy.outcomes[3].backlog > 0 == policy.outcomes[0].backlog
    sizes = [upcoming.batch_size for upcoming in policy.asked]
    assert [len(outcome.emitted) for outcome in policy.outcomes] == sizes
    assert len(policy.outcomes) == max(generation.acceptance.steps for generation in generations)
    assert sum(sum(outcome.emitted) for outcome in policy.outcomes) >= 29


class MovedClock(Policy):
    """An automatic policy that is told other times than the true ones: drafting is cheap and dear in turn."""

    def __init__(self, draft: Any, compiled: bool = False):
        self.inner = AutoTree().policy(draft, compiled=compiled)
        self.max_nodes, self.max_depth = self.inner.max_nodes, self.inner.max_depth
        self.drafters: list[Drafter] = []

    def choose(self, upcoming: UpcomingStep) -> Drafter:
        self.drafters.append(self.inner.choose(upcoming))
        return self.drafters[-1]

    def record(self, outcome: StepOutcome) -> None:
        cheap = len(self.drafters) // 20 % 2 == 0
        asked = not isinstance(self.drafters[-1], PlainDrafter | LookupDrafter)
        seconds = (0.5 if cheap else 9.0) if asked else 1.0
        self.inner.record(dataclasses.replace(outcome, seconds=seconds))


def test_the_automatic_choice_gives_the_tokens_of_plain_decoding(target: TargetModel, draft: Any) -> None:
    batch = 1 + 2 * (
        sorted(SYSTEMS).index(draft.config.model_type) // 2 % 2
    )  # of 1 and 3 rows, systems in turn
    requests = requests_of(batch, SETTINGS[batch % 2 :], 4 * NEW)
    policy = MovedClock(draft)
    engine = Engine(target, draft, policy=policy)
    assert tokens_of(run(engine, requests)) == tokens_of(run(Engine(target), requests))
    changes = sum(a is not b for a, b in zip(policy.drafters, policy.drafters[1:], strict=False))
    assert changes >= 2, "it never changed its mind"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch", [1, 3])
def test_looking_up_texts_that_go_in_circles_changes_no_token(dtype: torch.dtype, batch: int) -> None:
    target = TargetModel(tiny_model("llama", seed=4).to(dtype))
    draft = SYSTEMS["clover2"].from_target(target).to(dtype).eval()
    requests = requests_of(batch, [SamplingParams()], 6 * NEW)
    policy = MovedClock(draft)
    engine = Engine(target, draft, policy=policy)
    generations = run(engine, requests)
    assert tokens_of(generations) == tokens_of(run(Engine(target), requests))
    assert sum(isinstance(one, LookupDrafter) for one in policy.drafters) > 5
    assert max(generation.acceptance.tau for generation in generations) > 2


@pytest.mark.parametrize("batch", [1, 2])
def test_lookup_up_to_the_end_of_the_context(target: TargetModel, batch: int) -> None:
    draft = SYSTEMS["clover2"].from_target(target).to(target.dtype).eval()
    room = target.longest_run
    requests = [Request(tuple([5, 6, 7, 8] * (room // 4 - 12 - row)), room, eos=()) for row in range(batch)]
    policy = ScriptedPolicy([LookupDrafter(9)])
    found = run(Engine(target, draft, policy=policy), requests)
    assert tokens_of(found) == tokens_of(run(Engine(target), requests))
    assert {generation.finish_reason for generation in found} == {"context"}
    assert (policy.outcomes[0].nodes, policy.outcomes[-1].nodes) == (10, 1)


@pytest.mark.parametrize("tree", ["chain:3", "budget:4", "drawn:clover2", "lookup"])
def test_some_requests_of_a_batch_are_decoded_plainly(target: TargetModel, tree: str) -> None:
    """Their texts are the same, they have no trees, and policies learn nothing from them."""
    torch.manual_seed(1)
    draft = SYSTEMS["clover2"].from_target(target, num_heads=5).to(target.dtype).eval()
    drafter = LookupDrafter(3) if tree == "lookup" else parse_tree(tree).drafter(draft)
    policy = ScriptedPolicy([drafter])
    engine = Engine(target, draft, policy=policy, limits=EngineLimits(prefill_chunk=4))
    prompts = [(5, 6, 7, 8, 5, 6, 7, 8, 5, 6), (3, 4, 3, 4, 3, 4, 3, 4), (9,)]
    requests = [
        Request(prompt, 20, params, eos=(), plain=plain, show_trees=True)
        for prompt, params, plain in zip(prompts, SETTINGS, (True, False, True), strict=False)
    ]
    events = list(engine.run(requests))
    drafted = {event.index for event in events if event.drafted is not None and event.drafted.tokens}
    assert drafted == {1} and {len(one.emitted) for one in policy.outcomes} <= {0, 1}
    found = {event.index: event.generation for event in events if event.generation is not None}
    alone = run(engine, requests[1:2])
    assert found[1].tokens == alone[0].tokens
    plain = run(Engine(target), requests)
    assert [found[0].tokens, found[2].tokens] == [plain[0].tokens, plain[2].tokens]
    assert found[0].acceptance.drafted == found[2].acceptance.drafted == 0
