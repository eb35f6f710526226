"""What a draft on vLLM refuses, and how it tells the passes apart; the exported file in the speculators library."""

from types import SimpleNamespace
from typing import Literal

import pytest

from clover.integrations.export import export
from clover.integrations.vllm import base, register
from clover.integrations.vllm.names import MADE_FOR, TESTED
from clover.integrations.vllm.recall import check_backend, padded_width
from tests.integrations.vllm.engine import SYSTEMS, serve


@pytest.fixture
def passes(monkeypatch):
    made, context = base.Passes(4), SimpleNamespace(attn_metadata=None)
    made.own_layers = frozenset({"clover.layers.0.attn"})
    monkeypatch.setattr(base, "get_forward_context", lambda: context)

    def is_first(*names: str) -> bool:
        context.attn_metadata = dict.fromkeys(names) or None
        return made.is_first()

    return made, is_first


OWN, TARGETS = "clover.layers.0.attn", "model.layers.0.self_attn.attn"


def test_model_runner_v1_announces_the_passes(passes):
    made, is_first = passes
    made.set_skip_topk(False)
    assert is_first(OWN)
    made.set_skip_topk(True)
    assert not is_first(OWN)
    assert is_first()  # without text, as when memory is measured


def test_model_runner_v2_names_the_targets_layers_in_pass_0(passes):
    _, is_first = passes
    assert is_first(OWN, TARGETS)
    assert not is_first(OWN)


def test_a_version_that_tells_neither_is_refused(passes):
    _, is_first = passes
    with pytest.raises(RuntimeError, match="does not tell a draft which pass it runs"):
        is_first(OWN)


def test_a_backend_without_room_for_recalls_heads_is_refused():
    check_backend("FLASH_ATTN", 128, 64)
    check_backend("TRITON_ATTN", 128, 96)
    with pytest.raises(ValueError, match="TRITON_ATTN has no room for Clover-Recall's heads of 128 numbers"):
        check_backend("TRITON_ATTN", 128, 64)


@pytest.mark.parametrize(
    ("width", "padded"), [(8, 64), (43, 64), (44, 128), (64, 128), (107, 128), (128, 256)]
)
def test_a_padded_head_holds_its_own_numbers_a_mark_and_a_position(width, padded):
    assert padded_width(width) == padded >= width + 1 + 20


def test_more_tokens_than_clover_1_has_heads(drafts, prompts):
    with pytest.raises(ValueError, match="has 3 heads: it cannot draft 4"):
        serve(prompts[:1], drafts["clover1"], drafted=4)


def test_a_draft_of_another_target(tmp_path, prompts):
    export("vllm", "clover2", tmp_path / "draft")
    file = tmp_path / "draft/config.json"
    file.write_text(file.read_text().replace('"num_hidden_layers": 16', '"num_hidden_layers": 12'))
    with pytest.raises(
        ValueError, match="trained for a target with num_hidden_layers = 12; the target served has 16"
    ):
        serve(prompts[:1], tmp_path / "draft")


def test_this_version_is_the_tested_one_and_registering_twice_does_no_harm():
    import vllm

    register()
    register()
    first, end = MADE_FOR
    assert first <= vllm.__version_tuple__[:2] < end
    assert vllm.__version__.startswith(f"{TESTED}.")


def test_another_version_is_warned_of(monkeypatch):
    said = []
    monkeypatch.setattr(base.vllm, "__version_tuple__", (0, 34, 1))
    monkeypatch.setattr(base._log, "warning", lambda text, *values: said.append(text % values))
    base.register_models({})
    (line,) = said
    assert "made for vLLM 0.29 to before 0.34 and tested with 0.32; this is 0.3" in line


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_speculators_file_fits_the_librarys_own_schema(system, tmp_path):
    from speculators import SpeculatorModelConfig

    @SpeculatorModelConfig.register(system)  # the library's own way to take in another kind
    class Kind(SpeculatorModelConfig):
        speculators_model_type: Literal[system] = system

    SpeculatorModelConfig.reload_schema()
    export("speculators", system, tmp_path / "out", target="some/target", drafted=3)
    config = SpeculatorModelConfig.from_pretrained(tmp_path / "out")
    assert isinstance(config, Kind)
    read = config.speculators_config
    assert (read.algorithm, read.default_proposal_method) == (system, "greedy")
    assert read.proposal_methods[0].model_dump()["speculative_tokens"] == 3
    assert read.verifier.model_dump() == {
        "name_or_path": "some/target",
        "architectures": ["LlamaForCausalLM"],
    }
