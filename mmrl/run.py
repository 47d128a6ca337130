"""A run is a list of stages; a stage is a list of steps; a step reads top to bottom."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from mmrl import checkpoint, plugins
from mmrl.algorithms.loss import negative_log_likelihood
from mmrl.algorithms.presets import Algorithm, load_algorithm
from mmrl.collect.turns import TurnCollector
from mmrl.data.seeds import derive
from mmrl.data.source import Source, gold_of, prompts_of
from mmrl.errors import UserError
from mmrl.evaluate import Evaluation, Evaluator, metric_of
from mmrl.generate.local import LocalGenerator, Sampling
from mmrl.interfaces import Task
from mmrl.judge import Judge, cases_of
from mmrl.learn import Learner, frozen_copy
from mmrl.metrics import rl_metrics
from mmrl.pack import pack
from mmrl.policies.vlm import VLM, PromptInputs
from mmrl.record import RunFolder, rollout_row
from mmrl.rehearse import doubts
from mmrl.schema import RlStage, RunConfig, SftStage
from mmrl.targets import PluginError
from mmrl.types import Batch, Prompt, Rollout, Score

IDLE_STEPS = 10
"""After so many steps without spread a person is told."""


class Progress(Protocol):
    """Who watches a run; see `mmrl.view.progress`."""

    def stage_started(self, number: int, count: int, stage: SftStage | RlStage, done: int) -> None: ...
    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, figures: Sequence[Evaluation]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Position:
    """Where a run is; together with weights and optimiser this is what a resume needs."""

    step: int = 0
    """Steps finished, over all stages."""
    stage: int = 0
    stage_step: int = 0
    """Steps finished in the stage."""
    source: dict[str, int] = field(default_factory=dict)
    """Prompts taken of each task in this stage."""
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`before`, `best`, `last`: task id -> evaluation."""
    evaluated_step: int | None = None
    best_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class Run:
    """A policy, its tasks, and everything that a step calls."""

    def __init__(
        self, config: RunConfig, tasks: Mapping[str, Task], folder: RunFolder, policy: VLM, judge: Judge, progress: Progress
    ) -> None:
        self.config, self.tasks, self.folder = config, tasks, folder
        self.policy, self.judge, self.progress = policy, judge, progress
        self.collector = TurnCollector(policy, LocalGenerator(policy, config.generate.batch_size))
        self.evaluator = Evaluator(config, tasks, self.collector, judge)
        self.weights = task_weights(config)
        self.before = next((i for i, s in enumerate(config.stages) if isinstance(s, RlStage)), 0)
        """The stage before which the first evaluation stands: the first that reinforces."""
        self.at = Position()
        self.learner: Learner
        self.source: Source
        self.algorithm: Algorithm
        self.resume: tuple[Path, dict[str, torch.Tensor]] | None = None
        """Checkpoint folder and optimiser state that the first stage prepared picks up."""
        self.quarantine: set[tuple[str, int]] = set()
        """(task, index) of this stage's prompts whose images can't be used."""
        self.idle = 0
        """RL steps in a row in which no group had spread."""
        self.stop = False
        """Set from outside: stop at the end of this step."""
        self.consistent = True
        """The weights are those after `at.step` steps; not so in the middle of an update."""
        self._timed: dict[str, float] = {}

    # -- the steps ------------------------------------------------------------------------------------------------------

    def sft_step(self, stage: SftStage) -> dict[str, float]:
        """Imitate the gold completions of a few prompts."""
        prompts, inputs = self.take(stage.batch_size)
        gold = [gold_of(self.tasks[p.task], p) for p in prompts]
        rollouts = self.collector.demonstrate(prompts, inputs, gold)
        batch = self.pack(rollouts, torch.ones(len(rollouts)))
        metrics = self.update(batch)
        return {k: metrics[k] for k in ("loss", "grad_norm", "learning_rate")}

    def rl_step(self, stage: RlStage) -> dict[str, float]:
        """Sample, score, reinforce."""
        prompts, inputs = self.take(stage.prompts_per_step)
        with self.clock("generate"):
            rollouts = self.collector.collect(prompts, inputs, stage.group_size, self.sampling(), version=self.at.step)
        with self.clock("judge"):
            scores = self.judge.score(cases_of(rollouts), [self.weights[r.prompt.task] for r in rollouts])
        self.report_failures(scores, rollouts)
        advantages_N = self.algorithm.advantages(rollouts, scores)
        self.keep(rollouts, scores, advantages_N)
        update = self.update(self.pack(rollouts, advantages_N))
        metrics = rl_metrics(rollouts, scores, advantages_N) | update
        self.notice(metrics)
        return metrics

    # -- their parts ----------------------------------------------------------------------------------------------------

    def take(self, n: int) -> tuple[list[Prompt], list[PromptInputs]]:
        """The next n prompts and their inputs. One whose image is broken is named in errors.jsonl, quarantined and replaced;
        when that befalls more than a tenth of the prompts, the run stops."""
        prompts: list[Prompt] = []
        inputs: list[PromptInputs] = []
        with self.clock("process"):
            while len(prompts) < n:
                place = self.source.draw()
                if place in self.quarantine:
                    continue
                task, name = place[0], f"item {place[1]}"
                try:
                    prompt = self.source[place]
                    name = prompt.id or name
                    inputs.append(self.policy.encode(prompt))
                    prompts.append(prompt)
                except PluginError:
                    raise
                except UserError as error:
                    self.quarantine.add(place)
                    self.warn(f"{task} {name}", f"left out {name}: {error}")
                    tolerated = min(2 + sum(self.source.taken.values()) // 10, len(self.source) - 1)
                    if len(self.quarantine) > tolerated:
                        raise UserError(
                            f"step {self.at.step + 1}: {len(self.quarantine)} prompts are broken so far, "
                            f"see {self.folder.path / 'errors.jsonl'}: "
                            f"mend or remove them, then go on with --resume; the last: {error}"
                        ) from error
        return prompts, inputs

    def sampling(self) -> Sampling:
        generate = self.config.generate
        return Sampling(
            max_tokens=generate.max_tokens,
            temperature=generate.temperature,
            seed=derive(self.config.seed, "sample", self.at.step),
        )

    def pack(self, rollouts: Sequence[Rollout], advantages_N: torch.Tensor) -> Batch:
        shared = self.config.train.packing != "per-completion" and self.policy.family.shares_prefix
        with self.clock("update"):
            return pack(
                rollouts,
                advantages_N,
                self.policy,
                shared_prefix=shared,
                budget=self.config.train.micro_batch_tokens,
                keep_zero=self.learner.kl > 0,
            )

    def report_failures(self, scores: Sequence[Score], rollouts: Sequence[Rollout]) -> None:
        """Write failed scores down; stop the run when there are too many of them."""
        failed = [(s, r) for s, r in zip(scores, rollouts, strict=True) if s.failed]
        for score, rollout in failed[:8]:
            self.folder.error(self.at.step + 1, f"{rollout.prompt.task} {rollout.prompt.id}", score.detail)
        if len(failed) > self.config.judge.failure_limit * len(scores):
            raise UserError(
                f"{len(failed)} of {len(scores)} scores of step {self.at.step + 1} failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {failed[0][0].detail}"
            )

    def notice(self, metrics: Mapping[str, float]) -> None:
        """Say so, once, when the run goes on and nothing is learned."""
        self.idle = self.idle + 1 if metrics["zero_spread_share"] == 1 else 0
        if self.idle == IDLE_STEPS:
            why = f"every completion of a prompt scored the same (reward {metrics.get('reward/mean', 0.0):.3g} on average)"
            if (cut := metrics["length/truncated_share"]) > 0.5:
                why += f", and {cut:.0%} were cut off at generate.max_tokens = {self.config.generate.max_tokens}"
            cure = "look at the rollouts in the report; a warm start (an sft stage), an easier task or other verifiers may help"
            self.warn("rl", f"{IDLE_STEPS} steps in a row taught nothing: {why}: {cure}")

    def warn(self, where: str, what: str) -> None:
        """Something that a person should know and that doesn't end the run."""
        self.folder.error(self.at.step + 1, where, what)
        self.progress.note(what)

    def update(self, batch: Batch) -> dict[str, float]:
        with self.clock("update"):
            self.consistent, before = False, self.learner.steps
            try:
                return self.learner.update(batch, self.at.stage_step)
            except UserError as error:
                raise UserError(f"step {self.at.step + 1}: {error}") from error
            finally:
                self.consistent = self.learner.steps == before  # `step` makes it so again, once the step is counted

    def keep(self, rollouts: Sequence[Rollout], scores: Sequence[Score], advantages_N: torch.Tensor) -> None:
        """Record some rollouts for people, whole groups where possible."""
        every, step = self.config.record.rollouts_every, self.at.step + 1
        if every and (step == 1 or step % every == 0 or self.at.stage_step in (0, self.config.stages[self.at.stage].steps - 1)):
            with self.clock("other"):
                chosen = list(zip(rollouts, scores, advantages_N.tolist(), strict=True))[: self.config.record.rollouts]
                self.folder.rollouts(step, [rollout_row(*each) for each in chosen])

    @contextlib.contextmanager
    def clock(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._timed[part] = self._timed.get(part, 0.0) + time.perf_counter() - started

    # -- stages ---------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """All stages, from wherever the run is."""
        while True:
            stage = self.config.stages[self.at.stage]
            self.prepare(stage)
            if self.at.step == 0:
                self.rehearse()
            if self.at.stage == self.before and "before" not in self.at.figures:
                self.evaluate(("before", "best", "last"))
            self.progress.stage_started(self.at.stage, len(self.config.stages), stage, self.at.stage_step)
            self.look(stage)  # if a stop came before it
            while self.at.stage_step < stage.steps:
                self.step(stage)
            if self.at.stage + 1 == len(self.config.stages):
                break
            self.at.stage, self.at.stage_step, self.at.source = self.at.stage + 1, 0, {}
        if self.at.evaluated_step != self.at.step:
            self.evaluate(("last",))
        self.save()

    def rehearse(self) -> None:
        """Say what stands against learning anything, before time is spent on it."""
        verifiers = {t.id: list(dict.fromkeys([*self.weights[t.id], metric_of(self.config, t.id)])) for t in self.config.tasks}
        limit = self.config.generate.max_tokens
        for what in doubts(self.tasks, self.source.prompts, verifiers, self.collector, self.judge, limit):
            self.warn("gold completions", what)

    def look(self, stage: SftStage | RlStage) -> None:
        """The evaluation that is due after this step, unless it was made."""
        every = self.config.evaluate.every
        due = isinstance(stage, RlStage) and every and self.at.stage_step and self.at.stage_step % every == 0
        if due and self.at.evaluated_step != self.at.step:
            self.evaluate(("last",))

    def prepare(self, stage: SftStage | RlStage) -> None:
        """The prompts, the optimiser and the algorithm of a stage."""
        config = self.config
        seed = derive(config.seed, "source", self.at.stage)
        self.quarantine, self.idle = set(), 0
        self.__dict__.pop("learner", None)  # its optimiser's memory is free before the next one's is taken
        self.source = Source(
            {t: prompts_of(t, task, stage.split, config.seed) for t, task in self.tasks.items()},
            {t.id: t.weight for t in config.tasks},
            seed,
        )
        if self.at.source:
            self.source.restore(self.at.source)
        if isinstance(stage, SftStage):
            self.learner = Learner(self.policy, stage, negative_log_likelihood, "token")
        else:
            self.algorithm = load_algorithm(stage.algorithm, stage.settings)
            self.learner = Learner(
                self.policy,
                stage,
                self.algorithm.loss,
                self.algorithm.normalise,
                config.generate.temperature,
                reference=frozen_copy(self.policy) if stage.kl else None,
                gap_limit=config.limits.logprob_gap,
            )
        if self.resume and self.at.stage_step:
            checkpoint.restore(*self.resume, self.learner)
        self.resume = None

    def step(self, stage: SftStage | RlStage) -> None:
        started = time.perf_counter()
        self._timed = {"process": 0.0, "generate": 0.0, "judge": 0.0, "update": 0.0, "other": 0.0}
        metrics = self.sft_step(stage) if isinstance(stage, SftStage) else self.rl_step(stage)
        self.at.step += 1
        self.at.stage_step += 1
        self.at.source = self.source.state()
        self.consistent = True
        total = time.perf_counter() - started
        self._timed["other"] = total - sum(v for k, v in self._timed.items() if k != "other")
        metrics |= {f"time/{k}": v for k, v in self._timed.items()} | {"time/step": total}
        for part, seconds in self._timed.items():
            self.at.seconds[part] = self.at.seconds.get(part, 0.0) + seconds
        self.folder.metrics(self.at.step, stage.kind, metrics)
        self.progress.step_finished(self.at.step, metrics)
        self.observe("mmrl_step_finished", run=self.folder, step=self.at.step, metrics=metrics)
        self.look(stage)
        every = self.config.checkpoint.every
        if every and self.at.step % every == 0:
            self.save()
        if self.stop:
            raise KeyboardInterrupt

    def evaluate(self, names: Sequence[str]) -> None:
        """Figures on held-out prompts, kept under these names; a new best one is kept with its weights."""
        if not self.config.evaluate.n:
            return
        started, figures = time.perf_counter(), []
        for entry in self.config.tasks:
            figure, scores = self.evaluator(entry.id)
            for score in [s for s in scores if s.failed][:8]:
                self.folder.error(self.at.step, f"evaluation of {entry.id}", score.detail)
            self.folder.evaluation(self.at.step, self.config.stages[self.at.stage].kind, figure.as_json())
            figures.append(figure)
        found = {f.task: f.as_json() for f in figures}
        for name in names:
            self.at.figures[name] = found
        self.at.evaluated_step = self.at.step
        self.at.seconds["evaluate"] = self.at.seconds.get("evaluate", 0.0) + time.perf_counter() - started
        self.progress.evaluated(self.at.step, figures)
        if _mean(found) > _mean(self.at.figures.get("best", {})) or "best" in names:
            self.at.figures["best"], self.at.best_step = found, self.at.step
            if self.at.step:
                self.save()

    def save(self) -> None:
        """A checkpoint of this moment."""
        started = time.perf_counter()
        path = self.folder.checkpoint_dir(self.at.step)
        checkpoint.save(path, self.policy, self.learner, vars(self.at))
        best = None if self.at.best_step is None else self.folder.checkpoint_dir(self.at.best_step)
        checkpoint.prune(self.folder.checkpoints(), self.config.checkpoint.keep, best)
        self.at.seconds["other"] = self.at.seconds.get("other", 0.0) + time.perf_counter() - started

    def observe(self, hook: str, **arguments: Any) -> None:
        """Tell plugins; one that fails is written down and does not stop the run."""
        for name, caller in plugins.registry().callers(hook):
            try:
                caller(**arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer must not end a run
                self.folder.error(self.at.step, f"plugin {name}: {hook}", f"{type(error).__name__}: {error}")
                self.progress.note(f"plugin {name} failed in {hook}: {error}")

    def summary(self) -> dict[str, Any]:
        seconds = {
            "total": 0.0,
            "process": 0.0,
            "generate": 0.0,
            "judge": 0.0,
            "update": 0.0,
            "evaluate": 0.0,
            "other": 0.0,
            **self.at.seconds,
        }
        seconds["total"] = sum(v for k, v in seconds.items() if k != "total")
        figures = {
            name: {
                task: {k: f[k] for k in ("metric", "value", "low", "high", "n", "extra")}
                for task, f in self.at.figures.get(name, {}).items()
            }
            for name in ("before", "best", "last")
        }
        memory = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}
        if self.policy.device.type == "cuda":
            memory["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated(self.policy.device) / 2**20)
        return (
            figures
            | {"steps": self.at.step, "best_step": self.at.best_step, "seconds": {k: round(v, 3) for k, v in seconds.items()}}
            | memory
        )


def task_weights(config: RunConfig) -> dict[str, dict[str, float]]:
    """Task id -> verifier id -> weight."""
    weights = {t.id: dict(t.verifiers or plugins.registry().get("tasks", t.id).verifiers) for t in config.tasks}
    for task, verifiers in weights.items():
        if not verifiers:
            raise UserError(
                f'task {task!r} names no verifiers: give some in the run file, [[tasks]] verifiers = {{ "plugin/name" = 1.0 }}'
            )
    return weights


def _mean(figures: Mapping[str, Mapping[str, Any]]) -> float:
    return sum(f["value"] for f in figures.values()) / len(figures) if figures else -torch.inf
