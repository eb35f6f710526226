"""vLLM in this process, with a record of what it drafts, and the same chains by this project's own engine."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clover import assets
from clover.drafts import DraftModel, RecallDraft
from clover.target import TargetModel

SYSTEMS = ("clover1", "clover2", "recall")
BLOCK = 32  # positions of one block of the cache, the fewest that vLLM allows on a CPU


@dataclass(frozen=True)
class Chain:
    """One draft: the text before it, and the tokens drafted."""

    text: tuple[int, ...]
    drafted: tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """What vLLM wrote, in rounds over the same prompts, and every chain that it drafted on the way."""

    rounds: list[list[tuple[int, ...]]]
    chains: list[Chain] = field(default_factory=list)
    cached: int = 0  # prompt tokens of the last round found in the prefix cache
    shapes: frozenset[tuple[int, int, int]] = (
        frozenset()
    )  # of the draft's layers: heads, those of keys, their size


def serve(
    prompts: Sequence[Sequence[int]],
    draft: Path | None = None,
    drafted: int = 3,
    rounds: int = 1,
    max_tokens: int = 40,
    together: bool = True,
    **settings: Any,
) -> Served:
    """Run prompts through vLLM greedily, with a draft directory or without, together or one after the other."""
    llm = make_llm(draft, drafted, **settings)
    try:
        chains = _record(llm)
        written, outputs = [], []
        groups = [prompts] if together else [[prompt] for prompt in prompts]
        for _ in range(rounds):
            outputs = [output for group in groups for output in _generate(llm, group, max_tokens)]
            written.append([tuple(output.outputs[0].token_ids) for output in outputs])
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return Served(written, chains, cached, _shapes(llm))
    finally:
        close(llm)


def make_llm(draft: Path | None = None, drafted: int = 3, **settings: Any) -> Any:
    """vLLM's engine on the embedded target."""
    from vllm import LLM

    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": drafted}
    options: dict[str, Any] = {
        "model": str(assets.TARGET),
        "dtype": "float32",
        "max_model_len": 512,
        "kv_cache_memory_bytes": 64 << 20,
        "enforce_eager": True,
        "max_num_seqs": 8,
        "block_size": BLOCK,
        "async_scheduling": False,  # the scheduler then knows the drafted tokens
        "speculative_config": speculative if draft else None,
    }
    return LLM(**options | settings)


def close(llm: Any) -> None:
    """Free an engine, so that the next one starts from nothing."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()


def _generate(llm: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Any]:
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], greedy, use_tqdm=False)


def _shapes(llm: Any) -> frozenset[tuple[int, int, int]]:
    layers = llm.llm_engine.engine_core.engine_core.vllm_config.compilation_config.static_forward_context
    own = [layer for name, layer in layers.items() if "clover" in name]
    return frozenset((layer.num_heads, layer.num_kv_heads, layer.head_size) for layer in own)


def _record(llm: Any) -> list[Chain]:
    """A list that fills with the chains drafted after texts whose prompt has been read whole."""
    core, chains = llm.llm_engine.engine_core.engine_core, list[Chain]()
    scheduler, proposed = core.scheduler, _record_proposals(core)
    update = scheduler.update_draft_token_ids

    def recorded(made: Any) -> None:
        for name, drafted in zip(made.req_ids, made.draft_token_ids, strict=True):
            request = scheduler.requests.get(name)
            if request is not None and request.num_output_tokens > 0:
                chains.append(Chain(tuple(request.all_token_ids), tuple(proposed.get(name, drafted))))
        update(made)

    scheduler.update_draft_token_ids = recorded
    return chains


def own_chains(
    target: TargetModel, draft: DraftModel, chains: Sequence[Chain], fed: dict[int, int] | None = None
) -> list[Chain]:
    """What this project's engine drafts greedily after the same texts, as many tokens, without copies of the text.

    Args:
        fed: tokens that the draft was told in the place of the text's, by the position before them.
    """
    if isinstance(draft, RecallDraft):
        draft.copy_nothing()
    known: list[tuple[tuple[int, ...], torch.Tensor]] = []  # whole texts and the target's states there
    own = {}
    for chain in sorted(set(chains), key=lambda chain: -len(chain.text)):
        found = [states for text, states in known if text[: len(chain.text)] == chain.text]
        if not found:
            with torch.inference_mode():
                states = target.train_forward(
                    torch.tensor([chain.text]), draft.config.hidden_state
                ).draft_hidden_states
            known.append((chain.text, states))
            found = [states]
        hidden = found[0][:, : len(chain.text) - 1]
        own[chain] = Chain(chain.text, _own_chain(draft, hidden, chain.text, len(chain.drafted), fed or {}))
    return [own[chain] for chain in chains]


def _record_proposals(core: Any) -> dict[str, list[int]]:
    """The newest chain of each request by model runner V2, which does not tell the scheduler; empty with V1."""
    proposed: dict[str, list[int]] = {}
    worker = getattr(core.model_executor, "driver_worker", None)
    runner = getattr(getattr(worker, "worker", None), "model_runner", None)
    speculator = getattr(runner, "speculator", None)
    if speculator is not None:
        propose = speculator.propose

        def recorded(batch: Any, *arguments: Any, **named: Any) -> torch.Tensor:
            drafted = propose(batch, *arguments, **named)
            proposed.update(zip(batch.req_ids, drafted.tolist(), strict=False))
            return drafted

        speculator.propose = recorded
    return proposed


@torch.inference_mode()
def _own_chain(
    draft: DraftModel, hidden: torch.Tensor, text: Sequence[int], length: int, fed: dict[int, int]
) -> tuple[int, ...]:
    following = torch.tensor([text[1:]])
    for position, token in fed.items():
        following[0, position] = token
    session = draft.new_session(1, len(text))
    logits, chain = session.commit(hidden, following, [hidden.shape[1]]), list[int]()
    while True:
        best = logits.argmax(-1)
        chain.append(int(best if draft.d2t is None else draft.d2t[best]))
        if len(chain) == length:
            return tuple(chain)
        slot = torch.zeros(1, 1, dtype=torch.long)
        logits = session.advance(slot, torch.tensor([[chain[-1]]]))[:, 0]
