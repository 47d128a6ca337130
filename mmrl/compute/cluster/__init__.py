"""`mmrl train --cluster`: the run's learners are the workers of a Ray Train `TorchTrainer`.

Ray places, starts, monitors and restarts processes; learners communicate by torch.distributed. This package starts the run, shows
the progress of the first learner in the terminal, and turns errors into one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl import __version__
from mmrl.api.errors import UserError
from mmrl.api.signals import on_termination
from mmrl.compute.cluster.connect import connect_to_cluster
from mmrl.compute.cluster.resources import ResourceRequest, check_resources, missing_resources
from mmrl.compute.ray import switches
from mmrl.config.load import to_dict
from mmrl.config.sections import RunConfig

if TYPE_CHECKING:
    from mmrl.compute.progress import Progress

HEARD_S = 0.5
"""Seconds that the terminal waits for messages of the run before it asks again."""
LEAVING_S = 30.0
"""Seconds for the other learners to end after one has ended."""
LOOK_S = 5.0
"""Seconds between two checks of the cluster's resources."""


def train_on_cluster(
    config: RunConfig,
    progress: Progress,
    address: str,
    *,
    learn: Callable[[Mapping[str, Any]], None],
    report: Callable[[Path], Path],
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """`mmrl.train.start.train` on a cluster, in `compute.learners` processes; returns when the run is finished.

    address: `ray://HOST:PORT`; `auto` for the cluster that this machine is part of; `local` for a cluster that is started here
    and ends with the run. All nodes must see the working directory and the folder of runs at the same path.

    learn: the function that each learner calls with the job. report: writes the report of a finished run, given its folder.

    Raises UserError for errors of the run or the cluster, and if processes died more often than `compute.retries`;
    KeyboardInterrupt if the user stopped the run, which ends after its current step.
    """
    wanted = ResourceRequest.of(config.compute, config.judge.num_workers, config.simulate.lanes, len(config.tasks))
    with connect_to_cluster(address, wanted) as ray:
        use_gpu = check_resources(ray, wanted, config.policy.device)
        job = {
            "learn": learn,
            "report": report,
            "config": to_dict(config),
            "folder": os.getcwd(),
            "environment": switches(),
            "versions": {"mmrl": __version__},
            "resume": resume,
            "overwrite": overwrite,
            "learners": config.compute.learners,
            "retries": config.compute.retries,
            "use_gpu": use_gpu,
            "gpus_per_learner": config.compute.gpus_per_learner,
        }
        from mmrl.compute.cluster.relay import Relay

        # on the head node, since the cluster ends with it anyway
        head = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}, "max_concurrency": 32}
        relay = ray.remote(Relay).options(**head).remote()
        try:
            with stop_on_signal(progress) as stop:
                outcome = follow(
                    ray, relay, relay.fit.remote(relay, job), progress, stop, partial(missing_resources, ray, wanted, use_gpu)
                )
        finally:
            with contextlib.suppress(Exception):  # the cluster may have ended with all its processes
                ray.kill(relay)
    raise_outcome(*outcome, retries=config.compute.retries)


def follow(
    ray: Any, relay: Any, ended: Any, progress: Progress, stop: threading.Event, lacking: Callable[[], str]
) -> tuple[str, str]:
    """Pass the run's messages to `progress` until the run ends. Returns (how it ended, reason).

    stop: set when the user wants the run to end. lacking: gives a message if the cluster lacks resources, such as a node."""
    stop_sent, missing, checked = False, "", time.monotonic()
    outcome, deadline = ("died", "it gave no reason"), float("inf")
    while True:
        over = bool(ray.wait([ended], timeout=0)[0])
        for name, arguments in ray.get(relay.receive.remote(0.0 if over else HEARD_S)):
            if name == "ended":
                outcome, deadline = arguments, time.monotonic() + LEAVING_S
            elif name == "broke":
                sys.stderr.write(arguments[0])
            else:
                getattr(progress, name)(*arguments)
        if over:
            failure = ray.get(ended)
            return ("died", failure) if failure and deadline == float("inf") else outcome
        if time.monotonic() > deadline:  # a learner may wait for one that has already ended with an error
            return outcome
        if stop.is_set() and not stop_sent:
            stop_sent = True
            ray.get(relay.ask_to_stop.remote())
        if time.monotonic() - checked > LOOK_S:
            checked, before, missing = time.monotonic(), missing, lacking()
            if missing and missing != before:
                progress.note(f"{missing}: waiting for a node to come back; Ctrl-C ends the run, and --resume continues it")
        if stop_sent and missing:  # without all learners no step can end
            raise KeyboardInterrupt


def raise_outcome(how: str, why: str, retries: int) -> None:
    """Raise the exception for a run that did not finish. how, why: as `follow` returns them."""
    if how == "stopped":
        raise KeyboardInterrupt
    if how == "refused":
        raise UserError(why)
    if how != "finished":
        raise UserError(
            f"processes of the run died more often than compute.retries = {retries} allows; the last time: {why}: fix that, "
            "then continue with --resume"
        )


@contextlib.contextmanager
def stop_on_signal(progress: Progress) -> Iterator[threading.Event]:
    """Yield an event that is set by Ctrl-C, a termination signal or the end of the terminal. A second Ctrl-C raises at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request_stop(number: int) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        progress.stopping()

    with on_termination(request_stop):
        yield stop
