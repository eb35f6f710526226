"""The sampling parameters of one request."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from torch import Tensor

from clover.errors import UserError
from clover.sampling.states import GrammarState
from clover.validation import checked

Process = Callable[[Tensor, Tensor], Tensor]
_Token = Annotated[int, Field(ge=0)]
_Penalty = Annotated[float, Field(ge=-1e3, le=1e3)]
_Bias = Annotated[float, Field(ge=-1e6, le=1e6)]


def _zero_or_large(temperature: float) -> float:
    if 0 < temperature < 1e-5:
        raise UserError(f"it is {temperature}; it must be 0 (greedy) or at least 1e-5")
    return temperature


def _state(grammar: Any) -> Any:
    if grammar is not None and not isinstance(grammar, GrammarState):
        raise UserError("it is not a state of a grammar; give grammars to generate, stream, chat or request")
    return grammar


Temperature = Annotated[float, Field(ge=0, le=1e5), AfterValidator(_zero_or_large)]


@checked
class SamplingParams:
    """The sampling parameters of one request; UserError if a value has the wrong type or is out of range.

    Attributes:
        temperature: 0 chooses the most probable token (top_k, top_p, min_p and seed are then ignored); else from
            1e-5 to 1e5.
        top_k: keep the k most probable tokens, and those as probable as the last of them; 0 keeps all.
        top_p: keep the fewest tokens, most probable first, whose probabilities sum to top_p, and those as
            probable as the last of them; in (0, 1].
        min_p: keep the tokens with at least this share of the highest probability; in [0, 1].
        repetition_penalty: positive logits of tokens in the text (prompt included) are divided, negative ones
            multiplied by it; 1e-3 to 1e3, 1 is off.
        frequency_penalty: subtracted from a token's logit for each time it is a new token; -1e3 to 1e3, 0 is off.
        presence_penalty: subtracted from the logits of all tokens that are among the new ones; -1e3 to 1e3, 0 is off.
        logit_bias: added to the logits of these tokens, -1e6 to 1e6.
        banned_tokens: never emitted.
        process: a function of the caller, applied after the penalties: it gets texts Long [P, T], prompt included, and
            the logits [P, V] of their next tokens, and returns new logits. It must depend on nothing else, because it
            also gets texts that end in drafted tokens. These may continue after an end-of-sequence token; they contain
            no token to which it gave -inf.
        grammar: the state of a grammar at the beginning of the text (`clover.grammar.Grammars.start`). Tokens that it
            excludes are never chosen, and not drafted if the tree supports that.
        seed: the seed of the random numbers, in [0, 2^63); equal prompts with equal seeds get equal texts.
    """

    temperature: Temperature = 0.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    frequency_penalty: _Penalty = 0.0
    presence_penalty: _Penalty = 0.0
    logit_bias: Mapping[_Token, _Bias] = field(default_factory=dict, hash=False)
    banned_tokens: Annotated[tuple[_Token, ...], Field(strict=False)] = ()
    process: Process | None = field(default=None, hash=False)
    grammar: Annotated[Any, AfterValidator(_state)] = field(default=None, hash=False)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def greedy(self) -> bool:
        """Return True if the most probable token is chosen, without randomness."""
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise UserError if a token is not in the vocabulary, or if all tokens are banned."""
        for name, tokens in (("logit_bias", self.logit_bias), ("banned_tokens", self.banned_tokens)):
            highest = max(tokens, default=0)
            if highest >= vocab_size:
                raise UserError(f"{name} has token {highest}, but the vocabulary ends at {vocab_size - 1}")
        if len(set(self.banned_tokens)) == vocab_size:
            raise UserError("banned_tokens bans the whole vocabulary; leave at least one token")
