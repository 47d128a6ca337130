"""A run is a list of stages; a stage is a list of steps (`mmrl.train.stages`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import LimitReached, UserError, shorten
from mmrl.api.sampling import Group
from mmrl.compute import ranks
from mmrl.compute.progress import Progress
from mmrl.compute.rank_errors import Stopped
from mmrl.config.sections import RlStage, SftStage, Training, limit_of
from mmrl.evaluation.pairs import evaluator_of
from mmrl.evaluation.results import Evaluation
from mmrl.judge import Judge
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.vision_cache import vision_cache
from mmrl.registry import plugins
from mmrl.rollout.collector import Collector, make_collector
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.run_folder.writer import RunFolder
from mmrl.train import checkpoint
from mmrl.train.alarms import AlarmEvent, AlarmMonitor, AlarmStop
from mmrl.train.checks.gold_rewards import gold_warnings
from mmrl.train.metrics import StepTimer, memory, peak_memory
from mmrl.train.position import Position
from mmrl.train.sampling.condition import stage_condition
from mmrl.train.setup import Setup
from mmrl.train.smoke_proof import SmokeProof
from mmrl.train.stages import Steps, run_step, steps_of
from mmrl.train.trackers import Trackers
from mmrl.train.update.packer import Packer, packer_of

LOST_STEPS = 3
"""The run stops after so many steps in a row in which every episode was lost."""


class Run:
    """A run: the policy, its tasks, and everything that a step uses."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        policy: Policy,
        judge: Judge,
        progress: Progress,
        teacher: Callable[[int], Policy | None],
        collector: Collector | None = None,
        packer: Packer | None = None,
    ) -> None:
        """teacher: loads the teacher of a distill stage, by the stage's index; returns None for an expert. collector, packer:
        made here if None."""
        config = setup.config
        self.setup, self.config, self.tasks, self.folder = setup, config, setup.tasks, folder
        self.policy, self.judge, self.progress, self.teacher = policy, judge, progress, teacher
        self.collector = collector or make_collector(config, setup.tasks, policy)
        self.packer = packer or packer_of(config, policy)
        setup.set_image_processing(policy.image_processing)
        self.evaluator = evaluator_of(setup, self.collector, judge, policy)
        self.at = Position()
        self.steps: Steps
        self.watch = AlarmMonitor(
            config.limits,
            config.judge,
            setup.alarms,
            acts=any(task.simulation is not None for task in setup.tasks.values()),
            entropy_dims=[_entropy_dims(policy, stage) for stage in config.stages],
        )
        self.trackers = Trackers(config, folder, self.progress.note, config.record.trackers if ranks.is_first() else [])
        self.resume: tuple[Path, Mapping[str, torch.Tensor]] | None = None
        """Checkpoint folder and learner state that the next `prepare` restores."""
        self.stop = False
        """Set from outside: stop at the end of this step."""
        self.consistent = True
        """Whether the weights are those after `at.step` steps. False in the middle of an update."""
        self.clock = StepTimer()
        """Times the parts of a step: `with clock(PART):` counts as `time/PART`."""
        self.proof = SmokeProof() if config.smoke else None
        self._failing: set[tuple[str, str]] = set()
        """(plugin, hook) of observers that have failed, which are noted once."""
        self._lost_steps: set[int] = set()
        """The latest steps in a row in which every episode was lost; a step may report several times."""

    # -- called by steps --------------------------------------------------------------------------------------------------

    def sampling(self, task: str, seed: int, temperature: float | None = None) -> SamplingParams:
        """The sampling parameters of a task's completions. task: its label, or `""` for no task in particular."""
        generate, entry = self.config.generate, self.setup.entries.get(task)
        stage = self.config.stages[self.at.stage]
        return SamplingParams(
            max_tokens=limit_of(self.config, self.at.stage, entry)[0],
            temperature=generate.temperature if temperature is None else temperature,
            top_p=generate.top_p,
            top_k=generate.top_k,
            stop=generate.stop,
            seed=seed,
            routes=isinstance(stage, RlStage) and stage.asks_routes,
        )

    def report_failures(self, groups: Sequence[Group]) -> None:
        """Write failed scores to `errors.jsonl`. Raises LimitReached if too many failed, UserError if too many episodes were
        lost."""
        scored = [(s, g.prompt) for g in groups for s in g.scores]
        failed = [(s, p) for s, p in scored if s.failed]
        for score, prompt in failed[:8]:
            self.folder.error(self.at.step + 1, f"{prompt.task} {prompt.id}", score.detail)
        gone = sum(s.lost for s, _ in failed)
        self._lost_steps = self._lost_steps | {self.at.step} if gone and gone == len(scored) else set()
        if len(self._lost_steps) >= LOST_STEPS:
            raise UserError(
                f"every episode of {LOST_STEPS} steps in a row was lost, up to step {self.at.step + 1}: see the environments' "
                f"errors in {self.folder.path}/errors.jsonl"
            )
        if len(failed) - gone > self.config.judge.failure_limit * (len(scored) - gone):
            raise LimitReached(
                f"{len(failed) - gone} of {len(scored) - gone} scores of step {self.at.step + 1} failed, more than "
                f"judge.failure_limit = {self.config.judge.failure_limit} allows; the first: "
                f"{next(s.detail for s, _ in failed if not s.lost)}",
                alarm="failure_limit",
            )

    def warn(self, where: str, what: str, step: int | None = None) -> None:
        """Write a warning to `errors.jsonl` and show it; the run goes on. step: by default the current one."""
        self.folder.error(self.at.step + 1 if step is None else step, where, what)
        self.progress.note(what)

    def alarms(self, where: str, read: Callable[[], Sequence[AlarmEvent]]) -> None:
        """Write new alarms to `errors.jsonl` and show them, also if another one ends the run. read: is called on the first rank,
        as times and memory differ between ranks. Raises AlarmStop, a LimitReached on the other ranks."""
        stop: AlarmStop | None = None
        try:
            found = ranks.broadcast_from_first(read)
        except AlarmStop as error:
            found, stop = error.warnings, error
        for event in found:
            self.folder.error(self.at.step, where, event.text, alarm=event.alarm, task=event.task)
            self.progress.note(event.text)
        if stop:
            raise stop

    # -- stages ---------------------------------------------------------------------------------------------------------

    def run_stages(self) -> None:
        """Run all stages, from the run's current position."""
        self.trackers.start(self.at.step)
        while True:
            stage = self.config.stages[self.at.stage]
            self.prepare(stage)
            if self.at.step == 0:
                self.check_gold_rewards()
            if self.at.stage == self.setup.opening and "before" not in self.at.figures:
                self.evaluate(("before", "best", "last"))
            self.progress.stage_started(self.at.stage, len(self.config.stages), stage, self.at.stage_step)
            self.look(stage)  # if the run stopped before this evaluation
            while self.at.stage_step < stage.steps:
                self.step(stage)
            if self.at.stage + 1 == len(self.config.stages):
                break
            self.steps.learner.optimizer.adopt()
            self.at.stage, self.at.stage_step, self.at.source, self.at.memory = self.at.stage + 1, 0, {}, {}
        if self.at.evaluated_step != self.at.step:
            self.evaluate(("last",))
        self.save()

    def check_gold_rewards(self) -> None:
        """Warn before the first step if gold completions don't fit or don't get the highest reward."""
        setup = self.setup
        verifiers = {t: {v: setup.verifiers[v] for v in (*setup.weights[t], setup.metrics[t])} for t in self.tasks}
        limits = {t: limit_of(self.config, self.at.stage, setup.entries[t]) for t in self.tasks}
        for what in gold_warnings(
            self.tasks, self.steps.source.prompts, verifiers, self.collector, self.judge, limits, setup.entries, self.config.smoke
        ):
            self.warn("gold completions", what)

    def look(self, stage: Training) -> None:
        """Evaluate if an evaluation is due after this step and hasn't been made."""
        every = self.config.evaluate.every
        due = not isinstance(stage, SftStage) and every and self.at.stage_step and self.at.stage_step % every == 0
        if due and self.at.evaluated_step != self.at.step:
            self.evaluate(("last",))

    def prepare(self, stage: Training) -> None:
        """Make a stage's prompts, optimiser and sampling rules; restore them if the run is resumed."""
        self.collector.sleep()  # frees memory for the teacher, the optimiser and the reference
        following = ranks.run_on_all(lambda: steps_of(self, stage))  # one rank alone may lack a teacher's files
        if "steps" in self.__dict__:
            self.steps.learner.close()
            del self.steps.learner  # frees the optimiser's memory before the next one is made
            self.steps.close()
        self.steps = following
        self.collector.critic, self.collector.with_expert = None, False  # reset what the previous stage set
        self.steps.begin()
        self.evaluator.shown = stage_condition(stage)
        if self.resume:
            with checkpoint.checkpoint_errors(self.resume[0]):
                if self.at.source:
                    self.steps.source.restore(self.at.source)
                if self.at.stage_step:
                    self.steps.learner.load_state(self.resume[1])
                    self.steps.load_beside(self.resume[0])
        self.resume = None
        if ranks.is_first():  # which writes it into checkpoints
            self.at.data = self.setup.fingerprints(self.at.stage)

    def step(self, stage: Training) -> None:
        started = time.perf_counter()
        ranks.reset_wait_time()
        self.clock.seconds = {"process": 0.0, "generate": 0.0, "judge": 0.0, "update": 0.0, "other": 0.0}
        if self.proof:
            self.proof.begin(self.policy)
        divided = self.config.compute.sequence_parallel > 1  # teams look together in an update, which reads nothing that is kept
        with vision_cache(0 if divided else self.config.train.vision_cache_mb << 20):
            metrics = run_step(self.steps, stage)
        if self.proof:
            algorithm = self.setup.algorithms[self.at.stage]
            compares = algorithm is None or algorithm.compares
            self.proof.end(self.at.stage + 1, stage, self.at.step + 1, self.policy, metrics, compares)
        self.at.step += 1
        self.at.stage_step += 1
        self.at.source = self.steps.state()
        self.steps.step_ended()
        self.consistent = True
        total = time.perf_counter() - started
        self.clock.seconds["other"] = total - sum(v for k, v in self.clock.seconds.items() if k != "other")
        metrics |= {f"time/{k}": v for k, v in self.clock.seconds.items()} | {"time/step": total} | ranks.wait_time()
        metrics |= memory(self.policy.device)
        for part, seconds in self.clock.seconds.items():
            self.at.seconds[part] = self.at.seconds.get(part, 0.0) + seconds
        self.folder.metrics(self.at.step, stage.kind, metrics)
        self.progress.step_finished(self.at.step, metrics)
        self.trackers.log(self.at.step, metrics)
        self.observe("mmrl_step_finished", run=self.folder, step=self.at.step, metrics=dict(metrics))
        self.alarms(stage.kind, lambda: self.watch.step(self.at.stage, self.at.step, metrics))
        self.look(stage)
        every = self.config.checkpoint.every
        if every and self.at.step % every == 0:
            self.save()
        if ranks.any_rank(self.stop):
            self.stop = True
            raise Stopped

    def evaluate(self, names: Sequence[str]) -> None:
        """Evaluate on held-out prompts and keep the figures under these names; save a checkpoint if they are the best so far."""
        if not self.config.evaluate.num_prompts:
            return
        started = time.perf_counter()
        figures: list[Evaluation] = []
        items: list[dict[str, Any]] = []
        episodes: list[dict[str, Any]] = []
        stage = self.config.stages[self.at.stage]
        with self._averaged():
            for task in self.tasks:
                figure, scores = self.evaluator(task)
                items += figure.rows()
                episodes += figure.episodes
                for score in [s for s in scores if s.failed][:8]:
                    self.folder.error(self.at.step, f"evaluation of {task}", score.detail)
                self.folder.evaluation(self.at.step, stage.kind, figure.as_json())
                for what in figure.left_out:
                    self.warn(f"evaluation of {task}", f"left out {what}", self.at.step)
                self.trackers.evaluation(self.at.step, figure)
                figures.append(figure)
        self.folder.items(self.at.step, items)
        self.folder.episodes(self.at.step, episodes)
        by_task = {f.task: f.as_json() for f in figures}
        for name in names:
            self.at.figures[name] = by_task
        self.at.evaluated_step = self.at.step
        self.at.seconds["evaluate"] = self.at.seconds.get("evaluate", 0.0) + time.perf_counter() - started
        self.progress.evaluated(self.at.step, figures)
        if _mean(by_task) > _mean(self.at.figures.get("best", {})) or "best" in names:
            self.at.figures["best"], self.at.best_step = by_task, self.at.step
            if self.at.step:
                self.save()
        self.folder.keep_episodes((self.at.best_step, self.at.step))
        self.alarms("evaluation", lambda: self.watch.evaluated(self.at.step, figures))

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Inside the block the policy and the sampler use the mean weights, if the stage keeps them."""
        optimizer = self.steps.learner.optimizer
        with optimizer.averaged():
            yield
            if optimizer.averages:
                self.collector.sleep()

    def save(self) -> None:
        """Save a checkpoint; remove older ones as `[checkpoint]` says."""
        started = time.perf_counter()
        path = self.folder.checkpoint_dir(self.at.step)
        best = None if self.at.best_step is None else self.folder.checkpoint_dir(self.at.best_step)
        checkpoint.save(
            path,
            self.policy,
            self.steps.learner,
            vars(self.at),
            self.config.checkpoint.shards,
            self.steps.save_beside,
            self.steps.save_own,
        )
        keep = self.config.checkpoint.keep
        for what in ranks.broadcast_from_first(lambda: checkpoint.prune(self.folder.checkpoints(), keep, best)):
            self.warn("checkpoints", what, self.at.step)
        self.at.seconds["other"] = self.at.seconds.get("other", 0.0) + time.perf_counter() - started

    def observe(self, hook: str, **arguments: Any) -> None:
        """Call a hook of all plugins, on the first rank only. A plugin's exception is written to `errors.jsonl` and the first is
        shown; the run goes on."""
        if not ranks.is_first():
            return
        for name, caller in plugins.registry().callers(hook):
            try:
                caller(**arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer must not end a run
                self.folder.error(self.at.step, f"plugin {name}: {hook}", f"{type(error).__name__}: {error}")
                if (name, hook) not in self._failing:
                    self.progress.note(f"plugin {name} failed in {hook}: {shorten(error)}; see errors.jsonl for further failures")
                self._failing.add((name, hook))

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
                task: {k: f[k] for k in ("metric", "value", "low", "high", "n", "extra", "intervals") if k in f}
                for task, f in self.at.figures.get(name, {}).items()
            }
            for name in ("before", "best", "last")
        }
        return (
            figures
            | {"steps": self.at.step, "best_step": self.at.best_step, "seconds": {k: round(v, 3) for k, v in seconds.items()}}
            | peak_memory(self.policy.device)
            | ({"smoke": list(self.proof.seen.values())} if self.proof else {})
        )


def _mean(figures: Mapping[str, Mapping[str, Any]]) -> float:
    return sum(f["value"] for f in figures.values()) / len(figures) if figures else -torch.inf


def _entropy_dims(policy: Policy, stage: Training) -> int:
    """The number of normal distributions whose entropies are added up in one `entropy` of the stage's metrics."""
    actions = policy.chunk if isinstance(stage, RlStage) and stage.ratio == "chunk" else 1
    return policy.continuous_dims * actions
