"""The one kind of error that a user, and not the program, can put right, and how it quotes others."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class UserError(ValueError):
    """Raised for something from the user that cannot be used.

    The message is one line: what is wrong, then what to do about it. The command line prints it after
    ``clover: error:`` and exits with code 2.
    """


def one_line(error: BaseException) -> str:
    """Return the start of an error's message, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether there was no memory, on the host or a GPU."""
    # By name and text, because naming PyTorch's class would import PyTorch.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))


def removed_arguments(
    **lines: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator for a function that had more keyword arguments in earlier versions.

    A call with a removed argument raises UserError with its line, which says what replaces it.

    >>> @removed_arguments(colour="colour is gone; give shade")
    ... def paint(shade: str = "dark") -> str:
    ...     return shade
    >>> paint(colour="red")
    Traceback (most recent call last):
    clover.errors.UserError: colour is gone; give shade
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            for name, line in lines.items():
                if name in kwargs:
                    raise UserError(line)
            return function(*args, **kwargs)

        return call

    return decorate
