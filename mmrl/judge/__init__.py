"""Run verifiers in other processes, with deadlines. The judge handles time limits, processes and failures; a verifier is a pure
function, or a model.

A verifier that raises, hangs, crashes, runs out of memory, or returns anything but a finite number in the range of its spec
gives a *failed* score, never a zero. A verifier that can't be imported is a fault of the set-up and raises UserError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Protocol

from mmrl.api.errors import UserError
from mmrl.api.processes import sandbox
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Rollout, Score, Status
from mmrl.judge.environment import names_a_gpu, of_learner_gpu, of_plugin, scrubbed
from mmrl.judge.messages import Request
from mmrl.judge.pool import Pool, WorkerGroup
from mmrl.judge.process import Worker
from mmrl.registry import plugins

Isolation = Literal["process", "strict"]
LOST = Score(None, {}, "its environment or simulator failed", lost=True)
"""The score of an episode whose environment failed: it says nothing about the policy."""


class Scorers(Protocol):
    """Runs the verifiers: `mmrl.judge.pool.Pool`, or judges in Ray actors (`mmrl.judge.actors`)."""

    loaded: Future[None]
    """Resolved when all verifiers are loaded, or with the error."""

    def submit(self, request: Request) -> None:
        """Fill in the request's scores and resolve its future, later."""
        ...

    def close(self) -> None:
        """Release all resources; unfinished requests are cancelled."""
        ...


class Judge:
    """Scores cases with verifiers; `local_judge` and `mmrl.judge.actors.ray_judge` make one. Use it as a context manager, or call
    `close`.

    A value outside [low, high] of the verifier's spec (by more than 1e-6) is a failure: weights and metrics rely on the range.
    """

    def __init__(self, specs: Mapping[str, VerifierSpec], scorers: Scorers) -> None:
        """specs: of the verifiers, by id. scorers: what runs them; closed with the judge."""
        self._specs, self._scorers = specs, scorers

    def score(self, cases: Sequence[Case], weights: Sequence[Mapping[str, float]]) -> list[Score]:
        """[N] cases and for each the weights by verifier id -> [N] weighted sums; see `submit`."""
        return self.submit(cases, weights).result()

    def submit(self, cases: Sequence[Case], weights: Sequence[Mapping[str, float]]) -> Future[list[Score]]:
        """Like `score`, but returns at once; the cases must not change until the future is done.

        Each Score has the weighted sum of the values; `parts` holds each value under its verifier's id and the parts that the
        verifier named under `id/part`, all unweighted. If a verifier failed, so does the sum, and `detail` says which and why.
        Verifiers of weight zero are run and reported, but can't make the sum fail.
        """
        wanted: dict[str, list[int]] = {}
        for i, (_, weights_i) in enumerate(zip(cases, weights, strict=True)):
            if not weights_i:
                raise UserError(f"case {i} has no verifiers: give its task at least one")
            for name in weights_i:
                self._check(name)
                wanted.setdefault(name, []).append(i)

        def finish(scores: Mapping[str, Mapping[int, Score]]) -> list[Score]:
            weighed = [weighted_score(w, {name: scores[name][i] for name in w}) for i, w in enumerate(weights)]
            return [LOST if case.status is Status.ENVIRONMENT_ERROR else s for case, s in zip(cases, weighed, strict=True)]

        return self._submit(Request(cases, wanted, finish))

    def run(self, verifier: str, cases: Sequence[Case]) -> list[Score]:
        """[N] cases -> [N] scores of one verifier, as it gave them; scores of episodes whose environment failed are failed."""
        self._check(verifier)

        def finish(scores: Mapping[str, Mapping[int, Score]]) -> list[Score]:
            return [LOST if c.status is Status.ENVIRONMENT_ERROR else scores[verifier][i] for i, c in enumerate(cases)]

        return self._submit(Request(cases, {verifier: range(len(cases))}, finish)).result()

    def scored(self, payloads: Mapping[str, Sequence[bytes]]) -> dict[str, list[Score]]:
        """Verifier id -> cases pickled by `mmrl.judge.pool.payload` -> their scores, as the verifier gave them."""
        cases = [case for some in payloads.values() for case in some]
        wanted: dict[str, range] = {}
        for name, some in payloads.items():
            self._check(name)
            first = sum(map(len, wanted.values()))
            wanted[name] = range(first, first + len(some))

        def finish(scores: Mapping[str, Mapping[int, Score]]) -> dict[str, list[Score]]:
            return {name: [scores[name][i] for i in own] for name, own in wanted.items()}

        request = Request(cases, wanted, finish)
        self._scorers.submit(request)
        found: dict[str, list[Score]] = request.future.result()
        return found

    def ready(self) -> None:
        """Wait until workers have imported every verifier and loaded every model; UserError if that fails."""
        self._scorers.loaded.result()

    def close(self) -> None:
        """Kill the workers. Pending futures raise `concurrent.futures.CancelledError`."""
        self._scorers.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _submit(self, request: Request) -> Future[list[Score]]:
        self._scorers.submit(request)
        return request.future

    def _check(self, verifier: str) -> None:
        if verifier not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise UserError(f"verifier {verifier!r} is not one of this judge's ({known}): name it when making the Judge")


