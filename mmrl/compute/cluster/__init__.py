"""`mmrl train --cluster`: the run's learners are the workers of a Ray Train `TorchTrainer`.

Ray places, starts, watches and restarts processes; torch.distributed carries what learners say to each other. What is here asks
for that, tells the person at the terminal what the first learner says, and turns faults into one line.
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
"""Seconds after which the terminal asks again what was said."""
LEAVING_S = 30.0
"""Seconds that the others may take to end after one learner did."""
LOOK_S = 5.0
"""Seconds between two looks at what the cluster has."""


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

    address: `ray://HOST:PORT`; `auto` for the cluster that this machine is part of; `local` for one that is started here and ends
    with the run. The folder that the command is given in and the folder of runs must be seen by all nodes, at the same path.

    learn: what each learner runs, given the job. report: writes the report of a finished run, given its folder.

    Raises UserError for what the run refuses, for what is wrong with the cluster, and where processes died more often than
    `compute.retries`; KeyboardInterrupt when the run was stopped, which it is after the step under way.
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
        }
        from mmrl.compute.cluster.relay import Relay

        # on the head: the one node that a cluster doesn't survive
        head = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}, "max_concurrency": 32}
        relay = ray.remote(Relay).options(**head).remote()
        try:
            with stop_on_signal(progress) as stop:
                outcome = follow(
                    ray, relay, relay.fit.remote(relay, job), progress, stop, partial(missing_resources, ray, wanted, use_gpu)
                )
        finally:
            with contextlib.suppress(Exception):  # the cluster may be gone, and its processes with it
                ray.kill(relay)
    raise_outcome(*outcome, retries=config.compute.retries)


def follow(
    ray: Any, relay: Any, ended: Any, progress: Progress, stop: threading.Event, lacking: Callable[[], str]
) -> tuple[str, str]:
    """Tell what the run says until it ends: (how, the words of it). stop: set when the person wants it to end. lacking: what the
    cluster hasn't of what the run needs, such as a node."""
    asked, missing, looked = False, "", time.monotonic()
    outcome, deadline = ("died", "it said nothing of why"), float("inf")
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
            found = ray.get(ended)
            return ("died", found) if found and deadline == float("inf") else outcome
        if time.monotonic() > deadline:  # a learner may wait for one that was refused something
            return outcome
        if stop.is_set() and not asked:
            asked = True
            ray.get(relay.ask_to_stop.remote())
        if time.monotonic() - looked > LOOK_S:
            looked, before, missing = time.monotonic(), missing, lacking()
            if missing and missing != before:
                progress.note(f"{missing}: waiting for a node to come back; Ctrl-C ends the run, which --resume goes on with")
        if asked and missing:  # there is nobody who could end a step
            raise KeyboardInterrupt


def raise_outcome(how: str, why: str, retries: int) -> None:
    """Raise what the end of a run means here."""
    if how == "stopped":
        raise KeyboardInterrupt
    if how == "refused":
        raise UserError(why)
    if how != "finished":
        raise UserError(
            f"processes of the run died more often than compute.retries = {retries} allows; the last time: {why}: mend that, "
            "then go on with --resume"
        )


@contextlib.contextmanager
def stop_on_signal(progress: Progress) -> Iterator[threading.Event]:
    """Set by Ctrl-C, by a termination signal and by the end of the terminal; a second Ctrl-C ends it at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        progress.stopping()

    with on_termination(ask):
        yield stop
