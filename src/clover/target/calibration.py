"""Find the layers of an int8 target whose inputs have outliers, by running a short text when it is loaded."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from clover.cpu.exact import ExactModel
from clover.cpu.int8 import THRESHOLDS, refine
from clover.target.cached_model import CachedModel
from clover.target.loading import FAILURES
from clover.target.support import longest_run
from clover.target.weight_cache import find_or_make

# Raise it when the result can change, here or in `refine`: stored calibrations are then made again.
_VERSION = 1
_MOST = 256  # tokens
_FINE = "fine"  # the name of the stored tensor
_TEXT = '''\
The river had been low all summer, and nobody in the village could say when it would rise. "We'll wait," said Mara, 38,
and closed the shop at 5:30 p.m.; her brother counted $1,204.75 twice. Why had he come back after so many years?

```python
def mean(values: list[float], start: int = 0) -> float:
    """Return the mean of the values from `start` on."""
    total = 0.0
    for value in values[start:]:
        total += value
    return total / max(len(values) - start, 1)
```

1. Water boils at 100 °C. 2. x² − 5x + 6 = 0, so x = 2 or x = 3.
今天天气很好，我们一起去公园散步。她问他：“你什么时候回来？”他没有回答。
Der Zug kam zu spät, weil es geschneit hatte. <p class="note">See <a href="index.html">here</a>.</p>
'''


@torch.inference_mode()
def calibrate(target: CachedModel, rounded: ExactModel, tokenizer: Any, name: str | None = None) -> None:
    """Let layers whose inputs have outliers round them to fifteen bits; a text of at most 256 tokens shows which.

    Without a tokenizer the text is evenly spaced tokens of the vocabulary. With the `name` of the rounded weights in
    the weight cache, the result is stored there, too.
    """
    most = min(_MOST, longest_run(target.config, inside_windows=True)[0])
    tokens, products = _tokens(target, tokenizer)[:most], rounded.products

    def run() -> Tensor:
        return target.head(target.base(input_ids=tokens[None], use_cache=False).last_hidden_state)

    def make(_: str) -> Tensor:
        refine(rounded, run)
        return torch.tensor([one.product.fine for one in products], dtype=torch.int8)

    if name is None:
        return refine(rounded, run)
    layout = {_FINE: torch.empty(len(products), dtype=torch.int8, device="meta")}
    found = find_or_make(_key(name, tokens), layout, make, quiet=True)
    if found is None:
        return refine(rounded, run)
    for one, fine in zip(products, found[_FINE].tolist(), strict=True):
        one.product.fine = bool(fine)


def _key(name: str, tokens: Tensor) -> str:
    """Return the name of the entry, a hash of all that the result depends on, such as the processor's instructions."""
    facts = [_VERSION, THRESHOLDS, name, tokens.tolist(), torch.backends.cpu.get_cpu_capability()]
    return f"calibration-{blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()}"


def _tokens(target: CachedModel, tokenizer: Any) -> Tensor:
    """Return the text's tokens, Long [T]."""
    rows = target.embedding_weight.shape[0]
    try:
        tokens = torch.tensor(tokenizer.encode(_TEXT), device=target.device)
    except FAILURES:
        return torch.arange(_MOST, device=target.device) * rows // _MOST
    return tokens.clamp(max=rows - 1)