def local_judge(
    verifiers: Mapping[str, Mapping[str, Any]],
    num_workers: int = 1,
    timeout_s: float | None = None,
    memory_mb: int | None = 512,
    isolation: Isolation = "process",
) -> Judge:
    """Make a judge with worker processes on this machine. verifiers: id -> options.

    num_workers: how many worker processes for each plugin whose verifiers are used. A plugin's verifiers that are models have one
        worker more, for all of them, and another for those whose options name a GPU by its number. In one of several learners the
        first sees the learner's GPU alone, the second all.
    timeout_s: seconds that one verifier may take for one case; by default what its spec says. Heavy imports belong to the
        top of a verifier's module, where they don't count, nor does loading a model.
    memory_mb: how much a case may allocate beyond the memory of the imports, on Linux; None for no limit. Models have none.
    isolation: `strict` puts the workers into sandboxes. docs/isolation.md says what a verifier can do with each.

    Raises UserError at once for an unknown id, and for `strict` on a machine that can't make a sandbox. Errors of importing (a
    broken module, an unknown option) are raised by the first result, since the workers start in the background. `Judge.ready`
    waits for them.
    """
    specs = specs_of(verifiers)
    deadlines = {name: spec.timeout_s if timeout_s is None else timeout_s for name, spec in specs.items()}
    plugin_of = plugins.registry().plugin_of
    groups: dict[tuple[str, bool, bool], list[str]] = {}
    for name, spec in specs.items():
        groups.setdefault((plugin_of(spec).name, spec.model, spec.model and names_a_gpu(verifiers[name])), []).append(name)
    crews = []
    for (_, model, on_named_gpu), names in groups.items():
        own = {name: verifiers[name] for name in names}
        wanted = [variable for name in names for variable in specs[name].environment]
        on_gpu = of_learner_gpu() if model and not on_named_gpu else {}
        spawn = partial(
            Worker,
            own,
            memory_mb=None if model else memory_mb,
            environment=scrubbed(os.environ, wanted) | of_plugin(plugin_of(specs[names[0]])) | on_gpu,
            model=model,
            wrapper=sandbox.wrapper(gpu=model) if isolation == "strict" else (),
        )
        crews.append(WorkerGroup(spawn, frozenset(own), 1 if model else num_workers, model))
    return Judge(specs, Pool(specs, deadlines, crews))


def specs_of(verifiers: Iterable[str]) -> dict[str, VerifierSpec]:
    """The specs of verifiers, by id. UserError for an unknown one."""
    registry = plugins.registry()
    return {name: registry.get("verifiers", name) for name in verifiers}


def weighted_score(weights: Mapping[str, float], scores: Mapping[str, Score]) -> Score:
    """The weighted sum of one case's scores, their `steps` too."""
    value: float | None = 0.0
    parts: dict[str, float] = {}
    details = []
    count = max((len(scores[name].steps) for name in weights), default=0)
    steps = [0.0] * count
    for name, weight in weights.items():
        score = scores[name]
        if score.value is None:
            details.append(f"{name} failed: {score.detail}")
            value = value if weight == 0 else None
            continue
        value = None if value is None else value + weight * score.value
        steps = [paid + weight * s for paid, s in zip(steps, score.steps or [0.0] * count, strict=True)]
        parts[name] = score.value
        parts |= {f"{name}/{part}": v for part, v in score.parts.items()}
        if score.detail:
            details.append(f"{name}: {score.detail}")
    return Score(value, parts, "; ".join(details), () if value is None else tuple(steps))


def build_cases(rollouts: Sequence[Rollout]) -> list[Case]:
    """[N] rollouts -> [N] cases, with everything attached; the judge sends a verifier only what its spec requests."""
    return [r.as_case() for r in rollouts]
