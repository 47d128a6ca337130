"""What the shell completes ids with: the registry is read when somebody presses the key, and a fault completes nothing."""

from __future__ import annotations

from collections.abc import Callable

import click


def ids(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A `shell_complete` for ids of these kinds; without any, of the kind that stands before it on the command line."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            from mmrl.registry import plugins

            registry = plugins.registry()
            found = {id for kind in kinds or (ctx.params["kind"],) for id in registry.specs(kind)}
        except Exception:  # noqa: BLE001  a traceback would land in the line that is being typed
            return []
        return sorted(id for id in found if id.startswith(incomplete))

    return complete
