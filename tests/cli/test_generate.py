import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import clover
from clover.cli.generation import describe_generation
from clover.engine import Generation
from clover.metrics import Acceptance
from clover.target import HiddenStates, TargetModel
from tests.tiny import save_tiny_pair


@pytest.fixture
def generate(run_clover: Callable, tiny_target: Path) -> Callable:
    """Return a function that runs ``clover generate`` on the tiny target, without a draft."""
    return lambda *arguments: run_clover("generate", "--tree", "plain", "--target", tiny_target, *arguments)


@pytest.fixture
def expected(tiny_target: Path) -> Callable:
    """Return a function that says what the Python interface writes after a prompt."""
    model = clover.load(str(tiny_target), tree="plain")
    return lambda prompt, **options: model.generate(prompt, max_new_tokens=8, **options).text


def test_one_prompt_is_continued(generate: Callable, expected: Callable) -> None:
    code, out, err = generate("def area", "--max-new-tokens", 8)
    assert (code, out) == (0, expected("def area") + "\n")
    assert "8 tokens" in err
    assert "tokens/s" in err
    assert "stopped at --max-new-tokens" in err


def test_sampling_options_arrive(generate: Callable, expected: Callable) -> None:
    options: dict[str, Any] = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.001, "seed": 7}
    options["repetition_penalty"] = 1.2
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert generate("def", "--max-new-tokens", 8, *flags).out == expected("def", **options) + "\n"


def test_stop_text_ends_the_text(generate: Callable, expected: Callable) -> None:
    full = expected("def area")
    kept = full[: full.index(full[3])]
    code, out, err = generate("def area", "--max-new-tokens", 8, "--stop", full[3])
    assert (code, out) == (0, kept + "\n")
    assert "--max-new-tokens" not in err


def test_several_prompts_are_a_batch(generate: Callable, expected: Callable) -> None:
    code, out, err = generate("one", "two", "--max-new-tokens", 8)
    assert (code, out) == (0, f"[1] one\n{expected('one')}\n\n[2] two\n{expected('two')}\n\n")
    assert err.count("tokens/s") == 2


def test_json_has_a_line_per_prompt(generate: Callable, expected: Callable) -> None:
    code, out, err = generate("one", "two", "--max-new-tokens", 8, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row["text"] for row in rows] == [expected("one"), expected("two")]
    assert all(row["tau"] == 1.0 and row["finish_reason"] == "length" for row in rows)
    assert all(len(row["tokens"]) == 8 and row["prompt_tokens"] == 3 for row in rows)


def test_batch_size_bounds_what_runs_together(
    generate: Callable, expected: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, forward = [], TargetModel.forward

    def counting(self: TargetModel, tokens: Tensor, *others: Any) -> HiddenStates:
        sizes.append(len(tokens))
        return forward(self, tokens, *others)

    monkeypatch.setattr(TargetModel, "forward", counting)
    code, out, _ = generate("one", "two", "six", "--max-new-tokens", 8, "--batch-size", 2)
    assert (code, max(sizes)) == (0, 2)
    monkeypatch.undo()
    assert out == "".join(f"[{i}] {p}\n{expected(p)}\n\n" for i, p in enumerate(("one", "two", "six"), 1))


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("größe".encode(), "größe"),
        ("größe\n".encode(), "größe"),
        (b"\xef\xbb\xbf" + "größe\r\n".encode(), "größe"),
        ("größe\n\n".encode(), "größe\n"),
    ],
)
def test_prompt_comes_from_a_file(
    generate: Callable, expected: Callable, tmp_path: Path, content: bytes, prompt: str
) -> None:
    """Without the line break at its end."""
    (tmp_path / "prompt.txt").write_bytes(content)
    found = generate("--prompt-file", tmp_path / "prompt.txt", "--max-new-tokens", 8).out
    assert found == expected(prompt) + "\n"


def test_prompt_comes_from_standard_input(
    generate: Callable, expected: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("def area", "def area\n", "def area\r\n", "\ufeffdef area\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert generate("--max-new-tokens", 8).out == expected("def area") + "\n"


def test_file_that_is_not_text_is_named(generate: Callable, tmp_path: Path) -> None:
    (tmp_path / "prompt.bin").write_bytes(b"\xff\xfe")
    code, out, err = generate("--prompt-file", tmp_path / "prompt.bin")
    assert (code, out) == (2, "")
    assert "prompt.bin is not UTF-8 text" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "a prompt is missing or empty"),
        (["--prompt-file", "missing.txt"], "missing.txt: no such file"),
        (["x" * 300], "256"),
        (["x", "--top-p", "2"], "top_p"),
        (["x", "--temperature", "-1"], "temperature"),
        (["x", "--stop", ""], "stop"),
        (["x", "--dtype", "float12"], "float12"),
        (["x", "--device", "abacus"], "abacus"),
        (["x", "--batch-size", "0"], "batch-size"),
        (["x", "--tree", "oak"], "no tree 'oak'"),
        (["x", "--target", "missing/model"], "missing/model"),
    ],
)
def test_bad_input_is_one_line(generate: Callable, arguments: list[str], message: str) -> None:
    code, out, err = generate(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("clover: error: ")
    assert message in err


@pytest.mark.parametrize("method", ["auto", "own", "plain"])
def test_every_method_writes_the_same(run_clover: Callable, tmp_path: Path, method: str) -> None:
    target, draft = save_tiny_pair(tmp_path)
    expected = clover.load(str(target), tree="plain").generate("the cat", max_new_tokens=40, ignore_eos=False)
    models = ("--target", target, "--draft", draft)
    code, out, _ = run_clover(
        "generate", "the cat", *models, "--max-new-tokens", 40, "--json", "--tree", method
    )
    found = json.loads(out)
    assert (code, tuple(found["tokens"])) == (0, expected.tokens)
    assert (found["drafted"] == 0) == (method == "plain")


def test_target_without_draft_says_what_to_give(run_clover: Callable, tiny_target: Path) -> None:
    code, _, err = run_clover("generate", "x", "--target", tiny_target)
    assert code == 2
    assert "--tree plain" in err


def test_a_comparison_writes_the_text_again_without_drafting(run_clover: Callable, tmp_path: Path) -> None:
    target, draft = save_tiny_pair(tmp_path)
    models = ("--target", target, "--draft", draft, "--tree", "chain:2", "--max-new-tokens", 20)
    code, _, err = run_clover("generate", "the cat", *models, "--compare")
    drafted, plain = err.splitlines()
    assert code == 0 and "τ " in drafted and "tokens per step" in drafted
    assert plain.startswith("without drafting: ") and plain.endswith(" times as fast")
    code, _, err = run_clover("generate", "one", "two", *models, "--compare")
    assert code == 2 and "--compare needs one prompt" in err


def test_tau_is_that_of_the_steps_with_a_draft() -> None:
    acceptance = Acceptance()
    for count, depth in ((3, 4), (2, 4), (1, 0), (1, 0), (1, 0)):
        acceptance.record(count, depth)
    line = describe_generation(Generation("x", (1,) * 8, 3, 0, acceptance, "stop", 0.5, 2.0))
    assert line == "8 tokens · 4.0 tokens/s · drafted in 40% of the steps, τ 2.50 tokens per step there"


def test_a_terminal_shows_the_prompt_before_its_text(
    generate: Callable, expected: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert (
        generate("def area", "--max-new-tokens", 8).out == f"\033[2mdef area\033[0m{expected('def area')}\n"
    )
