"""Send errors to another process: the message, and the traceback of a plugin's exception as text."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl.api import errors
from mmrl.api.errors import PluginError, UserError


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text. args: (where, traceback)."""

    def __str__(self) -> str:
        where, trace = self.args
        return f"in {where}:\n{trace}"


@dataclass(frozen=True)
class Fault:
    """A UserError as plain data."""

    kind: str
    """The name of its class in `mmrl.api.errors`."""
    line: str
    trace: str = ""
    """Traceback of the cause of a PluginError, for the plugin's author."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Its attributes, such as `key`, but of an error of a plugin's own class none that can't be sent."""

    @classmethod
    def of(cls, error: UserError) -> Fault:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
        cause = error.__cause__ if isinstance(error, PluginError) else None
        fields = {name: value for name, value in vars(error).items() if _can_be_sent(value)}
        return cls(kind, str(error), trace_of(cause) if cause else "", fields)

    def error(self, where: str) -> UserError:
        """Make the UserError again. where: the process that it comes from, such as "a Ray actor"."""
        error: UserError = getattr(errors, self.kind)(self.line)
        vars(error).update(self.fields)
        if self.trace:
            error.__cause__ = RemoteTraceback(where, self.trace)
        return error


@dataclass(frozen=True)
class Answer:
    """The result of a function, or its UserError."""

    value: Any = None
    fault: Fault | None = None

    def result(self, where: str) -> Any:
        """The value. Raises the UserError; see `Fault.error`."""
        if self.fault:
            raise self.fault.error(where)
        return self.value


def attempt(work: Callable[[], Any]) -> Answer:
    """Call a function and return its result or its UserError. Other exceptions propagate."""
    try:
        return Answer(work())
    except UserError as error:
        return Answer(fault=Fault.of(error))


def _can_be_sent(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  any object may refuse in any way
        return False
    return True


def trace_of(error: BaseException) -> str:
    """The traceback of an exception as Python prints it; for a RemoteTraceback, the original one."""
    return error.args[1] if isinstance(error, RemoteTraceback) else "".join(traceback.format_exception(error))
