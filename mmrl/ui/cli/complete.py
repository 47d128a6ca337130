"""Shell completion of ids. The registry is read only when a completion is asked for; an error gives no completions."""

from __future__ import annotations

from collections.abc import Callable

import click


def ids(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A `shell_complete` callback for ids of these kinds; without kinds, for those of the command's `kind` argument."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            from mmrl.registry import plugins

            registry = plugins.registry()
            known = {id for kind in kinds or (ctx.params["kind"],) for id in registry.specs(kind)}
        except Exception:  # noqa: BLE001  a traceback would be printed into the line being typed
            return []
        return sorted(id for id in known if id.startswith(incomplete))

    return complete
