"""The one kind of error that a user, and not the program, can put right."""


class UserError(ValueError):
    """Something the user gave cannot be used.

    The message is one line: what is wrong, then what to do about it. The command line prints it after
    ``clover: error:`` and exits with code 2.
    """
