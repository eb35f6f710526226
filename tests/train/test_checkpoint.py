import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from clover.errors import UserError
from clover.train.checkpoint import load_checkpoint, save_checkpoint


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6)
        self.again = self.first
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("mean", torch.randn(6, dtype=torch.float64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def build(seed: int = 0) -> tuple[Tied, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    model = Tied()
    matrices = [model.first.weight, model.second.weight]
    optimizers = {
        "muon": torch.optim.Muon(matrices, lr=0.02),
        "adam": torch.optim.AdamW([model.second.bias], lr=0.01, betas=(0.9, 0.95)),
    }
    return model, optimizers


def steps(model: Tied, optimizers: dict[str, torch.optim.Optimizer], count: int) -> list[torch.Tensor]:
    for _ in range(count):
        x = torch.randn(4, 6)
        (model.second(model.again(x)) ** 2).sum().backward()
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group.setdefault("peak_lr", group["lr"])
                group["lr"] *= 0.9
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoint.safetensors"


def test_going_on_from_a_checkpoint_is_exact(path: Path) -> None:
    model, optimizers = build()
    steps(model, optimizers, 3)
    state = {"step": 3, "seconds": 0.1 + 0.2, "note": "é", "list": [1, None, 1e-300]}
    save_checkpoint(path, {"draft": model}, optimizers, state)
    expected = steps(model, optimizers, 4)
    frozen = model.frozen.clone()

    model, optimizers = build(seed=1)
    model.frozen.data.copy_(frozen)
    assert load_checkpoint(path, {"draft": model}, optimizers) == state
    assert optimizers["adam"].param_groups[0]["betas"] == (0.9, 0.95)
    for ours, theirs in zip(steps(model, optimizers, 4), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(optimizers["adam"].state[model.second.bias]["step"], torch.tensor(7.0))


def test_the_file_is_plain_safetensors_with_json(path: Path) -> None:
    model, optimizers = build()
    save_checkpoint(path, {"draft": model}, optimizers, {"step": 0})
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        assert json.loads(file.metadata()["clover"])["state"] == {"step": 0}
    modules = {"first.weight", "second.weight", "second.bias", "mean"}
    assert names == {f"module.draft.{name}" for name in modules} | {"random.cpu"}


def test_bfloat16_and_views_come_back_bit_for_bit(path: Path) -> None:
    whole = torch.randn(4, 6).bfloat16()
    model = nn.Module()
    model.a, model.b = nn.Parameter(whole[:2]), nn.Parameter(whole[2:].T)
    save_checkpoint(path, {"m": model}, {}, {})
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        whole.zero_()
    load_checkpoint(path, {"m": model}, {})
    assert torch.equal(model.a, before[0]) and torch.equal(model.b, before[1])


def test_a_failed_save_leaves_the_last_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizers = build()
    save_checkpoint(path, {"draft": model}, optimizers, {"step": 1})

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clover.train.checkpoint.os.fsync", full)
    with pytest.raises(UserError, match="disk is full"):
        save_checkpoint(path, {"draft": model}, optimizers, {"step": 2})
    assert load_checkpoint(path, {"draft": model}, optimizers) == {"step": 1}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_cannot_be_loaded_says_why(path: Path, tmp_path: Path) -> None:
    model, optimizers = build()
    with pytest.raises(UserError, match=f"cannot read {path}: no such file or directory"):
        load_checkpoint(path, {"draft": model}, optimizers)
    with pytest.raises(UserError, match=f"cannot read {tmp_path}: is a directory"):
        load_checkpoint(tmp_path, {"draft": model}, optimizers)
    with pytest.raises(UserError, match="is a directory"):
        save_checkpoint(tmp_path, {"draft": model}, optimizers, {})
    save_checkpoint(path, {"draft": model}, optimizers, {})
    with pytest.raises(UserError, match="lacks module.other"):
        load_checkpoint(path, {"other": model}, optimizers)
    model.second.bias.requires_grad_(False)
    with pytest.raises(UserError, match="also holds module.draft.second.bias"):
        load_checkpoint(path, {"draft": model}, optimizers)
    model.second.bias.requires_grad_(True)
    with pytest.raises(UserError, match="optimizers"):
        load_checkpoint(path, {"draft": model}, {"adam": optimizers["adam"]})
    with pytest.raises(UserError, match="other parameters"):
        load_checkpoint(path, {"draft": model}, {"muon": optimizers["adam"], "adam": optimizers["muon"]})
    with pytest.raises(UserError, match=r"lacks module.draft.mean \(float32 \[6\]\)"):
        load_checkpoint(path, {"draft": model.float()}, optimizers)


def test_a_damaged_or_foreign_file_is_named(path: Path) -> None:
    model, optimizers = build()
    save_checkpoint(path, {"draft": model}, optimizers, {})
    whole = path.read_bytes()
    for content in (b"", b"not a checkpoint", whole[:200], whole[:-10]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is damaged .*; delete it, and train"):
            load_checkpoint(path, {"draft": model}, optimizers)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="not a training checkpoint"):
        load_checkpoint(path, {"draft": model}, optimizers)


@pytest.mark.parametrize("planted", ["lr", "huge", "betas", "params", "shape", "index", "random"])
def test_what_no_optimizer_writes_is_named(path: Path, planted: str) -> None:
    """Such a file would end the first step, or the loading, with an error of PyTorch's."""
    model, optimizers = build()
    steps(model, optimizers, 1)
    save_checkpoint(path, {"draft": model}, optimizers, {})
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    header = json.loads(metadata["clover"])
    if planted == "lr":
        header["optimizers"]["adam"][0]["lr"] = "fast"
    elif planted == "huge":
        header["optimizers"]["adam"][0]["lr"] = 10**400
    elif planted == "betas":
        header["optimizers"]["adam"][0]["betas"] = [0.9, None]
    elif planted == "params":
        header["optimizers"]["adam"][0]["params"] = None
    elif planted == "shape":
        tensors["optimizer.adam.0.exp_avg"] = torch.zeros(7)
    elif planted == "index":
        tensors["optimizer.adam.x.exp_avg"] = torch.zeros(6)
    else:
        tensors["random.cpu"].fill_(255)
    save_file(tensors, path, metadata | {"clover": json.dumps(header)})
    with pytest.raises(UserError, match="no state of random numbers|other parameters"):
        load_checkpoint(path, {"draft": model}, optimizers)
