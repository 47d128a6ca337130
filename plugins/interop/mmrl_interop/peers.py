"""Other projects' packages: imported when an adapter is used, refused in one line if they are missing or of another version."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from mmrl import UserError
from mmrl.api.errors import shorten


def peer(module: str, versions: str, needed_by: str, dist: str = "") -> Any:
    """Import a module of another project.

    versions: those that the adapter was tested with, such as ">=1.16,<1.17"; empty for any. needed_by: what uses it, for the
    message. dist: its distribution, by default the module's first name.

    Raises UserError, with the command that installs it, if it is missing, of another version, or can't be imported."""
    dist = dist or module.partition(".")[0]
    cure = f'pip install "{dist}{versions}"'
    try:
        found = version(dist)
    except PackageNotFoundError:
        raise UserError(f"{needed_by} needs {dist}, which is not installed: {cure}") from None
    if not SpecifierSet(versions, prereleases=True).contains(Version(found)):
        raise UserError(f"{needed_by} works with {dist} {versions}, and {found} is installed: {cure}")
    try:
        return importlib.import_module(module)
    except Exception as error:
        why = shorten(error, 200)
        raise UserError(f"{needed_by}: {dist} {found} can't be imported ({type(error).__name__}: {why}): {cure}") from error
