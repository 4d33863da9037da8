"""One exception for everything that a user can put right; the command line prints it without a stack trace."""


class UserError(ValueError):
    """Bad configuration, data or model: the message says what is wrong, where, and the next step."""
