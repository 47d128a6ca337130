"""The options that both ways to play a task have, checked."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import UserError
from mmrl.api.simulators.checks import check_count


def check_options(what: str, num_envs: int, size: int, cameras: Sequence[str], obs: str) -> None:
    """Refuse, in one line that begins with `what`, what no ManiSkill environment can be made with."""
    check_count(what, num_envs)
    if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 1024:
        raise UserError(f"{what}: size = {size!r} must be a whole number of 8 to 1024")
    if isinstance(cameras, str) or (obs == "rgb" and not cameras):
        raise UserError(f"{what}: cameras = {cameras!r} must be a list of names")
