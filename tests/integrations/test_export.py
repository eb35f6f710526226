import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from clover import assets
from clover.drafts import Clover1Draft, Clover2Draft, MedusaDraft, RecallDraft, load_draft
from clover.integrations.vllm.names import ARCHITECTURES
from clover.target import TargetModel
from tests.families import tiny_model
from tests.tiny import save_tiny_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("system", sorted(ARCHITECTURES))
def test_the_vllm_directory_holds_a_llama_configuration_and_the_same_weights(system, tmp_path, run_clover):
    done = run_clover("export", "--to", "vllm", system, tmp_path / "out")
    assert done.code == 0, done.err
    config = json.loads((tmp_path / "out/config.json").read_text())
    target = json.loads((assets.TARGET / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURES[system]]
    assert config["architectures"][0].startswith("Eagle")  # the driver wants it
    assert config["model_type"] == "llama"
    assert config["index_share_for_mtp_iteration"] is True
    for name in ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads"):
        assert config[name] == target[name]
    assert config["max_position_embeddings"] == target["max_position_embeddings"]
    before, after = (
        load_file(place / "model.safetensors") for place in (assets.DRAFTS[system], tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("system", sorted(ARCHITECTURES))
def test_the_draft_can_be_built_again_from_what_vllm_reads(system, tmp_path, run_clover):
    run_clover("export", "--to", "vllm", system, tmp_path / "out")
    fields = json.loads((tmp_path / "out/config.json").read_text())["clover"]
    stored = {"target_int8": False} | json.loads((assets.DRAFTS[system] / "config.json").read_text())
    assert {name: stored.get(name) for name in fields} == fields  # what is not there is None


@pytest.mark.parametrize(("target", "served"), [(None, "TARGET"), ("my models/one", "'my models/one'")])
def test_the_printed_command_names_directory_and_target(target, served, tmp_path, run_clover):
    named = ["--target", target] if target else []
    done = run_clover("export", "--to", "vllm", "clover2", tmp_path / "out", "--draft-tokens", 3, *named)
    described = json.loads(done.out[done.out.index("{") : done.out.rindex("}") + 1])
    assert described == {"method": "eagle", "model": str(tmp_path / "out"), "num_speculative_tokens": 3}
    assert f"vllm serve {served} --speculative-config '{{" in done.out


@pytest.mark.parametrize(("draft", "loses"), [("recall", False), ("smollm2/recall", True)])
def test_a_draft_that_copies_says_that_it_does_not_there(draft, loses, tmp_path, run_clover):
    done = run_clover("export", "--to", "vllm", draft, tmp_path / "out")
    assert ("no place for its copies from the text" in done.out) == loses


@pytest.mark.parametrize("to", ["vllm", "speculators"])
@pytest.mark.parametrize("named", ["smollm2", "there/file.gguf", "FOLDER"])
def test_a_target_that_no_other_engine_reads_is_refused_with_the_command_that_helps(
    to, named, tmp_path, run_clover
):
    (tmp_path / "model.gguf").touch()
    target = str(tmp_path) if named == "FOLDER" else named
    done = run_clover("export", "--to", to, "clover2", tmp_path / "out", "--target", target)
    assert (done.code, done.err.count("\n")) == (2, 1) and not (tmp_path / "out").exists()
    said, code = done.err.rstrip().removesuffix("'").split(" python -c '")
    assert f"vLLM does not read the GGUF file of {target};" in said
    assert f'T.load("{target}", "float32")' in code and f'save_pretrained("{Path(target).stem}-hf")' in code
    compile(code, "the command", "exec")


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_no_more_tokens_are_named_than_clover1_has_heads(to, tmp_path, run_clover):
    done = run_clover("export", "--to", to, "clover1", tmp_path / "out", "--draft-tokens", 4)
    assert (done.code, "clover1 has 3 heads, not 4: give --draft-tokens 3" in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()
    assert run_clover("export", "--to", to, "clover1", tmp_path / "out", "--draft-tokens", 3).code == 0


def test_a_reduced_vocabulary_goes_along(pair, tmp_path, run_clover):
    target = TargetModel.load(pair[0])
    draft = load_draft(pair[1], target)
    draft.reduce_vocabulary(torch.arange(0, 20, 2))
    draft.save_pretrained(tmp_path / "draft")
    assert run_clover("export", "--to", "vllm", tmp_path / "draft", tmp_path / "out").code == 0
    assert load_file(tmp_path / "out/model.safetensors")["d2t"].tolist() == list(range(0, 20, 2))
    assert json.loads((tmp_path / "out/config.json").read_text())["clover"]["draft_vocab_size"] == 10


def test_the_speculators_file_names_method_and_verifier(tmp_path, run_clover):
    done = run_clover("export", "--to", "speculators", "recall", tmp_path / "out", "--target", "some/target")
    assert done.code == 0, done.err
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["speculators_model_type"] == "recall"
    described = config["speculators_config"]
    assert described["verifier"] == {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]}
    assert described["proposal_methods"] == [{"proposal_type": "greedy", "speculative_tokens": 2}]


def test_without_a_target_the_speculators_file_names_none_as_the_help_says(tmp_path, run_clover):
    assert run_clover("export", "--to", "speculators", "recall", tmp_path / "out").code == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] is None
    shown = " ".join(run_clover("export", "--help").out.replace("│", " ").split())
    assert "Default: none." in shown and "the embedded one" not in shown


@pytest.mark.parametrize("family", ["gemma", "gemma3_text", "granite"])
@pytest.mark.parametrize("kind", [Clover1Draft, Clover2Draft])
def test_layers_of_a_target_that_scales_its_embeddings_are_refused(family, kind, tmp_path, run_clover):
    target = TargetModel(tiny_model(family, torch.float32))
    kind.from_target(target).save_pretrained(tmp_path / "draft")
    done = run_clover("export", "--to", "vllm", tmp_path / "draft", tmp_path / "out")
    assert (done.code, f"{family}, which scales its embeddings" in done.err) == (2, True), done.err
    RecallDraft.from_target(target).save_pretrained(tmp_path / "recall")
    assert run_clover("export", "--to", "vllm", tmp_path / "recall", tmp_path / "out").code == 0


@pytest.mark.parametrize("kind", [Clover1Draft, Clover2Draft, RecallDraft])
def test_heads_that_do_not_divide_the_hidden_size_become_those_of_the_draft(kind, tmp_path, run_clover):
    target = TargetModel(tiny_model("qwen3_six_heads", torch.float32))
    kind.from_target(target).save_pretrained(tmp_path / "draft")
    assert run_clover("export", "--to", "vllm", tmp_path / "draft", tmp_path / "out").code == 0
    config = LlamaConfig.from_pretrained(tmp_path / "out")  # which refuses the target's six
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda target: MedusaDraft.from_target(target), "is a medusa draft"),
        (
            lambda target: Clover2Draft.from_target(target, hidden_state="pre_norm"),
            "reads pre_norm hidden states",
        ),
        (lambda target: Clover1Draft.from_target(target, connection="mlp"), "ablation of Clover-1"),
        (lambda target: broken(target), "not finite"),
    ],
)
def test_a_draft_that_no_other_engine_runs_is_refused(make, message, pair, tmp_path, run_clover):
    make(TargetModel.load(pair[0])).save_pretrained(tmp_path / "draft")
    done = run_clover("export", "--to", "vllm", tmp_path / "draft", tmp_path / "out")
    assert (done.code, message in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()


def broken(target: TargetModel) -> Clover2Draft:
    draft = Clover2Draft.from_target(target)
    with torch.no_grad():
        draft.first_projector.bias[0] = float("nan")
    return draft


def test_what_stands_there_is_kept_unless_told_otherwise(tmp_path, run_clover):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes").write_text("mine")
    assert run_clover("export", "--to", "vllm", "clover2", tmp_path / "out").code == 2
    assert (tmp_path / "out/notes").read_text() == "mine"
    assert run_clover("export", "--to", "vllm", "clover2", tmp_path / "out", "--overwrite").code == 0
    assert not (tmp_path / "out/notes").exists()


def test_a_missing_draft_is_one_clear_line(tmp_path, run_clover):
    done = run_clover("export", "--to", "vllm", tmp_path / "none", tmp_path / "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no draft at" in done.err


def test_the_plugin_is_an_entry_point_that_needs_no_vllm_to_import():
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("not a checkout")
    assert 'clover = "clover.integrations.vllm:register"' in project.read_text()
    installed = [point for point in entry_points(group="vllm.general_plugins") if point.name == "clover"]
    assert all(point.load().__name__ == "register" for point in installed)
