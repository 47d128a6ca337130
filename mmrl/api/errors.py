"""The exceptions that are meant for people, and the one that costs an episode."""

import contextlib
import copy
import difflib
import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeGuard


class UserError(Exception):
    """Something a person can mend. The message is one line: what, where, what to do.

    The command line prints it to stderr and exits with code 2; a library caller may catch it.
    Anything else that escapes is a bug and keeps its traceback.

    key: the key of the run file that is at fault, such as `policy.model`. The message begins with it, and `what` is the rest, so
    that whoever knows the same value by another name (a teacher is a model too) can say it with that one.
    """

    def __init__(self, what: str = "", *, key: str = "") -> None:
        super().__init__(what)
        self.what, self.key = what, key

    def __str__(self) -> str:
        return f"{self.key}: {self.what}" if self.key else self.what

    def at(self, where: str) -> Self:
        """The same error, whose message begins with where it happened, such as a step."""
        found = copy.copy(self)
        found.what, found.key = f"{where}: {self}", ""
        return found


class LimitReached(UserError):
    """A figure passed a limit that stops a run. alarm: the limit's name, a key of `[limits]` or `failure_limit` of `[judge]`.
    task: the one that the figure is about; empty for all."""

    def __init__(self, what: str = "", *, alarm: str = "", task: str = "") -> None:
        super().__init__(what)
        self.alarm, self.task = alarm, task


class NoGold(UserError):
    """A task can't say what would be right, raised by `Task.gold`: nobody knows what to do on a page of one's own. What needs a
    gold completion (`sft`, hints, `ground_truth`) ends with its message; all else goes on without."""


class EnvironmentFailed(Exception):
    """A world crashed, hung, or can't be made, by no fault of the policy. Raised by what serves an episode (`World`, `Screen`),
    it costs that episode: it leaves the statistics and is counted, and the run goes on. The message says why, in one line."""


def display_path(path: object) -> str:
    """A path as messages tell it: one line of 200 characters at most, its end where it has more."""
    line = "".join(c if c.isprintable() else "?" for c in str(path))
    return line if len(line) <= 200 else f"...{line[-197:]}"


class PluginError(UserError):
    """Something that a plugin brings can't be used. `__cause__`, where there is one, is what the plugin's author needs:
    the command line prints its traceback above the line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" or nothing. Of equally close ones, that with the same letters in another order."""
    matches = difflib.get_close_matches(word, list(known), n=3)
    closest = max(matches, key=lambda m: (difflib.SequenceMatcher(None, m, word).ratio(), sorted(m) == sorted(word)), default="")
    return f" Did you mean {closest!r}?" if closest else ""


@contextlib.contextmanager
def plugin_errors(what: str) -> Iterator[None]:
    """Around a plugin's code: what it raises becomes a PluginError that begins with `what`, its traceback kept as the cause."""
    try:
        yield
    except (UserError, EnvironmentFailed):
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {shorten(error)[:300]}") from error


def is_finite(value: Any) -> TypeGuard[float]:
    """A number that a float holds."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an integer with hundreds of digits
        return False


def shorten(error: BaseException) -> str:
    """The message of an exception, without line breaks."""
    return " ".join(str(error).split())
