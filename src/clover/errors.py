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
