"""The methods that a simulator has: those of every one, and those of its spec's capabilities."""

from __future__ import annotations

from typing import Any

from mmrl.api.specs import SimulatorSpec

ALWAYS = ("reset", "step", "close")
"""Methods of every simulator."""
RENDERS = ("render-cpu", "render-gpu")
CLAIMED = ((("snapshot",), ("snapshot", "restore")), (("expert",), ("expert",)), (RENDERS, ("render",)))
"""(capabilities, methods that each of them requires)."""


def missing_methods(spec: SimulatorSpec, simulator: Any) -> str:
    """What an object lacks of the methods that its spec promises, in words; empty if it lacks nothing."""
    wanted = [*ALWAYS, *(name for names, methods in CLAIMED if spec.capabilities.intersection(names) for name in methods)]
    lacks = sorted(name for name in wanted if not callable(getattr(simulator, name, None)))
    if not lacks:
        return ""
    claimed = ", ".join(
        f"{'/'.join(methods)} with the capability {' or '.join(f'`{name}`' for name in names)}" for names, methods in CLAIMED
    )
    return f"`{type(simulator).__name__}` has no {', '.join(lacks)}: a simulator has {', '.join(ALWAYS)} (and {claimed})"
