"""Checks of the options that `maniskill/env` and `maniskill/batch` share."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import UserError
from mmrl.api.simulators.checks import check_count


def check_options(what: str, num_envs: int, size: int, cameras: Sequence[str], obs: str) -> None:
    """Raises UserError for values that no ManiSkill environment supports; the message begins with `what`."""
    check_count(what, num_envs)
    if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 1024:
        raise UserError(f"{what}: size = {size!r} must be a whole number of 8 to 1024")
    if isinstance(cameras, str) or (obs == "rgb" and not cameras):
        raise UserError(f"{what}: cameras = {cameras!r} must be a list of names")
