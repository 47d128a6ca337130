"""What pip calls the core and its plugins, and other distributions that own files of the core."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "multimodal-rl"
"""What pip calls the core; `mmrl` on the package index is another project."""
GROUP = "mmrl.plugins"
"""The group of the entry points of plugins."""
MODULE, SCRIPT = "mmrl/__init__.py", "mmrl"
"""What of the core another distribution may own too: its package and its command."""


def canonical(name: str) -> str:
    """A distribution's name in lower case, with dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution_of(plugin: str) -> str:
    """What pip calls the distribution of a plugin, by custom."""
    return f"{DISTRIBUTION}-{plugin}"


def distribution_with(module: str) -> str | None:
    """The installed distribution whose plugin is in the package of this module."""
    package = module.partition(".")[0]
    found = (ep.dist for ep in metadata.entry_points(group=GROUP) if re.split(r"[.:]", ep.value)[0] == package)
    return next((dist.name for dist in found if dist), None)


def foreign_owners() -> Iterator[str]:
    """One line about each other distribution that owns the package or the command mmrl: what it is, where, what to do.

    pip lets several distributions own a file. The one that was installed last has written it, and uninstalling any removes it.
    """
    for dist in metadata.distributions():  # a name is asked for last: it takes a millisecond of each
        owned = []
        if Path(str(dist.locate_file(MODULE))).is_file() and f"\n{MODULE}," in "\n" + (dist.read_text("RECORD") or ""):
            owned.append("the package mmrl")
        if re.search(rf"^{SCRIPT}\s*=", dist.read_text("entry_points.txt") or "", re.MULTILINE) and any(
            ep.name == SCRIPT for ep in dist.entry_points.select(group="console_scripts")
        ):
            owned.append("the command mmrl")
        if owned and canonical(dist.name) != DISTRIBUTION:
            yield (
                f"the distribution {dist.name} {dist.version} in {dist.locate_file('')} is not {DISTRIBUTION} and owns "
                f"{' and '.join(owned)} too: pip uninstall -y {dist.name}, then install {DISTRIBUTION} again"
            )
