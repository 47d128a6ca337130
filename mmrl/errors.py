"""The exceptions that are meant for people, and the one that costs an episode."""


class UserError(Exception):
    """Something a person can mend. The message is one line: what, where, what to do.

    The command line prints it to stderr and exits with code 2; a library caller may catch it.
    Anything else that escapes is a bug and keeps its traceback.
    """


class NoGold(UserError):
    """A task can't say what would be right, raised by `Task.gold`: nobody knows what to do on a page of one's own. What needs a
    gold completion (`sft`, hints, `ground_truth`) ends with its message; all else goes on without."""


class WorldLost(Exception):
    """A world crashed, hung, or can't be made, by no fault of the policy. Raised by what serves an episode (`World`, `Screen`),
    it costs that episode: it leaves the statistics and is counted, and the run goes on. The message says why, in one line."""
