"""Ray, where a run uses it: what holds for a cluster and for engines beside a learner alike."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from mmrl.errors import UserError
from mmrl.targets import one_line

CURE = 'pip install "mmrl[ray]"'


def imported(what: str) -> Any:
    """The module `ray`. what: begins the UserError where it isn't installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{what} needs Ray, which is not installed: {CURE}")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing about a run leaves the machine
    import ray

    return ray


def start_here(what: str, cpus: int, gpus: Sequence[str] | None = None) -> Any:
    """A fresh Ray of this machine alone: on loopback, on ports that are free, answering nobody else, and gone with this process.

    what: begins the UserError where it can't start. cpus: how many processes may want one each; they may be more than cores, as
    they may be under torchrun. gpus: those that it may give away, by their numbers in CUDA_VISIBLE_DEVICES; all by default.
    """
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray makes one and keeps it in the home folder
    ray = imported(what)
    more = {} if gpus is None else {"num_gpus": len(gpus)}
    try:
        with visible(gpus):
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, cpus),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level="ERROR",
                **more,
            )
    except Exception as error:
        raise UserError(
            f"{what}: Ray can't start here: {one_line(error)[:300]}: see /tmp/ray/session_latest/logs, or free what it needs"
        ) from error
    return ray


@contextlib.contextmanager
def visible(gpus: Sequence[str] | None) -> Iterator[None]:
    """Processes that are started meanwhile see these GPUs; None leaves all as it is."""
    if gpus is None:
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def switches() -> dict[str, str]:
    """The variables by which this process chose its plugins, for those that it starts elsewhere."""
    return {name: value for name, value in os.environ.items() if name.startswith("MMRL_")}
