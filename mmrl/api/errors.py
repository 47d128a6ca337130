"""Exceptions whose messages are written for users, the exception that ends a single episode, and helpers for messages."""

import contextlib
import copy
import difflib
import errno
import math
import numbers
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeGuard

LONGEST = 2000
"""Largest number of characters of a message for users."""


class UserError(Exception):
    """An error that the user can fix. The message is one line: what is wrong, where, what to do.

    The command line prints it to stderr and exits with code 2; a library caller may catch it.
    Any other exception that escapes is a bug and keeps its traceback.

    key: the run-file key that is wrong, such as `policy.model`. The message is the key and `what`. A caller that uses the same
    value under another key (a teacher is a model too) can replace the key.
    """

    def __init__(self, what: str = "", *, key: str = "") -> None:
        super().__init__(what)
        self.what, self.key = what, key

    def __str__(self) -> str:
        """The message in one line: blanks for line breaks, and ? for other characters that a terminal obeys or can't show, as in
        a file's name. Of a message of more than `LONGEST` characters, such as with a huge option, the middle is left out."""
        whole = f"{self.key}: {self.what}" if self.key else self.what
        short = whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 505]} ... {whole[-500:]}"
        return short if short.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in short)

    def at(self, where: str) -> Self:
        """A copy whose message begins with where the error happened, such as a step."""
        copied = copy.copy(self)
        copied.what, copied.key = f"{where}: {self}", ""
        return copied


class LimitReached(UserError):
    """A metric passed a limit that stops the run.

    alarm: the limit's name, a key of `[limits]` or `failure_limit` of `[judge]`.
    task: label of the task that the metric is about; empty for all tasks."""

    def __init__(self, what: str = "", *, alarm: str = "", task: str = "") -> None:
        super().__init__(what)
        self.alarm, self.task = alarm, task


class NoGold(UserError):
    """Raised by `Task.gold` if the task doesn't know a correct completion, such as what to do on a user's own page. Whatever
    needs a gold completion (`sft`, hints, `ground_truth`) stops with this message; everything else works without one."""


class NoPair(UserError):
    """Raised by `Task.pair` if the task doesn't know two completions of which one is preferred."""


class EnvironmentFailed(Exception):
    """An environment crashed, hung or could not be made, and the policy is not to blame. An `Environment` or a `Screen` raises
    it. The episode is left out of the statistics and counted, and the run continues. The message gives the reason in one line."""


def display_path(path: object) -> str:
    """A path as it is written in messages: one line of at most 200 characters; of a longer path the end."""
    line = "".join(c if c.isprintable() else "?" for c in str(path))
    return line if len(line) <= 200 else f"...{line[-197:]}"


def check_path(path: object) -> str:
    """What to do about a path that leads nowhere, for the end of a message: `check the path`, of a relative one with the folder
    that it is relative to."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # the folder is gone; no home folder; a null byte
        if not Path(str(path)).expanduser().is_absolute():
            return f"check the path, which is relative to {display_path(Path.cwd())}"
    return "check the path"


def check_writing(number: int | None) -> str:
    """What to do about a file or folder that can't be written, for the end of a message. number: of the system's error, such as
    `errno.EACCES`."""
    match number:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return "free some space"
        case errno.EACCES | errno.EPERM:
            return "change its permissions or those of its folder"
        case errno.EROFS:
            return "choose a folder that isn't read-only"
        case errno.ENOENT:
            return "make its folder first"
        case errno.ENOTDIR | errno.EEXIST:
            return "correct the path, of which a part is a file"
        case errno.EISDIR:
            return "name a file, not a folder"
    return "check the disk, or choose another folder"


class PluginError(UserError):
    """A part of a plugin can't be used. The command line also prints the traceback of `__cause__`, if there is one, for the
    plugin's author."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?", or "" if no known word is close. Among equally close words, one with the same letters wins. A word
    may be the first letters of another's parts: lr, learning_rate."""
    words = list(known)
    matches = difflib.get_close_matches(word, words, n=3)
    matches = matches or [w for w in words if len(word) > 1 and "".join(part[:1] for part in w.split("_")) == word][:1]
    closest = max(matches, key=lambda m: (difflib.SequenceMatcher(None, m, word).ratio(), sorted(m) == sorted(word)), default="")
    return f" Did you mean {closest!r}?" if closest else ""


def nearest_first(word: str, known: Iterable[str]) -> list[str]:
    """The known words, those first that are most like a word."""
    return sorted(known, key=lambda one: -difflib.SequenceMatcher(None, one, word).ratio())


@contextlib.contextmanager
def plugin_errors(what: str) -> Iterator[None]:
    """Turn exceptions of a plugin's code into a PluginError that begins with `what` and has the exception as its cause.
    UserError and EnvironmentFailed pass."""
    try:
        yield
    except (UserError, EnvironmentFailed):
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {shorten(error, 300)}") from error


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold, and not a bool."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an integer with hundreds of digits
        return False


def shorten(error: BaseException | str, most: int = 0) -> str:
    """The message of an exception, or a text, without line breaks. most: characters at most, 20 or more; 0 for any number. Of a
    longer message words of its middle are left out: it says first what is wrong, and last what to do."""
    text = " ".join(str(error).split())
    if not most or len(text) <= most:
        return text
    tail = most // 3
    head = most - tail - len(" … ")
    start, end = text[: head + 1].rpartition(" ")[0], text[-tail - 1 :].partition(" ")[2]
    # a word that is longer than half of the room, such as a path, is cut
    start = start if len(start) >= head // 2 else text[:head]
    return f"{start} … {end if len(end) >= tail // 2 else text[-tail:]}"


def warns_of_loss(number: int) -> bool:
    """Whether the loss with this number, from 1, is warned of: the first five are, then those whose number is a power of two."""
    return number <= 5 or number & (number - 1) == 0
