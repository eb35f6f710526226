"""The one kind of error that a user, and not the program, can put right, and how it quotes others."""


class UserError(ValueError):
    """Something the user gave cannot be used.

    The message is one line: what is wrong, then what to do about it. The command line prints it after
    ``clover: error:`` and exits with code 2.
    """


def one_line(error: BaseException) -> str:
    """The start of an error's message, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was no memory, on the host or a GPU."""
    # By name and text, because naming PyTorch's class would import PyTorch.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
