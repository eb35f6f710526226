"""int8 targets: the bits of a token depend on the text before it and on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from clover.cache import WholeCache
from clover.cpu import int8
from clover.cpu.attention import group_queries
from clover.cpu.elementwise import Alike, is_alike
from clover.target import TargetModel
from clover.target.session import CachedSession
from clover.tree import TokenTree
from tests.families import EVERY_FAMILY, PARENTS, VOCAB, tiny_config, tiny_model

pytestmark = pytest.mark.skipif(not int8.sums_are_exact(), reason="no exact products of int8 here")
PATH = (0, 2, 5, 6)  # through PARENTS
LENGTHS = (17, 4, 21)
MORE = 9  # tokens after the path


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["int8", "bfloat16", "float32"])
def target(family: str, request: pytest.FixtureRequest) -> TargetModel:
    """With int8 weights, and exact in two dtypes."""
    weights = request.param if request.param == "int8" else None
    model = tiny_model(family, torch.float32 if request.param == "float32" else torch.bfloat16)
    target = TargetModel(model, weights=weights, exact=weights is None)
    assert target.exact and not target.inexact
    return target


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(VOCAB, (length + len(PATH) + MORE,), generator=generator).tolist() for length in LENGTHS
    ]


def bits(target: TargetModel, session: CachedSession, tokens: Tensor | TokenTree) -> Tensor:
    """Logits and hidden states before the final norm, [B, N, V + H]."""
    output = session.run(tokens, "pre_norm")
    assert output.logits is not None
    return torch.cat([output.logits, output.draft_hidden_states], dim=-1)


def in_chunks(target: TargetModel, text: list[int], sizes: Iterator[int]) -> Tensor:
    """A text alone, some tokens at a time: [T, V + H]."""
    session, found, start = target.open(1, 1), [], 0
    while start < len(text):
        tokens = torch.tensor([text[start : start + next(sizes)]])
        found.append(bits(target, session, tokens)[0])
        session.commit([tokens.shape[1]])
        start += tokens.shape[1]
    return torch.cat(found)


def always(*sizes: int) -> Iterator[int]:
    while True:
        yield from sizes


@pytest.mark.usefixtures("target")
@torch.no_grad()
def test_chunks_of_a_prompt(target: TargetModel) -> None:
    for text in texts():
        plain = in_chunks(target, text, always(1))
        for sizes in ((len(text),), (2,), (5, 1, 7), (11,)):
            assert torch.equal(in_chunks(target, text, always(*sizes)), plain), sizes
        whole = target.train_forward(torch.tensor([text]), "pre_norm").draft_hidden_states[0]
        assert torch.equal(whole, plain[:, target.vocab_size :])


@torch.no_grad()
def test_trees_batches_lengths_and_moved_entries(target: TargetModel) -> None:
    plain = [in_chunks(target, text, always(1)) for text in texts()]
    session = target.open(len(LENGTHS), 1)
    prompts = nn.utils.rnn.pad_sequence(
        [torch.tensor(text[:length]) for text, length in zip(texts(), LENGTHS, strict=True)], batch_first=True
    )
    found = bits(target, session, prompts)
    session.commit(LENGTHS)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(found[row, :length], plain[row][:length])
    nodes = torch.randint(VOCAB, (len(LENGTHS), len(PARENTS)))
    for row, length in enumerate(LENGTHS):
        nodes[row, list(PATH)] = torch.tensor(texts()[row][length : length + len(PATH)])
    tree = TokenTree.from_parents(nodes, torch.tensor([PARENTS] * len(LENGTHS)))
    found = bits(target, session, tree)
    session.keep(torch.tensor([PATH] * len(LENGTHS)), [4, 2, 3])
    for row, length in enumerate(LENGTHS):
        assert torch.equal(found[row, list(PATH)], plain[row][length : length + len(PATH)])
    places = [length + kept for length, kept in zip(LENGTHS, (4, 2, 3), strict=True)]
    for step in range(MORE):
        token = torch.tensor([[text[place + step]] for text, place in zip(texts(), places, strict=True)])
        found = bits(target, session, TokenTree.root_only(token))
        session.keep(torch.zeros(len(LENGTHS), 1, dtype=torch.long), [1] * len(LENGTHS))
        for row, place in enumerate(places):
            assert torch.equal(found[row, 0], plain[row][place + step])


@torch.no_grad()
def test_reused_prefixes_and_rows_that_leave(target: TargetModel) -> None:
    first, _, last = texts()
    plain = in_chunks(target, first, always(1))
    session = target.open(2, 1)
    session.run(torch.tensor([last[:14], first[:14]]))
    session.commit([14, 14])
    kept = session.copy_row(1, 9)
    session.drop(0)
    again = target.open(2, 1)
    again.fill_row(1, kept, 9)
    again.insert(session)
    found = bits(target, again, torch.tensor([last[:8], first[9:17], first[14:22]]))
    assert torch.equal(found[1], plain[9:17]) and torch.equal(found[2], plain[14:22])


@pytest.mark.parametrize("weights", ["int8", None])
@torch.no_grad()
def test_more_keys_than_one_exact_sum_has(weights: str | None) -> None:
    """More than 1,024 keys are added in two blocks. Small scores give all of them nearly the same weight."""
    config = tiny_config("llama")
    config.max_position_embeddings = 2048
    model = tiny_model("llama", torch.bfloat16, config=config)
    for name, weight in model.named_parameters():
        if "q_proj" in name:
            weight.mul_(0.02)
    target = TargetModel(model, weights=weights, exact=weights is None)
    text = torch.randint(VOCAB, (1360,), generator=torch.Generator().manual_seed(3)).tolist()
    plain = in_chunks(target, text, chain([1310], always(1)))
    for sizes in ((1360,), (300, 37), (1023, 1)):
        assert torch.equal(in_chunks(target, text, always(*sizes))[1310:], plain[1310:]), sizes
    session, start = target.open(1, 1), 1340
    session.run(torch.tensor([text[:start]]))
    session.commit([start])
    nodes = torch.randint(VOCAB, (1, len(PARENTS)))
    nodes[0, list(PATH)] = torch.tensor(text[start : start + len(PATH)])
    found = bits(target, session, TokenTree.from_parents(nodes, torch.tensor([PARENTS])))
    assert torch.equal(found[0, list(PATH)], plain[start : start + len(PATH)])
    session.keep(torch.tensor([PATH]), [len(PATH)])
    more = torch.tensor([text[start + len(PATH) :]])
    assert torch.equal(bits(target, session, more)[0], plain[start + len(PATH) :])


def test_floating_attention_does_depend_on_more() -> None:
    """The tests above can fail."""
    target = TargetModel(tiny_model("llama", torch.float32), weights="int8")
    target.exact = False
    group_queries(target.running)
    text = texts()[0]
    with torch.no_grad():
        plain, whole = (in_chunks(target, text, always(size)) for size in (1, len(text)))
    assert not torch.equal(plain, whole) and torch.allclose(plain, whole, atol=0.5)


def test_what_is_not_exact_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uneven(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * (1 + inputs.shape[1] / 100)

    model = tiny_model("llama", torch.bfloat16)
    model.get_submodule("model.layers.1.mlp").act_fn = Uneven()
    monkeypatch.setattr("clover.target.probe._close", lambda *_: True)
    with pytest.warns(UserWarning, match="not bit-exact: layer 1 rounds"):
        target = TargetModel(model, weights="int8")
    assert not target.exact and target.inexact == "layer 1 rounds differently with another number of tokens"
    assert type(target.new_cache(1, 1)) is not WholeCache
    assert TargetModel(tiny_model("llama", torch.bfloat16)).inexact == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_activations_are_alike(dtype: torch.dtype) -> None:
    assert not is_alike(lambda numbers: numbers + len(numbers) % 2, dtype)
    target = TargetModel(tiny_model("gpt_neox", dtype), weights="int8")
    function = target.layers[0].get_submodule("mlp.act")
    numbers = (torch.randn(40, 1001) * 4).to(dtype)
    with torch.no_grad():
        whole = function(numbers)
        assert torch.equal(torch.cat([function(row) for row in numbers.split(3)]), whole)
        assert torch.equal(function(numbers.repeat(1, 2)[:, 500:1501]), whole.roll(-500, 1))
        torch.testing.assert_close(whole, nn.functional.gelu(numbers), atol=0.02, rtol=0.02)
    assert isinstance(function, Alike) or is_alike(function, dtype)


BITS = """
import hashlib, torch
from clover.target import TargetModel
from tests.families import VOCAB, tiny_model
target = TargetModel(tiny_model("llama", torch.bfloat16), weights="int8")
tokens = torch.arange(40)[None] * 7 % VOCAB
with torch.no_grad():
    hidden = target.train_forward(tokens).hidden
print(target.exact, hashlib.sha256(hidden.view(torch.uint8).numpy().tobytes()).hexdigest())
"""


@pytest.mark.long
def test_processors_with_other_instructions_for_int8_give_the_same_bits() -> None:
    def run(instructions: str) -> str:
        environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
        command = [sys.executable, "-c", BITS]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    expected = run("ALL")
    assert expected.startswith("True ")
    for instructions in ("AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"):
        assert run(instructions) == expected, instructions
