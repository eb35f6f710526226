"""What is measured: the same text by every method, and time that is the engine's alone."""

import time
from types import SimpleNamespace

import pytest

from clover.api import Clover
from clover.demo import measure
from clover.demo.measure import PLAIN, TRANSFORMERS, Bench, Decoding, Round, run_transformers
from clover.engine import Engine, Request
from clover.errors import UserError
from clover.sampling import SamplingParams


def request(model: Clover, text: str = "def f(x):", tokens: int = 12, **params: float) -> Request:
    return Request(tuple(model.encode(text)), tokens, SamplingParams(**params))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_method_writes_the_same(bench: Bench, temperature: float) -> None:
    done = bench.round(1, temperature, 16)
    expected = [PLAIN, "clover2"] if temperature else [TRANSFORMERS, PLAIN, "clover2"]
    assert list(done.runs) == expected
    assert len({run.tokens for run in done.runs.values()}) == 1
    assert len(done.runs[PLAIN].tokens) == 16
    assert done.verify_clock is done.runs["clover2"].clock
    assert done.runs[PLAIN].acceptance.tau == 1.0


def test_prompts_are_sampled_with_seeds_of_their_own(bench: Bench) -> None:
    seeds = {bench.round(number, 0.8, 1).request.params.seed for number in range(3)}
    assert len(seeds) == 3


def test_time_passes_only_inside_the_engine(model: Clover) -> None:
    decoding = Decoding(Engine(model.target), request(model))
    started = time.perf_counter()
    assert decoding.advance(0.0)
    while decoding.advance(1e-9):
        time.sleep(0.05)
    assert decoding.run is not None
    assert decoding.steps == len(decoding.run.tokens) > 3
    assert 0 < decoding.run.seconds < time.perf_counter() - started - 0.05 * (decoding.steps - 2)
    assert decoding.run.seconds == pytest.approx(decoding.seconds)


def test_methods_take_turns_and_are_shown_between_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TURN_SECONDS", 1e-9)
    seen = []

    def show(current: Round) -> None:
        seen.append([decoding.steps for decoding in current.decodings.values()])

    bench.round(0, 0.0, 4, show)
    assert seen[:4] == [[1, 0], [1, 1], [2, 1], [2, 2]]
    seen.clear()
    bench.round(2, 0.0, 4, show)
    assert seen[:2] == [[0, 1], [1, 1]]


@pytest.mark.parametrize(("number", "generate_at"), [(0, -1), (1, 0), (2, -1)])
def test_generate_comes_first_on_every_other_prompt(bench: Bench, number: int, generate_at: int) -> None:
    generating = []

    def show(current: Round) -> None:
        generating.append(current.generating)

    bench.round(number, 0.0, 2, show)
    assert generating.count(True) == 1
    assert generating[generate_at]


def test_generate_ignores_the_models_own_generation_settings(
    model: Clover, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request(model)
    plain = Decoding(Engine(model.target), wanted)
    plain.advance()
    own = model.target.model.generation_config
    for name, value in {"repetition_penalty": 5.0, "do_sample": True, "no_repeat_ngram_size": 1}.items():
        monkeypatch.setattr(own, name, value)
    assert plain.run is not None
    assert run_transformers(model.target, wanted).tokens == plain.run.tokens


def test_all_stop_at_the_end_of_the_text(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    free = bench.round(0, 0.0, 12).runs[PLAIN].tokens
    monkeypatch.setattr(bench.target.model.generation_config, "eos_token_id", free[5])
    end = free.index(free[5]) + 1
    assert {run.tokens for run in bench.round(0, 0.0, 12).runs.values()} == {free[:end]}


def test_a_text_ends_with_the_context(model: Clover) -> None:
    bench = Bench(model, ["x" * 120], temperature=0.0)
    assert {len(run.tokens) for run in bench.round(0, 0.0, 50).runs.values()} == {8}


@pytest.mark.parametrize(("text", "found"), [("x" * 128, "has 128 tokens"), ("", "has 0 tokens")])
def test_prompts_must_fit(model: Clover, text: str, found: str) -> None:
    with pytest.raises(UserError, match=f"prompt 2 {found}; the target takes 1 to 127"):
        Bench(model, ["fine", text], temperature=0.0)


def test_a_device_that_queues_work_gets_a_clock_that_waits(bench: Bench) -> None:
    done = bench.round(0, 0.0, 4)
    bench.target = SimpleNamespace(device=SimpleNamespace(type="cuda"))  # type: ignore[assignment]
    clock = bench._verify_clock(done)
    assert clock is not done.runs["clover2"].clock
    assert clock.steps == done.decodings["clover2"].steps


def test_warm_up_gives_a_cost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < bench.seconds_per_token() < 10
    monkeypatch.setattr(measure, "_WARM_UP_SECONDS", 0.0)
    tried = []
    real = bench.round
    monkeypatch.setattr(bench, "round", lambda *a: tried.append(a[2]) or real(*a))
    bench.seconds_per_token()
    assert set(tried) == {4}
