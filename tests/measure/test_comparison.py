"""The same texts by every method, in turns; what is shown meanwhile; and what is left out when the time is up."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from rich.console import Console

from clover.engine import PhaseClock, Request
from clover.measure.budget import Budget
from clover.measure.comparison import Comparison, Setting, auto_words, shorten
from clover.measure.live import Panels
from clover.measure.methods import TRANSFORMERS, Method, make_method
from clover.measure.options import BenchOptions
from clover.measure.report.progress import Progress
from clover.measure.session import OWN, PLAIN, Session
from clover.measure.speed import Measured, TextDifference, find_differences
from clover.measure.timing import Run, make_batches
from clover.metrics import Acceptance
from clover.target import TargetModel
from tests.measure import hand

Make = Callable[..., Setting]
NAMES = [PLAIN, TRANSFORMERS, OWN]


@pytest.fixture
def make(session: Session) -> Make:
    methods = [make_method(name, session) for name in NAMES]

    def made(tokens: int = 6, temperature: float = 0.0) -> Setting:
        return Setting(methods, [shorten(one, tokens) for one in session.batches(1, temperature)], 3)

    return made


def run(texts: tuple[tuple[int, ...], ...], seconds: float = 1.0) -> Run:
    return Run(texts, seconds, Acceptance(histogram=[sum(map(len, texts))]), PhaseClock())


@dataclass(frozen=True)
class Scripted(Method):
    """A method that writes three tokens, and notes what it was asked to decode."""

    calls: list[str] = field(default_factory=list)

    def decode(self, batch) -> Run:
        self.calls.append(f"{self.name}{batch[0].prompt[0]}")
        return run(((1, 2), (3,)), 0.5)


def test_every_method_decodes_every_batch_in_every_round_and_is_first_in_turn() -> None:
    calls: list[str] = []
    way: object = None
    methods = [Scripted(name, way, calls) for name in "ab"]  # type: ignore[arg-type]
    setting = Setting(methods, make_batches([(5, 6), (8, 9), (10, 11)], 2, 0.0, 20, 100), 3)
    for _ in range(3):
        setting.take_turn()
    assert calls == ["a5", "b5", "b10", "a10", "a5", "b5"]
    assert {name: [len(rounds) for rounds in found] for name, found in setting.runs.items()} == {
        "a": [2, 1], "b": [2, 1],
    }  # fmt: skip
    assert setting.measured[0].speed == 6.0
    assert setting.measured[0].texts == [((1, 2), (1, 2)), ((3,), (3,)), ((1, 2),), ((3,),)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_slices_change_no_text(make: Make, temperature: float) -> None:
    setting, seen = make(12, temperature), list[list[int]]()
    setting.take_turn(
        lambda now: seen.append([len(one.pieces) for one in now.decodings.values()]), seconds=1e-9
    )
    assert seen[:4] == [[1], [1], [1, 1], [2, 1]]  # transformers' generate is second, and cannot be paused
    plain, theirs, own = setting.measured
    assert own.texts == plain.texts and (temperature or theirs.texts == plain.texts)
    whole = make(12, temperature)
    whole.take_turn()
    assert whole.measured[0].texts == plain.texts
    assert plain.first_round[0].tokens > 0 and plain.tau.value == 1.0


def test_speeds_in_one_line(make: Make) -> None:
    setting = make()
    setting.turns = 1
    for name, seconds in zip(NAMES, (2.0, 4.0, 1.0), strict=True):
        setting.runs[name] = [[run(((1, 2, 3, 4),), seconds)]]
    assert setting.words == (
        "greedy, 1 text, tokens/s: plain decoding 2.00, transformers' generate 1.00 (0.50×), "
        "own tree 4.00 (2.00×, τ 1.00)"
    )


def compared(
    session: Session, budget: Budget, rounds: int = 2, **more: object
) -> tuple[Comparison, list[str]]:
    """A comparison of two methods at two settings, and the lines that it logged."""
    errors = Console(file=io.StringIO(), width=200)
    methods = [make_method(name, session) for name in (PLAIN, OWN)]
    comparison = Comparison.prepare(session, methods, (1, 2), (0.0,), budget, shorten_texts=True)
    with Progress(errors) as progress:
        comparison.run(rounds, progress, **more)  # type: ignore[arg-type]
    assert isinstance(errors.file, io.StringIO)
    start, *lines = errors.file.getvalue().splitlines()
    assert start.startswith("measuring for ")
    return comparison, [line for line in lines if "tokens/s" in line]


def notes(comparison: Comparison) -> dict[str, str]:
    origin = comparison.session.provenance("bench", BenchOptions())
    return dict(comparison.report("title", origin, {"target": "t"}, comparison.metrics()).notes)


def test_all_settings_are_measured_together(session: Session) -> None:
    comparison, lines = compared(session, Budget(60.0))
    assert [one.turns for one in comparison.settings] == [6, 4]
    assert [line.split(",")[0] for line in lines] == ["greedy", "batch 2"] * 2 + ["greedy", "batch 2"]
    assert comparison.tokens == 8 and not {"ended", "shortened", "left out"} & notes(comparison).keys()
    assert comparison.differences == []


def test_the_first_prompt_is_measured_however_little_time_there_is(session: Session) -> None:
    comparison, lines = compared(session, Budget(0.0))
    assert [one.turns for one in comparison.settings] == [1, 0] and len(lines) == 1
    found = notes(comparison)
    assert found["ended"] == "after 1 of 10 batches, by --max-minutes 0"
    assert found["left out"] == "batch 2, greedy"


def test_an_interrupt_keeps_what_was_measured(session: Session) -> None:
    def interrupt(setting: Setting) -> None:
        if setting.turns == 1 and setting.finished:
            raise KeyboardInterrupt

    comparison, _ = compared(session, Budget(60.0), show=interrupt)
    assert [one.turns for one in comparison.settings] == [1, 1]
    assert notes(comparison)["ended"] == "after 2 of 10 batches, by Ctrl-C"


def test_a_difference_is_located_and_weighed(session: Session) -> None:
    target, requests = session.target, session.requests()[:2]
    decoded = make_method(PLAIN, session)
    plain = Measured(decoded, [[decoded.decode([one])] for one in requests], 2)
    text = plain.texts[1][0]
    other = (*text[:3], (text[3] + 1) % target.vocab_size, *text[4:])

    def found(*texts: tuple[int, ...]) -> list[TextDifference]:
        batches = [plain.batches[0], [run((one,)) for one in texts]]
        drafted = Measured(Method("recall", session.engine(OWN)), batches, 2)
        return list(find_differences(target, requests, [plain, drafted]))

    assert found(text) == []
    (one,) = found(text, other, other)
    assert (
        one.words.startswith("recall, prompt 2, at new token 4: the two tokens' logits are ") and one.defect
    )
    (one,) = found(text[:4])
    assert "at new token 5: one text ends; a defect" in one.words and one.defect


def test_rounding_explains_differences_of_narrow_dtypes(session: Session) -> None:
    request, plain = (
        Request((5, 6, 7), 4),
        Measured(make_method(PLAIN, session), [[run(((9, 9, 9, 9),))]] * 2),
    )
    other = replace(plain, batches=[[run(((1, 2, 3, 4),))]] * 2)
    assert len(list(find_differences(session.target, [request] * 2, [plain, other]))) == 2
    coarse = TargetModel(session.target.model)
    try:
        coarse.model.to(torch.bfloat16)
        found = list(find_differences(coarse, [request] * 2, [plain, other]))
        assert [one.defect for one in found] == [False]  # the first is enough
    finally:
        coarse.model.to(torch.float32)


def test_what_does_not_fit_is_counted(session: Session) -> None:
    comparison, _ = compared(replace(session, left_out=2), Budget(0.0))
    origin = session.provenance("bench", BenchOptions())
    facts = dict(comparison.report("title", origin, {"target": "t"}, comparison.metrics()).facts)
    assert facts["run"].startswith(
        "1 prompt (2 more do not fit into the context), 8 new tokens each at most, 1 round"
    )


@pytest.mark.parametrize(("drafted", "advice"), [(0, "; run clover tune"), (150, "")])
def test_auto_that_seldom_drafts_is_advised(drafted: int, advice: str) -> None:
    auto = Acceptance(histogram=[192], attempts=[drafted], drafted=drafted)
    assert (
        auto_words(auto, hand.found([(1, 0.0)], ["chain:3", "auto"]))
        == f"drafted in {drafted} of 192 steps{advice}"
    )


def screen(width: int, height: int, terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None,
        legacy_windows=False, _environ={"TERM": "xterm"},
    )  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(75, 20), (80, 24), (160, 50)])
def test_panels_fit_the_screen(make: Make, session: Session, width: int, height: int) -> None:
    console, setting = screen(width, height), make()
    panels = Panels(console, session.target.tokenizer)
    assert panels.fits and not Panels(screen(width, height, False), None).fits
    setting.take_turn()
    (request,) = setting.batch
    setting.batches = [setting.batches[0], [replace(request, prompt=request.prompt * 30)]]
    shown = console.render_lines(panels.render(setting), pad=False)
    text = ["".join(segment.text for segment in line) for line in shown]
    assert len(text) < height and all(len(line) <= width for line in text)
    whole = "\n".join(text)
    for words in ("prompt 2 of 2", "plain decoding", "transformers' gen", "1 prompt so far", "tokens/s  τ"):
        assert words in whole


def test_panels_show_no_control_characters_and_leave_the_screen_clean(make: Make, session: Session) -> None:
    console, setting = screen(80, 24), make()
    setting.take_turn()
    setting.decodings[PLAIN].pieces[:] = ["a\x1b[2Jb", "\r\x07c"]
    with Panels(console, session.target.tokenizer) as panels:
        panels.show(setting)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "a�[2Jb��c" in written and "\x1b[2J" not in written and "\x07" not in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor: off, and on again
