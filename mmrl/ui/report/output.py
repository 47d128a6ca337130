"""The output of a run, which may end before the run does."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


class RunOutput(Console):
    """A console for a run: if its output is closed, as by `| head`, or can't be written, the run goes on without it.

    rich would end the process, and with it hours of training."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            self._lose(error)

    def on_broken_pipe(self) -> None:
        raise  # rich calls it where it handles the BrokenPipeError

    def _lose(self, error: OSError) -> None:
        self.quiet = True
        _say_on_stderr(
            f"mmrl: the output can't be written any more ({error.strerror}): the run goes on, and its folder has all of it\n"
        )
        _discard(1)


def _say_on_stderr(text: str) -> None:
    """Write to stderr; if that is closed too, as by `2>&1 | head`, whatever follows is discarded as well."""
    try:
        os.write(2, text.encode())
    except OSError:
        _discard(2)


def _discard(file: int) -> None:
    """Discard what is still written to stdout (1) or stderr (2): by libraries, by children, and when Python ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, file)
    os.close(null)
