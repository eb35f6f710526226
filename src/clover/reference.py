"""The whole of speculative decoding for one sequence, without anything that makes it fast. Read this first.

The engine emits the same tokens at every step (tests/test_reference.py). It adds trees, batches, a choice of what
drafts, and compiled steps.

Shapes: A positions that the target has run in one step, D drafted tokens, V vocabulary, W width of the hidden states.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clover.drafts import DraftModel, DraftSession
from clover.drafts.vocabulary import target_tokens
from clover.sampling import Sampler, SamplingParams
from clover.target import TargetModel
from clover.tree import TokenTree, TreeShape


@torch.inference_mode()
def decode(
    target: TargetModel,
    draft: DraftModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    depth: int = 4,
    params: SamplingParams | None = None,
) -> Iterator[list[int]]:
    """Continue a prompt; yields the tokens that each step emits, the last step's cut to `max_new_tokens`.

    Args:
        prompt: two tokens at least.
        depth: D, tokens drafted per step, a chain; no more than the draft's `max_depth`.
        params: how the target chooses its tokens; greedily when left out.
    """
    room, device = len(prompt) + max_new_tokens + depth, target.device
    cache, session = target.new_cache(1, room), draft.new_session(1, room)
    sampler = Sampler([params or SamplingParams()], [prompt], target.vocab_size, device)

    def run(tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states [1, A, W] for the draft, and logits [1, A, V]; the caller commits what is to stay cached."""
        positions = cache.positions(len(tokens))
        cache.begin(len(tokens))
        output = target.forward(
            torch.tensor([tokens], device=device), positions, cache, None, draft.config.hidden_state
        )
        return output.read, target.logits(output.hidden)

    hidden, _ = run(prompt[:-1])
    cache.commit([len(prompt) - 1])
    following = list(prompt[1:])  # the token after each position of `hidden`
    written = 0
    while written < max_new_tokens:
        # The draft takes in what the target has run, and proposes the likeliest chain.
        logits = session.commit(hidden, torch.tensor([following], device=device), [len(following)])[:, None]
        chain = [following[-1], *_likeliest(draft, session, sampler, logits, depth)]
        # The target runs the chain in one pass, and says what follows each of its tokens.
        hidden, logits = run(chain)
        tree = TokenTree.from_shape(TreeShape.chain(depth), torch.tensor([chain], device=device))
        choices = sampler.choose(logits, tree)[0].tolist()
        # Drafted tokens that the target would have written anyway are accepted; then one more is its own.
        accepted = 0
        while accepted < depth and chain[accepted + 1] == choices[accepted]:
            accepted += 1
        following = choices[: accepted + 1]
        hidden = hidden[:, : accepted + 1]
        cache.commit([accepted + 1])
        sampler.commit(torch.tensor([following], device=device), torch.tensor([accepted + 1], device=device))
        yield following[: max_new_tokens - written]
        written += accepted + 1


def _likeliest(
    draft: DraftModel, session: DraftSession, sampler: Sampler, logits: Tensor, depth: int
) -> list[int]:
    """The likeliest chain of D tokens; `logits` [1, 1, V] are those of the first."""
    chain = []
    for at in range(depth):
        scores = sampler.gumbel_scores(logits, at, draft.session_tokens)
        token = target_tokens(draft.session_tokens, scores.argmax(-1))
        chain.append(int(token))
        if at + 1 < depth:
            logits = session.advance(torch.zeros_like(token), token)
    return chain
