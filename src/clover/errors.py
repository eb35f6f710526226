"""The errors that a user can fix, and the replacements of removed commands and arguments."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class UserError(ValueError):
    """Raised for unusable input of the user: options, files, models or texts.

    The message is one line: the problem, then the remedy. The command line prints it after ``clover: error:`` and exits
    with code 2.
    """


class GenerationError(UserError):
    """Raised by `generate` after all prompts have run, if at least one text ended with an error.

    Attributes:
        results: one `Generation` for each prompt, in their order. A text that ended with an error has the
            `finish_reason` "error", the reason in `error`, and the text and tokens before it; the others are whole.
    """

    def __init__(self, message: str, results: Sequence[Any]):
        super().__init__(message)
        self.results = list(results)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error is a lack of memory, on the host or a GPU."""
    # The error is recognized by name and text, because using PyTorch's class would import PyTorch.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


# Commands, options and arguments of earlier versions or other functions, each with its replacement. An option is named
# with its command, or alone if every command had it; an argument is named with its function.
REPLACEMENTS = {
    "compare": "clover compare is gone; run python -m experiments.compare in a clone of the repository",
    "recipe": "clover recipe is gone; use clover write and clover train, or in a clone python -m experiments.recipes",
    "vocabulary": "vocabulary is gone; use clover train --max-steps 0 --set draft_vocab_size=N --start-from DRAFT",
    "copies": "copies is gone; use clover train --max-steps 0 --start-from DRAFT",
    "--method": "--method was removed; give --tree auto, --tree plain, or --tree own for the draft's own tree",
    "--plain": "--plain was removed; give --tree plain",
    "audit --against": "--against is gone; every token is compared with the model as transformers runs it",
    "audit --no-float32": "--no-float32 is gone; an audit has one dtype, and --dtype float32 audits once more",
    "load method=": 'method= was removed; give tree="own" for method="draft", tree="plain" or tree="auto"',
    "load plain=": 'plain= was removed; give tree="plain"',
    "speculative weights=": 'custom_generate runs your model as it is; for int8 use clover.load(DIR, weights="int8")',
    "speculative exact=": "custom_generate runs your model as it is; for exact texts use clover.load(DIR, exact=True)",
    "Engine prefill_chunk=": "prefill_chunk= was removed; give limits=EngineLimits(prefill_chunk=…)",
    "Engine.run prefix=": "prefix= was removed; give store=PrefixStore(), and requests with keep=True",
}


def names_replacements(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Make a function raise UserError with the line of `REPLACEMENTS` for an argument that is listed there."""
    words = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        for name in kwargs:
            if line := REPLACEMENTS.get(f"{words} {name}="):
                raise UserError(line)
        return function(*args, **kwargs)

    return call
