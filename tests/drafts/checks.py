"""What every draft system has to satisfy, given a slow reference of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clover.drafts import DraftModel, load_draft
from clover.target import TargetModel
from clover.target.structure import find_layers
from tests.families import VOCAB, captured_input, tiny_model

T = 9
AnyDraft = TypeVar("AnyDraft", bound=DraftModel)
# (target, draft, hidden states of positions 0 … t [t + 1, W], tokens 0 … t + 1, drafted tokens after them)
# -> logits [V] of the first depth, the second, …, one more than there are drafted tokens
Reference = Callable[[TargetModel, Any, Tensor, list[int], list[int]], list[Tensor]]


def make(
    system: type[AnyDraft], family: str = "llama", disturb: float = 0.2, **options: object
) -> tuple[TargetModel, AnyDraft]:
    """A tiny target and a draft in float64 whose weights are all away from their starting values."""
    target = TargetModel(tiny_model(family))
    torch.manual_seed(3)
    draft = system.from_target(target, **options).to(target.dtype).eval()
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn_like(weight), alpha=disturb)
    return target, draft


def texts(target: TargetModel, draft: DraftModel, rows: int = 2, length: int = T) -> tuple[Tensor, Tensor]:
    """Random tokens Long [rows, length] and the hidden states that the draft reads there."""
    tokens = torch.randint(VOCAB, (rows, length))
    return tokens, target.train_forward(tokens, draft.config.hidden_state).draft_hidden_states


@torch.no_grad()
def check_training(target: TargetModel, draft: DraftModel, reference: Reference) -> None:
    """`forward` and `train_logits` give what the reference gives when it is forced with the text."""
    tokens, hidden = texts(target, draft)
    logits = draft.train_logits(draft(hidden, tokens).movedim(0, -2))
    depths = draft.trained_depths
    for row, at in ((0, 0), (0, 3), (1, 2)):
        text = tokens[row].tolist()
        expected = reference(
            target, draft, hidden[row, : at + 1], text[: at + 2], text[at + 2 : at + 1 + depths]
        )
        assert len(expected) == depths
        torch.testing.assert_close(logits[row, at], torch.stack(expected))


@torch.no_grad()
def check_session(target: TargetModel, drafts: Sequence[DraftModel], reference: Reference) -> None:
    """Ragged commits and a tree whose rows differ, twice over, give what the reference gives for every path.

    The drafts are one draft in several forms: the reference, which is slow, is asked once, of the first.
    """
    tokens, hidden = texts(target, drafts[0])
    sessions = [draft.new_session(2, capacity=1) for draft in drafts]
    given = (target, drafts[0], reference, sessions, tokens, hidden)
    for session in sessions:
        session.commit(hidden[:, :3], tokens[:, 1:4], [3, 2])
    check_tree(*given, [3, 2], [1, 3])
    assert all(session.lengths == [4, 5] for session in sessions)
    check_tree(*given, [4, 5], [2, 1])
    for session in sessions:
        session.crop([2, 5])
    check_tree(*given, [2, 5], [2, 2])


def check_tree(
    target: TargetModel,
    draft: DraftModel,
    reference: Reference,
    sessions: Sequence[Any],
    tokens: Tensor,
    hidden: Tensor,
    done: list[int],
    counts: list[int],
) -> None:
    """Commit `counts` positions after `done`, then go down three depths."""
    width = max(counts)
    committed = (
        torch.stack([hidden[row, at : at + width] for row, at in enumerate(done)]),
        torch.stack([tokens[row, at + 1 : at + 1 + width] for row, at in enumerate(done)]),
        counts,
    )
    branches, deeper = torch.tensor([[4, 9], [11, 2]]), torch.tensor([[6, 7, 8], [3, 1, 5]])
    roots, parents = torch.zeros(2, 2, dtype=torch.long), torch.tensor([[1, 0, 1], [0, 0, 1]])
    found = [
        (session.commit(*committed), session.advance(roots, branches), session.advance(parents, deeper))
        for session in sessions
    ]
    for row, end in enumerate(map(sum, zip(done, counts))):
        text = tokens[row, : end + 1].tolist()
        for node, parent in enumerate(parents[row].tolist()):
            drafted = [int(branches[row, parent]), int(deeper[row, node])]
            expected = reference(target, draft, hidden[row, :end], text, drafted)
            for first, second, third in found:
                torch.testing.assert_close(first[row], expected[0])
                torch.testing.assert_close(second[row, parent], expected[1])
                torch.testing.assert_close(third[row, node], expected[2])


@torch.no_grad()
def check_drop(target: TargetModel, draft: DraftModel) -> None:
    """Rows that are left after others were dropped and cropped go on as if alone."""
    tokens, hidden = texts(target, draft, rows=3)
    session = draft.new_session(3, capacity=4)
    session.commit(hidden[:, :5], tokens[:, 1:6], [5, 5, 5])
    session.drop(0)
    session.crop([3, 4])
    more = torch.stack((hidden[2, 3:5], hidden[1, 4:6]))
    found = session.commit(more, torch.stack((tokens[2, 4:6], tokens[1, 5:7])), [2, 2])
    assert session.lengths == [5, 6]
    for row, (text, end) in enumerate(((2, 5), (1, 6))):
        alone = draft.new_session(1, capacity=9)
        expected = alone.commit(hidden[text : text + 1, :end], tokens[text : text + 1, 1 : end + 1], [end])
        torch.testing.assert_close(found[row], expected[0])


def check_round_trip(target: TargetModel, draft: DraftModel, directory: Path) -> None:
    """Saved and loaded, the draft is the same, in class, configuration and weights."""
    draft.save_pretrained(directory)
    loaded = load_draft(directory, target)
    assert type(loaded) is type(draft)
    assert loaded.state_dict().keys() == draft.state_dict().keys()
    for name, value in draft.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    tokens, hidden = texts(target, draft)
    torch.testing.assert_close(loaded(hidden, tokens), draft(hidden, tokens))


def check_gradients(target: TargetModel, draft: DraftModel) -> None:
    """Every weight that is trained has something to learn from."""
    tokens, hidden = texts(target, draft)
    logits = draft.train_logits(draft(hidden, tokens).movedim(0, -2))
    logits.logsumexp(-1).sum().backward()
    idle = [name for name, weight in draft.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not idle
    assert all(weight.requires_grad for weight in draft.parameters())


@torch.no_grad()
def last_layer(
    target: TargetModel, weights: dict[str, Tensor], hidden: Tensor, silent: str | None = None
) -> Tensor:
    """States [T, H] that the target's own last layer, given other weights, makes of states [T, H].

    Args:
        silent: name of the linear layer whose output is held at zero.
    """
    names = {module: name for name, module in target.base.named_modules()}
    model = copy.deepcopy(target.model)
    layer = find_layers(model.base_model, target.num_layers, target.name)[-1]
    layer.load_state_dict(weights, strict=False)
    if silent:
        for weight in layer.get_submodule(silent).parameters():
            nn.init.zeros_(weight)
    layer.register_forward_pre_hook(lambda _, args: (hidden[None], *args[1:]))
    with captured_input(model.base_model.get_submodule(names[target.final_norm])) as outputs:
        model(input_ids=torch.zeros(1, len(hidden), dtype=torch.long), use_cache=False)
    return outputs[0][0]


def silu(values: Tensor) -> Tensor:
    return values / (1 + torch.exp(-values))


def norm(values: Tensor, weight: Tensor) -> Tensor:
    return values / (values.square().mean() + 1e-6).sqrt() * weight
