"""How the tokens of one request are chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from clover.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Attributes:
        temperature: 0 takes the most probable token (top_k, top_p, min_p and seed then mean nothing); else
            from 1e-5 to 1e5.
        top_k: keep the k most probable tokens, and those as probable as the last of them; 0 keeps all.
        top_p: keep the fewest tokens, most probable first, whose probabilities sum to top_p, and those as
            probable as the last of them; in (0, 1].
        min_p: keep the tokens with at least this share of the highest probability; in [0, 1].
        repetition_penalty: positive logits of tokens in the text (prompt included) are divided, negative ones
            multiplied by it; 1e-3 to 1e3, 1 is off.
        logit_bias: added to the logits of these tokens, -1e6 to 1e6.
        banned_tokens: never emitted.
        seed: of the row's random numbers, in [0, 2^63); equal prompts with equal seeds get equal texts.

    Raises:
        UserError: a value is of the wrong type or out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned_tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and (self.temperature == 0 or 1e-5 <= self.temperature <= 1e5)):
            raise UserError(f"temperature must be 0 (greedy) or from 1e-5 to 1e5, got {self.temperature!r}")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise UserError(f"top_p must be a number above 0 and at most 1 (off), got {self.top_p!r}")
        if not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise UserError(f"min_p must be a number from 0 (off) to 1, got {self.min_p!r}")
        if not (_is_number(self.repetition_penalty) and 1e-3 <= self.repetition_penalty <= 1e3):
            raise UserError(
                f"repetition_penalty must be from 1e-3 to 1e3, 1 is off, got {self.repetition_penalty!r}"
            )
        if not _is_count(self.top_k):
            raise UserError(f"top_k must be a whole number, 0 is off, got {self.top_k!r}")
        if not (_is_count(self.seed) and self.seed < 2**63):
            raise UserError(f"seed must be a whole number from 0 to 2^63 - 1, got {self.seed!r}")
        self._check_tokens()

    def _check_tokens(self) -> None:
        if not isinstance(self.logit_bias, Mapping) or not isinstance(self.banned_tokens, Collection):
            raise UserError("logit_bias must map token ids to numbers, banned_tokens must list token ids")
        for token, bias in self.logit_bias.items():
            if not (_is_count(token) and _is_number(bias) and -1e6 <= bias <= 1e6):
                raise UserError(
                    f"logit_bias must give token ids a number from -1e6 to 1e6, got {token!r}: {bias!r}; "
                    "use banned_tokens to rule a token out"
                )
        for token in self.banned_tokens:
            if not _is_count(token):
                raise UserError(f"banned_tokens must hold token ids, got {token!r}")
        object.__setattr__(self, "banned_tokens", tuple(self.banned_tokens))

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken, with no chance involved."""
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check the token ids against a model.

        Raises:
            UserError: a token is not in the vocabulary, or every one of it is banned.
        """
        for name, tokens in (("logit_bias", self.logit_bias), ("banned_tokens", self.banned_tokens)):
            highest = max(tokens, default=0)
            if highest >= vocab_size:
                raise UserError(f"{name} has token {highest}, but the vocabulary ends at {vocab_size - 1}")
        if len(set(self.banned_tokens)) == vocab_size:
            raise UserError("banned_tokens bans the whole vocabulary; leave at least one token")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
