"""Training of the embedded target: a deep, narrow Llama on the token stream of the corpus.

Matrices are trained with Muon, the embedding table and the norms with AdamW. It is PyTorch's Muon, for which the rate
was chosen: that of `clover.cpu.muon` scales the update of a matrix by its shape in another way. The rate is warmed
up, held, and falls linearly to zero over the last part of the budget; windows grow from 256 to 1,024 tokens near the
end, because short ones are cheaper and teach a small model most of what it can learn.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from clover.train.checkpoint import load_checkpoint, save_checkpoint
from clover.train.log import stop_requests

_MATRIX_LR, _VECTOR_LR, _WEIGHT_DECAY = 0.02, 4e-3, 0.02
_WARM_UP, _DECAY = 0.02, 0.35  # shares of the budget
_STAGES = ((0.0, 256), (0.7, 512), (0.9, 1024))  # (from this share of the budget on, tokens per window)
_SAVE_EVERY_SECONDS = 300


@dataclass(frozen=True)
class PretrainProgress:
    """One logged moment: share of the budget spent (0 … 1), steps, tokens, loss (nats per token), seconds spent."""

    share: float
    step: int
    tokens: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class TargetFacts:
    """How the target was trained. Losses in nats per token; minutes of wall clock; when, on what, by which command."""

    steps: int
    tokens: int
    training_loss: float
    minutes: float
    held_out_loss: float
    parameters: int
    corpus_tokens: int
    made: str
    command: str


def target_config(vocab_size: int, context_length: int, end_of_text: int) -> LlamaConfig:
    """Return the embedded target's shape: 16 layers of width 256; shared attention heads would save nothing here."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=None,
    )


def pretrain(
    model: PreTrainedModel, stream: Tensor, work: Path, minutes: float, batch_tokens: int = 8192
) -> Iterator[PretrainProgress]:
    """Train `model` in place on `stream` (Short [tokens]); yields every tenth step and at the end.

    It goes on from the checkpoint `work`; the time spent before an interruption counts. Closing the generator leaves a
    checkpoint. So do Ctrl-C and SIGTERM, after the step that they come in; then KeyboardInterrupt is raised. In bf16
    autocast; weights and optimizers stay in float32.
    """
    device, budget = next(model.parameters()).device, minutes * 60
    optimizers = _optimizers(model)
    state = {"step": 0, "tokens": 0, "seconds": 0.0, "loss": 0.0}
    if work.exists():
        state = load_checkpoint(work, {"target": model}, optimizers)
    saved, started = state["seconds"], time.monotonic() - state["seconds"]
    model.train()
    with stop_requests() as stopped:
        try:
            while (elapsed := time.monotonic() - started) < budget and not stopped():
                batch = _batch(stream, elapsed / budget, batch_tokens, state["step"]).to(device)
                state["loss"] = float(_step(model, batch, optimizers, _rate(elapsed / budget)))
                state["step"] += 1
                state["tokens"] += batch.numel()
                state["seconds"] = time.monotonic() - started
                if state["step"] % 10 == 0:
                    yield PretrainProgress(elapsed / budget, **state)
                if state["seconds"] - saved > _SAVE_EVERY_SECONDS:
                    saved = state["seconds"]
                    save_checkpoint(work, {"target": model}, optimizers, state)
        except GeneratorExit:  # the caller has no more time now
            save_checkpoint(work, {"target": model}, optimizers, state)
            raise
    save_checkpoint(work, {"target": model}, optimizers, state)
    if elapsed < budget:
        raise KeyboardInterrupt
    yield PretrainProgress(1.0, **state)


@torch.no_grad()
def mean_loss(model: PreTrainedModel, stream: Tensor, window: int = 256, max_tokens: int = 200_000) -> float:
    """Mean next-token loss in nats over consecutive windows of `stream`, each read without what comes before it."""
    model.eval()
    device = next(model.parameters()).device
    count = min(len(stream), max_tokens) // (window + 1)
    windows = stream[: count * (window + 1)].view(count, window + 1).long()
    losses = [_loss(model, batch.to(device)) * len(batch) for batch in windows.split(16)]
    return float(torch.stack(losses).sum() / count)


def _optimizers(model: PreTrainedModel) -> dict[str, torch.optim.Optimizer]:
    ends: tuple[Any, Any] = (model.get_input_embeddings(), model.get_output_embeddings())
    tables = {id(layer.weight) for layer in ends}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in tables]
    return {
        "matrices": torch.optim.Muon(matrices, lr=_MATRIX_LR, weight_decay=_WEIGHT_DECAY),
        "vectors": torch.optim.AdamW(others, lr=_VECTOR_LR, betas=(0.9, 0.95), weight_decay=0.0),
    }


def _step(
    model: nn.Module, batch: Tensor, optimizers: dict[str, torch.optim.Optimizer], rate: float
) -> Tensor:
    loss = _loss(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group.setdefault("peak_lr", group["lr"])
            group["lr"] = group["peak_lr"] * rate
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean loss of windows, Long [B, T + 1]."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def _rate(share: float) -> float:
    return min(1.0, (share + 0.001) / _WARM_UP, (1 - share) / _DECAY)


def _batch(stream: Tensor, share: float, batch_tokens: int, step: int) -> Tensor:
    window = max(size for start, size in _STAGES if share >= start)
    rows = math.ceil(batch_tokens / window)
    starts = torch.randint(len(stream) - window - 1, (rows,), generator=torch.Generator().manual_seed(step))
    return stream[starts[:, None] + torch.arange(window + 1)].long()
