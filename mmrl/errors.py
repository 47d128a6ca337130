"""The exception that is meant for people, and the one that costs an episode."""


class UserError(Exception):
    """Something a person can mend. The message is one line: what, where, what to do.

    The command line prints it to stderr and exits with code 2; a library caller may catch it.
    Anything else that escapes is a bug and keeps its traceback.
    """


class WorldLost(Exception):
    """A world crashed, hung, or can't be made, by no fault of the policy. Raised by what serves an episode (`World`, `Screen`),
    it costs that episode: it leaves the statistics and is counted, and the run goes on. The message says why, in one line."""
