"""Judges in Ray actors on any machine of a cluster, each with a `Judge` and its workers.

The learner pickles each case, and the actor passes it on to a worker as it is. So deadlines, failures and scores are those of a
local judge, however the cases are divided.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Score
from mmrl.compute import ranks
from mmrl.compute.crossing import Answer, attempt
from mmrl.compute.ray import ACTOR, adopt_environment, hide_gpus, judges_of_rank, ray_for, switches, wait_for_cpus
from mmrl.config.sections import RunConfig
from mmrl.judge import Isolation, Judge, local_judge, specs_of
from mmrl.judge.messages import Request, with_right_steps
from mmrl.judge.pool import payload, pickling_failure

AT_ONCE = 32
"""Calls that a judge answers concurrently, from all learners that share it."""
WAITING = 8
"""Requests that a learner waits for concurrently."""
LOOK_S = 1.0
"""Seconds between checks whether the judge was closed, while waiting."""


def ray_judge(config: RunConfig, verifiers: Mapping[str, Mapping[str, Any]], on_gpu: bool = False) -> Judge:
    """Make a judge that uses this learner's share of `compute.judges` actors. Call it on all learners.

    verifiers: id -> options. on_gpu: the learner computes on a GPU.

    Judge i serves learner (i % learners), or all learners if there are fewer judges than learners. If Ray is started here, Ray
    and the judges belong to this learner. Raises UserError if Ray isn't installed or has no room for them."""
    specs = specs_of(verifiers)
    compute, settings = config.compute, config.judge
    what = f"compute.judges = {compute.judges}"
    started = ray_for(config, what, on_gpu)
    import ray

    own = judges_of_rank(compute.judges, ranks.world_size(), ranks.rank())
    shared = compute.judges < ranks.world_size() and not started
    run = ranks.broadcast_from_first(lambda: secrets.token_hex(8)) if shared else ""
    wait_for_cpus(ray, what, 0 if shared else settings.num_workers * len(own))
    room = {"num_cpus": settings.num_workers, "num_gpus": 0, "scheduling_strategy": "SPREAD", "max_concurrency": AT_ONCE}
    again = {"max_restarts": compute.retries, "max_task_retries": -1}  # calls are repeated as long as the actor restarts
    made = ray.remote(JudgeActor)
    given = (verifiers, settings.num_workers, settings.timeout_s, settings.memory_mb, settings.isolation, os.getcwd(), switches())
    actors = []
    for i in own:
        name = {"name": f"judge-{run}-{i}", "get_if_exists": True} if shared else {}
        actors.append(made.options(**room, **again, **name).remote(*given))
    return Judge(specs, ActorPool(specs, actors, compute.retries, shared, started))


class ActorPool:
    """Divides requests between judge actors."""

    def __init__(
        self, specs: Mapping[str, VerifierSpec], actors: Sequence[Any], retries: int, shared: bool, started: bool
    ) -> None:
        """shared: other learners use them too, and they end with the learner that created them. started: this learner started
        Ray, which ends with the judges."""
        self._specs, self._actors, self._retries = specs, list(actors), retries
        self._shared, self._started = shared, started
        self._closing = threading.Event()
        self._waiting = ThreadPoolExecutor(WAITING, "mmrl-judges")
        self.loaded: Future[None] = self._waiting.submit(self._load)

    def submit(self, request: Request) -> None:
        """Send each judge an equal share of each verifier's cases."""
        if self._closing.is_set():
            raise RuntimeError("the judge is closed")
        request.future.set_running_or_notify_cancel()
        self._waiting.submit(self._serve, request)

    def close(self) -> None:
        """End the judges; pending futures raise CancelledError."""
        if self._closing.is_set():
            return
        import ray

        self._closing.set()
        self._waiting.shutdown()
        if not self._shared:
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []
        if self._started:
            ray.shutdown()

    def _load(self) -> None:
        self._answers([actor.ready.remote() for actor in self._actors])

    def _serve(self, request: Request) -> None:
        try:
            if self._closing.is_set():
                raise CancelledError("the judge was closed")
            self._ask(request)
            request.future.set_result(request.finish(request.scores))
        except BaseException as error:  # noqa: BLE001  the future raises it
            request.future.set_exception(error)

    def _ask(self, request: Request) -> None:
        """Fill in the request's scores."""
        parts = len(self._actors)
        asked: list[dict[str, list[bytes]]] = [{} for _ in range(parts)]
        sent: list[dict[str, list[int]]] = [{} for _ in range(parts)]
        for name, indices in request.wanted.items():
            request.scores[name] = {}
            request.missing += len(indices)
            sound = {}
            for i in indices:
                try:
                    sound[i] = payload(request.cases[i], self._specs[name])
                except Exception as error:  # noqa: BLE001  pickling runs code of the case's objects
                    request.put(name, i, pickling_failure(error))
            for part in range(parts):
                if own := list(sound)[part::parts]:
                    sent[part][name], asked[part][name] = own, [sound[i] for i in own]
        busy = [part for part in range(parts) if sent[part]]
        answers = self._answers([self._actors[part].run.remote(asked[part]) for part in busy])
        for part, found in zip(busy, answers, strict=True):
            for name, own in sent[part].items():
                for i, score in zip(own, found[name], strict=True):
                    request.put(name, i, with_right_steps(score, self._specs[name], request.cases[i]))

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        """The judges' answers. Raises their UserErrors."""
        import ray

        missing = list(asked)
        while missing:
            _, missing = ray.wait(missing, num_returns=len(missing), timeout=LOOK_S)
            if self._closing.is_set():
                raise CancelledError("the judge was closed")
        try:
            return [answer.result(ACTOR) for answer in ray.get(list(asked))]
        except ray.exceptions.RayActorError as error:
            raise UserError(
                f"a judge died more often than compute.retries = {self._retries} allows ({shorten(error, 200)}): give it more "
                "memory or lower judge.num_workers, then go on with --resume"
            ) from error


class JudgeActor:
    """A Ray actor with a `Judge`, which is made at the first call so that its errors are returned as answers."""

    def __init__(
        self,
        verifiers: Mapping[str, Mapping[str, Any]],
        num_workers: int,
        timeout_s: float | None,
        memory_mb: int | None,
        isolation: Isolation,
        folder: str,
        environment: Mapping[str, str],
    ) -> None:
        """See `Judge`. folder, environment: the learner's working folder and environment variables, to find plugins and files."""
        adopt_environment(folder, environment)
        hide_gpus()
        self._given = (verifiers, num_workers, timeout_s, memory_mb, isolation)
        self._judge: Judge | None = None
        self._lock = threading.Lock()

    def ready(self) -> Answer:
        """Wait until the verifiers are loaded."""
        return attempt(lambda: self._made().ready())

    def run(self, payloads: Mapping[str, Sequence[bytes]]) -> Answer:
        """Verifier -> pickled cases -> verifier -> their scores."""

        def scores() -> dict[str, list[Score]]:
            return self._made().scored(payloads)

        return attempt(scores)

    def _made(self) -> Judge:
        with self._lock:
            self._judge = self._judge or local_judge(*self._given)
            return self._judge
