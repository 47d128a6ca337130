"""Names of the core's and plugins' distributions, and other distributions that own files of the core."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "multimodal-rl"
"""The core's distribution; `mmrl` on the package index is another project."""
GROUP = "mmrl.plugins"
"""The entry point group of plugins."""
MODULE, SCRIPT = "mmrl/__init__.py", "mmrl"
"""The core's package and command, which another distribution may own too."""


def canonical(name: str) -> str:
    """A distribution's normalised name: lower case, with dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.lru_cache(1024)
def metadata_of(dist: metadata.Distribution) -> metadata.PackageMetadata:
    """A distribution's metadata. It would read and parse them again each time that it is asked for its name or version."""
    return dist.metadata


def distribution_of(plugin: str) -> str:
    """The conventional name of a plugin's distribution."""
    return f"{DISTRIBUTION}-{plugin}"


def installed() -> list[metadata.EntryPoint]:
    """The entry points of installed plugins, in a fixed order. Of several with one name, the one whose distribution has the
    conventional name comes first."""

    def order(ep: metadata.EntryPoint) -> tuple[str, bool, str]:
        dist = (metadata_of(ep.dist)["Name"] if ep.dist else None) or ""  # an interrupted installation may have no METADATA
        return ep.name, canonical(dist) != canonical(distribution_of(ep.name)), dist

    return sorted(metadata.entry_points(group=GROUP), key=order)


def distribution_with(module: str) -> str | None:
    """The installed distribution whose plugin is in this module's top-level package; None without one."""
    package = module.partition(".")[0]
    dists = (ep.dist for ep in metadata.entry_points(group=GROUP) if re.split(r"[.:]", ep.value)[0] == package)
    return next((dist.name for dist in dists if dist), None)


def foreign_owners() -> Iterator[str]:
    """One message for each other distribution that owns the package or the command mmrl.

    pip lets several distributions own a file. The one that was installed last wrote it, and uninstalling any of them removes it.
    """
    for dist in metadata.distributions():  # `dist.name` is read last, since it takes a millisecond
        owned = []
        if Path(str(dist.locate_file(MODULE))).is_file() and f"\n{MODULE}," in "\n" + (dist.read_text("RECORD") or ""):
            owned.append("the package mmrl")
        if re.search(rf"^{SCRIPT}\s*=", dist.read_text("entry_points.txt") or "", re.MULTILINE) and any(
            ep.name == SCRIPT for ep in dist.entry_points.select(group="console_scripts")
        ):
            owned.append("the command mmrl")
        if owned and dist.name and canonical(dist.name) != DISTRIBUTION:  # pip can't uninstall what has no name
            yield (
                f"the distribution {dist.name} {dist.version} in {dist.locate_file('')} is not {DISTRIBUTION} and owns "
                f"{' and '.join(owned)} too: pip uninstall -y {dist.name}, then install {DISTRIBUTION} again"
            )
