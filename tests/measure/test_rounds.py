"""The same text by every method, in turns, and time that is the engine's alone."""

import io
from collections.abc import Callable

import pytest
import torch
from rich.console import Console

from clover.engine import PhaseClock, Request
from clover.measure.bench import TRANSFORMERS, make_method
from clover.measure.live import Panels, describe
from clover.measure.rounds import Round, decode_round, find_differences, totals
from clover.measure.session import OWN, PLAIN, Session
from clover.measure.speed import Method
from clover.measure.timing import Run
from clover.metrics import Acceptance
from clover.sampling import SamplingParams
from clover.target import TargetModel

Make = Callable[..., Round]


def unseen(current: Round) -> None:
    """Show nothing."""


@pytest.fixture
def target(session: Session) -> TargetModel:
    return session.target


@pytest.fixture(scope="module")
def methods(session: Session) -> list[Method]:
    theirs = [make_method(name, session) for name in (PLAIN, TRANSFORMERS)]
    return [*theirs, Method.of_engine("recall", session.engine(OWN))]


@pytest.fixture
def make(target: TargetModel, methods: list[Method]) -> Make:
    def made(number: int = 0, tokens: int = 12, temperature: float = 0.0) -> Round:
        assert target.tokenizer is not None
        prompt = tuple(target.tokenizer("def f(x):")["input_ids"])
        request = Request(prompt, tokens, SamplingParams(temperature=temperature, seed=number))
        return Round(number, "def f(x):", request, methods)

    return made


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_method_of_ours_writes_the_same(make: Make, temperature: float) -> None:
    done = decode_round(make(temperature=temperature), unseen)
    assert set(done.runs) == {PLAIN, TRANSFORMERS, "recall"}
    assert done.runs["recall"].texts == done.runs[PLAIN].texts
    assert temperature or done.runs[TRANSFORMERS].texts == done.runs[PLAIN].texts
    assert 0 < done.runs[PLAIN].tokens <= 12 and done.runs[PLAIN].acceptance.tau == 1.0


def test_methods_take_turns_and_are_shown_between_them(make: Make) -> None:
    for number, expected in ((0, [[1, 0], [1, 1], [2, 1], [2, 2]]), (2, [[1, 0], [1, 1], [2, 1], [2, 2]])):
        seen: list[list[int]] = []
        counts = lambda done, seen=seen: seen.append([len(d.pieces) for d in done.decodings.values()])  # noqa: E731
        decode_round(make(number, 4), counts, turn_seconds=1e-9)
        assert seen[:4] == expected


def test_generate_comes_first_on_every_other_prompt(make: Make) -> None:
    for number, first in ((0, PLAIN), (1, TRANSFORMERS)):
        shown: list[list[str]] = []
        decode_round(make(number, 2), lambda r, shown=shown: shown.append(list(r.runs)), float("inf"))
        assert next(names for names in shown if names)[0] == first


def test_totals_are_against_plain_decoding(make: Make) -> None:
    done = make()
    for name, seconds in ((PLAIN, 2.0), (TRANSFORMERS, 4.0), ("recall", 1.0)):
        done.runs[name] = Run(((1, 2, 3, 4),), seconds, *_acceptance())
    assert totals([done, done]) == {PLAIN: (2.0, 1.0), TRANSFORMERS: (1.0, 0.5), "recall": (4.0, 2.0)}
    assert totals([]) == {}


def _acceptance() -> tuple[Acceptance, PhaseClock]:
    return Acceptance(histogram=[4]), PhaseClock()


def test_a_difference_is_located_and_weighed(make: Make, target: TargetModel) -> None:
    done = decode_round(make(1, 6), unseen)
    assert list(find_differences(target, [done])) == []
    plain = done.runs[PLAIN].texts[0]
    other = (*plain[:3], (plain[3] + 1) % target.vocab_size, *plain[4:])
    done.runs["recall"] = Run((other,), 1.0, *_acceptance())
    (found,) = find_differences(target, [done])
    assert (found.method, found.prompt, found.position, found.defect) == ("recall", 2, 4, True)
    assert found.gap is not None and found.gap > 1e-3
    done.runs["recall"] = Run((plain[:4],), 1.0, *_acceptance())
    (found,) = find_differences(target, [done])
    assert (found.position, found.gap, found.defect) == (5, None, True)


def test_rounding_explains_differences_of_narrow_dtypes(make: Make, target: TargetModel) -> None:
    done = decode_round(make(0, 4), unseen)
    done.runs["recall"] = Run(((1, 2, 3, 4),), 1.0, *_acceptance())
    coarse = TargetModel(target.model)
    try:
        coarse.model.to(torch.bfloat16)
        assert [one.defect for one in find_differences(coarse, [done])] == [False]
    finally:
        coarse.model.to(torch.float32)


def screen(width: int, height: int, terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None,
        legacy_windows=False, _environ={"TERM": "xterm"},
    )  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(75, 20), (80, 24), (160, 50)])
def test_panels_fit_the_screen(make: Make, target: TargetModel, width: int, height: int) -> None:
    console = screen(width, height)
    panels = Panels(console, target.tokenizer, 3)
    assert panels.fits and not Panels(screen(width, height, False), None, 3).fits
    done = decode_round(make(0, 100), unseen)
    done.prompt = "def f(x):\n\treturn x\n" * 30
    panels.rounds = [done]
    shown = console.render_lines(panels.render(done), pad=False)
    text = ["".join(segment.text for segment in line) for line in shown]
    assert len(text) < height and all(len(line) <= width for line in text)
    whole = "\n".join(text)
    for words in (
        "prompt 1 of 3",
        "plain decoding",
        "transformers' gen",
        "1 prompt so far",
        "tokens/s  τ",
    ):
        assert words in whole


def test_panels_show_no_control_characters_and_leave_the_screen_clean(
    make: Make, target: TargetModel
) -> None:
    console = screen(80, 24)
    done = decode_round(make(0, 4), unseen)
    done.decodings[PLAIN].pieces[:] = ["a\x1b[2Jb", "\r\x07c"]
    with Panels(console, target.tokenizer, 1) as panels:
        panels.show(done)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "a�[2Jb��c" in written and "\x1b[2J" not in written and "\x07" not in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor: off, and on again


def test_a_round_in_one_line(make: Make) -> None:
    done = decode_round(make(1, 4), unseen)
    assert describe(done).startswith("prompt 2, greedy, tokens/s: plain decoding ")
    done.runs["recall"] = Run(((1, 2, 3, 4),), 1.0, *_acceptance())
    assert describe(done).endswith(", NOT identical)")
