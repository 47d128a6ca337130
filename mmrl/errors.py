"""The one exception that is meant for people."""


class UserError(Exception):
    """Something a person can mend. The message is one line: what, where, what to do.

    The command line prints it to stderr and exits with code 2; a library caller may catch it.
    Anything else that escapes is a bug and keeps its traceback.
    """
