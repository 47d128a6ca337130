"""What is known of a plugin that was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """A plugin that was found, working or not."""

    name: str
    """Name of the entry point, with which the plugin's ids begin; the stem of a local file."""
    dist: str | None
    """The plugin's distribution; None for a local file."""
    version: str | None
    target: str
    """The module with the hooks; the path of a local file."""
    specs: dict[str, list[str]] = field(default_factory=dict)
    """Kind -> ids; empty for a plugin that failed."""
    hooks: list[str] = field(default_factory=list)
    contract: int | None = None
    """The hook contract that it declares; None if it declares none, which counts as the core's."""
    error: str | None = None
    """Why it can't be used, as a predicate for its name; None if it works."""
    cause: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception behind `error`, with its traceback."""

    @property
    def label(self) -> str:
        """The plugin in messages, such as `plugin 'flags' (mmrl-flags 0.1)`."""
        return f"plugin {self.name!r} ({self.dist} {self.version})" if self.dist else f"plugin {self.name!r} ({self.target})"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dist": self.dist,
            "version": self.version,
            "target": self.target,
            "specs": self.specs,
            "hooks": self.hooks,
            "contract": self.contract,
            "error": self.error,
        }
