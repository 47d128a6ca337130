"""Ray, where a run uses it: what holds for a cluster and for actors beside a learner alike."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError, shorten
from mmrl.api.signals import defer_interrupt
from mmrl.compute.processes import check_process_count

if TYPE_CHECKING:
    from mmrl.config.sections import RunConfig

CURE = 'pip install "multimodal-rl[ray]"'
PATIENCE_S = 15.0
"""Seconds that what another run has just left may take to be free."""
NICENESS = "RAY_worker_niceness"
"""By default 15: Ray's processes give way to all others, which on a busy machine leaves them 3% of a core."""
ACTOR = "a Ray actor"
"""What errors of an actor are said to come from, see `mmrl.compute.crossing`."""


def import_ray(what: str) -> Any:
    """The module `ray`. what: begins the UserError where it isn't installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{what} needs Ray, which is not installed: {CURE}")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing about a run leaves the machine
    import ray

    return ray


def start_local_ray(what: str, cpus: int, gpus: Sequence[str] | None = None) -> Any:
    """A fresh Ray of this machine alone: on loopback, on ports that are free, answering nobody else, and gone with this process.

    what: begins the UserError where it can't start, or this machine is too small for it. cpus: how many processes may want one
    each; they may be more than cores, as they may be under torchrun. gpus: those that it may give away, by their numbers in
    CUDA_VISIBLE_DEVICES; all by default.
    """
    check_process_count(what, cpus)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray makes one and keeps it in the home folder
    ray = import_ray(what)
    more = {} if gpus is None else {"num_gpus": len(gpus)}
    niceness = os.environ.get(NICENESS, "0")
    try:
        with defer_interrupt("Ray has started"), visible_devices(gpus), on_loopback(ray), variable(NICENESS, niceness):
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, cpus),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level="ERROR",
                **more,
            )
    except KeyboardInterrupt:
        ray.shutdown()
        raise
    except Exception as error:
        raise UserError(
            f"{what}: Ray can't start here: {shorten(error)[:300]}: see /tmp/ray/session_latest/logs, or free what it needs"
        ) from error
    return ray


@contextlib.contextmanager
def on_loopback(ray: Any) -> Iterator[None]:
    """A Ray that starts within this listens on loopback, which it does by itself only on systems that it builds no clusters of.
    What is started later, of this process too, may be part of a cluster again."""
    constants = ray._private.ray_constants
    allowed = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # of this process, which has read the variable
    try:
        with variable(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0"):
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = allowed


def ray_for(config: RunConfig, what: str, on_gpu: bool) -> bool:
    """Ray, for what this learner wants of it: that of the cluster which it is part of, or one that is started here and has room
    for all of that. on_gpu: the learner computes on one. Whether it was started, so that the caller has to end it."""
    ray = import_ray(what)
    if ray.is_initialized():
        return False
    from mmrl.compute import ranks

    compute, engines = config.compute, 0
    if compute.placement != "colocated":
        engines = engines_per_rank(compute.engines, ranks.world_size(), ranks.rank())
    judges = config.judge.num_workers * len(judges_of_rank(compute.judges, ranks.world_size(), ranks.rank()))
    simulators = config.simulate.lanes * len(config.tasks) if compute.simulators == "actors" else 0
    gpus = None
    if on_gpu:
        gpus = spare_gpus(visible_gpus(), compute.learners, ranks.rank(), engines * compute.tensor_parallel)
    start_local_ray(what, engines + judges + simulators, gpus)
    return True


def wait_for_cpus(ray: Any, what: str, cpus: int) -> None:
    """Wait a while for CPUs that are free. UserError where there are fewer. what: begins it, and wants them."""
    started = time.monotonic()
    while (free := ray.available_resources().get("CPU", 0)) < cpus:
        has = ray.cluster_resources().get("CPU", 0)
        if has < cpus or time.monotonic() - started > PATIENCE_S:
            raise UserError(f"{what} wants {cpus} CPUs, of {has:g} in the cluster {free:g} are free: ask for fewer, or add nodes")
        time.sleep(0.5)


def engines_per_rank(engines: int, learners: int, rank: int) -> int:
    """How many engines are this learner's."""
    return len(range(rank, engines, learners))


def judges_of_rank(judges: int, learners: int, rank: int) -> range:
    """The numbers of the judges that this learner asks: its share, or all where there are fewer than learners."""
    return range(judges) if judges < learners else range(rank, judges, learners)


def visible_gpus() -> list[str]:
    """By their numbers or names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def spare_gpus(there: Sequence[str], learners: int, rank: int, wanted: int) -> list[str]:
    """The GPUs of a learner's engines on its machine: those behind the learners' own, which have the first, each its part of
    them. UserError where there are fewer than wanted."""
    behind = list(there[learners:])
    own = behind[rank * wanted : (rank + 1) * wanted]
    if len(own) < wanted:
        raise UserError(
            f"the engines of a learner want {wanted} GPUs beside the learners' own (compute.engines, compute.tensor_parallel), "
            f'and there are {len(there)} in all for {learners} learners: ask for fewer, or for placement = "colocated"'
        )
    return own


def visible_devices(gpus: Sequence[str] | None) -> contextlib.AbstractContextManager[None]:
    """Processes that are started meanwhile see these GPUs; None leaves all as it is."""
    return contextlib.nullcontext() if gpus is None else variable("CUDA_VISIBLE_DEVICES", ",".join(gpus))


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, which is afterwards as it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def switches() -> dict[str, str]:
    """The variables by which this process chose its plugins, for those that it starts elsewhere."""
    return {name: value for name, value in os.environ.items() if name.startswith("MMRL_")}


def adopt_environment(folder: str, environment: Mapping[str, str]) -> None:
    """Make this process, an actor's, look for plugins and files where the learner does. environment: what `switches` gave."""
    os.environ.update(environment)
    os.chdir(folder)
