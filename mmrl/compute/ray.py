"""Helpers for Ray, used for clusters and for actors of a learner."""

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
"""Seconds to wait for resources that another run has just released."""
NICENESS = "RAY_worker_niceness"
"""Ray's default is 15: its processes have such a low priority that they get 3% of a core on a busy machine."""
ACTOR = "a Ray actor"
"""The origin of an actor's errors in messages, see `mmrl.compute.crossing`."""


def import_ray(what: str) -> Any:
    """Import Ray. what: begins the UserError if it isn't installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{what} needs Ray, which is not installed: {CURE}")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing about a run leaves the machine
    import ray

    return ray


def start_local_ray(what: str, cpus: int, gpus: Sequence[str] | None = None) -> Any:
    """Start a new Ray on this machine alone: on loopback, on free ports, with a secret token. It ends with this process.

    what: begins the UserError if it can't start or this machine is too small for it. cpus: number of processes that need a CPU
    each; may exceed the number of cores. gpus: the GPUs that it may assign, as in CUDA_VISIBLE_DEVICES; by default all.
    """
    check_process_count(what, cpus)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # otherwise Ray stores one in the home folder
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
            f"{what}: Ray can't start here: {shorten(error, 300)}: see /tmp/ray/session_latest/logs, or free memory and disk"
        ) from error
    return ray


@contextlib.contextmanager
def on_loopback(ray: Any) -> Iterator[None]:
    """Inside the block, a Ray that starts listens on loopback only, which is Ray's default only on systems without support for
    clusters. Outside of the block this process may connect to a cluster again."""
    constants = ray._private.ray_constants
    allowed = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # this process has already read the variable
    try:
        with variable(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0"):
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = allowed


def ray_for(config: RunConfig, what: str, on_gpu: bool) -> bool:
    """Make sure that Ray runs for this learner's engines, judges and simulators: the cluster that the learner is part of, or a
    new local Ray with enough resources. on_gpu: the learner uses a GPU. Returns whether it was started, so that the caller has to
    end it."""
    ray = import_ray(what)
    if ray.is_initialized():
        return False
    from mmrl.compute import ranks

    compute = config.compute
    beside = compute.engines if compute.placement != "colocated" else 0
    engines = engines_per_rank(beside, ranks.world_size(), ranks.rank())
    judges = config.judge.num_workers * len(judges_of_rank(compute.judges, ranks.world_size(), ranks.rank()))
    simulators = config.simulate.lanes * len(config.tasks) if compute.simulators == "actors" else 0
    gpus = None
    if on_gpu:
        first = ranks.rank() - ranks.local_rank()
        here = [engines_per_rank(beside, ranks.world_size(), rank) for rank in range(first, first + ranks.local_size())]
        wanted = [compute.tensor_parallel * count for count in here]
        gpus = spare_gpus(visible_gpus(), compute.gpus_per_learner * len(here), wanted, ranks.local_rank())
    start_local_ray(what, engines + judges + simulators, gpus)
    return True


def wait_for_cpus(ray: Any, what: str, cpus: int) -> None:
    """Wait at most `PATIENCE_S` for free CPUs. Raises UserError if there are too few. what: begins the message: what needs
    them."""
    started = time.monotonic()
    while (free := ray.available_resources().get("CPU", 0)) < cpus:
        has = ray.cluster_resources().get("CPU", 0)
        if has < cpus or time.monotonic() - started > PATIENCE_S:
            raise UserError(
                f"{what} wants {cpus} CPUs, and {free:g} of {has:g} in the cluster are free: ask for fewer, or add nodes"
            )
        time.sleep(0.5)


def engines_per_rank(engines: int, learners: int, rank: int) -> int:
    """Number of engines of this learner."""
    return len(range(rank, engines, learners))


def judges_of_rank(judges: int, learners: int, rank: int) -> range:
    """Indices of the judges that this learner uses: its share, or all if there are fewer judges than learners."""
    return range(judges) if judges < learners else range(rank, judges, learners)


def visible_gpus() -> list[str]:
    """The visible GPUs, by their indices or names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def spare_gpus(there: Sequence[str], held: int, wanted: Sequence[int], number: int) -> list[str]:
    """The GPUs for the engines of learner `number` of this machine. The first `held` are the learners' own; the others are for
    their engines in turn. wanted: of each learner. Raises UserError if there are too few for this learner's."""
    first = held + sum(wanted[:number])
    own = list(there[first : first + wanted[number]])
    if len(own) < wanted[number]:
        raise UserError(
            f"the engines of a learner want {wanted[number]} GPUs besides the {held} of the learners (compute.engines, "
            f"compute.tensor_parallel), and of the {len(there)} here {len(own)} are left for them: ask for fewer, or set "
            'placement = "colocated"'
        )
    return own


def visible_devices(gpus: Sequence[str] | None) -> contextlib.AbstractContextManager[None]:
    """Processes that are started inside the block see only these GPUs; None changes nothing."""
    return contextlib.nullcontext() if gpus is None else variable("CUDA_VISIBLE_DEVICES", ",".join(gpus))


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block and restore it at the end."""
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
    """The environment variables `MMRL_*`, which choose the plugins, for processes on other machines."""
    return {name: value for name, value in os.environ.items() if name.startswith("MMRL_")}


def adopt_environment(folder: str, environment: Mapping[str, str]) -> None:
    """Make this process of an actor find the same plugins and files as the learner. environment: the learner's `switches()`."""
    os.environ.update(environment)
    os.chdir(folder)


def hide_gpus() -> None:
    """Let this process of an actor see no GPU: Ray hides none from an actor that asks for none."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")
