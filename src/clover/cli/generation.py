"""Options that ``clover generate`` and ``clover chat`` share, and the line of metrics after a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clover import options
from clover.errors import UserError

if TYPE_CHECKING:
    from clover.api import Clover
    from clover.engine import Generation

_REQUESTED = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_ENDINGS = {
    "length": "stopped at --max-new-tokens",
    "context": "stopped at the maximum length of the target",
}


@dataclass(frozen=True)
class DraftingOptions(options.ModelOptions):
    """The options for the target, and for drafting."""

    draft: options.Draft = None
    tree: options.Tree = "auto"
    compile: options.Compile = False

    def load(self) -> Clover:
        """Load target and draft; UserError as in `clover.load`."""
        from clover import api
        from clover.measure.report.progress import Progress
        from clover.packaged import NoDraftError

        try:
            with Progress() as progress:
                progress.say(f"loading {self.target or 'the embedded target'}")
                return api.load(
                    self.target, self.draft, tree=self.tree or "auto", compile=self.compile, **self.loading
                )
        except NoDraftError as error:
            raise UserError(f"{error}; to decode without a draft, give --tree plain") from error


@dataclass(frozen=True)
class GenerationOptions(DraftingOptions):
    """The options for drafting, and for sampling the text."""

    max_new_tokens: options.MaxNewTokens = 256
    stop: options.Stop = None
    temperature: options.Temperature = 0.0
    top_k: options.TopK = 0
    top_p: options.TopP = 1.0
    min_p: options.MinP = 0.0
    repetition_penalty: options.RepetitionPenalty = 1.0
    seed: options.Seed = 0
    grammar: options.Grammar = None

    def load(self) -> Clover:
        """Load target and draft. UserError, before that, for invalid sampling parameters."""
        from clover.sampling import SamplingParams

        SamplingParams(**{name: getattr(self, name) for name in _REQUESTED if name != "max_new_tokens"})
        return super().load()

    @property
    def request(self) -> dict[str, Any]:
        """Return the arguments of `Clover.generate` and `Clover.chat`."""
        stop_and_grammar = {"stop": self.stop or (), "grammar": self.grammar}
        return {name: getattr(self, name) for name in _REQUESTED} | stop_and_grammar


def describe_generation(generation: Generation) -> str:
    """Describe a text in one line: its tokens, its speed, and the tokens per decoding step with a draft (τ)."""
    parts = [f"{len(generation.tokens)} tokens", f"{tokens_per_second(generation):.1f} tokens/s"]
    acceptance = generation.acceptance
    drafted = acceptance.attempts[0] if acceptance.attempts else 0  # steps with a draft
    if drafted:
        tau = f"τ {1 + acceptance.accepted / drafted:.2f} tokens per step"
        share = drafted / acceptance.steps
        parts.append(tau if share > 0.99 else f"drafted in {share:.0%} of the steps, {tau} there")
    return " · ".join([*parts, *filter(None, [_ENDINGS.get(generation.finish_reason)])])


def describe_gain(drafted: Generation, plain: Generation | None) -> str:
    """Describe in one line the speed of plain decoding, and the speed-up from drafting."""
    assert plain is not None
    speed, fast = tokens_per_second(plain), tokens_per_second(drafted)
    return f"without drafting: {speed:.1f} tokens/s; drafting is {fast / speed:.2f} times as fast"


def tokens_per_second(generation: Generation) -> float:
    """Return the new tokens per second of one text; the time includes the prompt."""
    return len(generation.tokens) / max(generation.seconds, 1e-9)
