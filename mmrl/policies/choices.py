"""Ways of computing a layer that may turn out not to work, such as a kernel that doesn't compile: what was chosen is chosen again
where gradient checkpointing computes the layer a second time, whatever became known in between. Its backward pass was told to
expect the tensors of the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Choices:
    """Those of one layer, in their order."""

    def __init__(self) -> None:
        self.made: list[bool] = []
        self.count = 0
        """Number of them that this pass has come to."""


_CHOICES: ContextVar[Choices | None] = ContextVar("choices", default=None)
"""Of the layer that is being computed; None if it won't be computed again."""


class Choice:
    """Whether the faster way is taken."""

    def __init__(self, now: bool) -> None:
        """now: what to choose, unless this pass repeats one."""
        self.faster, self.repeated = now, False
        self._choices = _CHOICES.get()
        if self._choices is None:
            return
        self._number = self._choices.count
        self._choices.count += 1
        if self._number < len(self._choices.made):
            self.faster, self.repeated = self._choices.made[self._number], True
        else:
            self._choices.made.append(now)

    def failed(self) -> None:
        """The faster way failed, and the other is taken. What was chosen within it doesn't count."""
        self.faster = False
        if self._choices is not None:
            self._choices.made[self._number :] = [False]
            self._choices.count = self._number + 1


def repeatable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a copy of the present context, to be called twice: the second time it chooses as it did the first."""
    context: Context = copy_context()
    choices = Choices()
    context.run(_CHOICES.set, choices)

    def again(*args: Any) -> Any:
        choices.count = 0
        return context.run(function, *args)

    return again
