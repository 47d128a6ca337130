"""Which weights a stage trains, by name, as the passes of a plan ask."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Learning:
    """What gets gradients."""

    lora: str = ""
    """JSON of `policy.lora`; empty without adapters."""
    names: frozenset[str] | None = None
    """Names of the weights that are trained, in full; None: all of the model."""

    def trains(self, name: str) -> bool:
        return self.names is None or name in self.names


ALL = Learning()
