"""The base class of the steps of all stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.layout import Ratio
from mmrl.api.types import Prompt, Rollout, Score
from mmrl.compute import ranks
from mmrl.compute.rank_errors import is_heard
from mmrl.config.sections import RlStage, Training
from mmrl.config.training import ComparedTraining
from mmrl.data.prompts import PromptIndex, gold_completion
from mmrl.policies.batches import Batch, Credit, ones
from mmrl.run_folder.rollouts import draw_completion, gold_with_places, overlays_of, rollout_row, select_rollouts, with_frames
from mmrl.train.sampling.groups import Sampled
from mmrl.train.sampling.sampler import own_shard
from mmrl.train.sampling.source import EncodedPrompt, PromptSource
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import Dealt, PackOptions

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class Steps:
    """Base class of the steps of all stages: the source of prompts, the packing of rollouts, and the learner."""

    learner: Learner
    stage: Training
    has_advantages: ClassVar[bool] = True
    """Whether `record` gets advantages, and not only marks of what is learned from."""

    def __init__(
        self, run: StageContext, stage: Training, history: bool = False, check: Callable[[Prompt], object] | None = None
    ) -> None:
        """history: the source of prompts keeps the rewards that its `reward_history` returns. check: see `PromptSource`."""
        self.run, self.config = run, run.config
        self.source = PromptSource(run, stage, history=history, check=check)

    def begin(self) -> None:
        """Make the learner. Not done in `__init__`, which may raise while the previous stage's learner can still be saved."""
        raise NotImplementedError

    def move_reference(self) -> None:
        """Let the reference model follow the policy behind the update of a step, if this is one in which it does."""
        stage, reference = self.stage, self.learner.reference
        assert isinstance(stage, ComparedTraining)
        if reference and stage.reference_every and (self.run.at.stage_step + 1) % stage.reference_every == 0:
            reference.follow()

    def state(self) -> dict[str, Any]:
        """The state with which the source of prompts continues after this step."""
        return self.source.state()

    def step_ended(self) -> None:
        """A step has ended, and was counted: keep what a checkpoint holds of it and the next step's sampling changes."""

    def save_beside(self, folder: Path) -> None:
        """Write what a resume needs besides the learner's state into a checkpoint's folder. Called on the first rank."""

    def save_own(self, folder: Path) -> None:
        """Write there what this rank alone knows. Called on all ranks, after `save_beside` on the first one."""

    def load_beside(self, folder: Path) -> None:
        """Read what `save_beside` and `save_own` wrote."""

    def close(self) -> None:
        """Drop what was sampled for later steps."""

    def __call__(self) -> dict[str, float]:
        """Run one step; return its metrics."""
        raise NotImplementedError

    def take(self, n: int) -> dict[int, EncodedPrompt | None]:
        """Read the next n prompts: number -> prompt, None for those of other ranks."""
        return dict(enumerate(self.source.read(n, self.run.at.moment, self.run.clock)))

    def demonstrated(self, n: int) -> list[Rollout]:
        """Gold completions of the next n prompts."""
        rollouts = ranks.gather_sharded(
            functools.partial(self._demonstrate, own_shard(self.take(n))), lambda rollout: rollout.to_stub()
        )
        return [replace(r, group=number) for number, r in enumerate(rollouts)]

    def demonstrations_of(self, places: Sequence[PromptIndex]) -> list[Rollout]:
        """Gold completions of these prompts."""

        def work() -> dict[int, Rollout]:
            own = {n: place for n, place in enumerate(places) if ranks.owns(n)}
            prompts = [self.source.shown(self.source[place]) for place in own.values()]
            encoded = zip(own.values(), prompts, self.run.collector.encode(prompts), strict=True)
            return self._demonstrate({n: EncodedPrompt(*one) for n, one in zip(own, encoded, strict=True)})

        found = ranks.gather_sharded(work, lambda rollout: rollout.to_stub())
        return [replace(r, group=number) for number, r in enumerate(found)]

    def _demonstrate(self, taken: Mapping[int, EncodedPrompt]) -> dict[int, Rollout]:
        encoded = taken.values()
        gold = [gold_completion(self.run.tasks[one.prompt.task], one.prompt) for one in encoded]
        rollouts = self.run.collector.demonstrate([one.prompt for one in encoded], [one.inputs for one in encoded], gold)
        return dict(zip(taken, rollouts, strict=True))

    @property
    def ratio(self) -> Ratio:
        """The unit of the probability ratio in this stage: a token, or what `stage.ratio` says."""
        return self.stage.ratio if isinstance(self.stage, RlStage) else "token"

    def pack(self, rollouts: Sequence[Rollout], credit: Credit, *, keep_zero: bool | None = None) -> list[Batch]:
        """The batches of one optimizer step; see `mmrl.train.update.packer.Packer.pack`."""
        keep = self.learner.needs_every_rollout if keep_zero is None else keep_zero
        with self.run.clock("update"):
            return self.run.packer.pack(rollouts, credit, PackOptions(keep_zero=keep, ratio=self.ratio))

    def update(self, batches: Dealt, **options: Any) -> dict[str, float]:
        """Update the policy. Until the update is complete, the weights belong to no step and can't be saved."""
        run = self.run
        with run.clock("update"):
            ranks.meet()
            self.sleep()
            whole, before = run.consistent, self.learner.optimizer.steps  # an update may follow another within a step
            run.consistent = False
            try:
                if whole and (every := self.stage.optimizer_every) and run.at.stage_step and run.at.stage_step % every == 0:
                    self.learner.optimizer.forget()
                return self.learner.update(batches, run.at.stage_step, **options)
            except UserError as error:
                if is_heard(error):  # the rank that met it says at which step
                    raise
                raise error.at(f"step {run.at.step + 1}") from error.__cause__
            finally:
                # `Run.step` sets it again once the step is counted
                run.consistent = whole and self.learner.optimizer.steps == before

    def sleep(self) -> None:
        """Free the sampler's memory for the learner."""
        self.run.collector.sleep()

    def record(self, sampled: Sampled, credit: Credit) -> None:
        """Write some rollouts to the run folder, see `select_rollouts`."""
        record, run = self.config.record, self.run
        every, step = record.rollouts_every, run.at.step + 1
        if every and (step == 1 or step % every == 0 or run.at.stage_step in (0, self.stage.steps - 1)):
            with run.clock("other"):
                kept = select_rollouts(sampled.rollouts, credit.taught, record.rollouts)
                advantages = credit.advantages if credit.advantages.ndim == 1 else credit.advantages.sum(1)
                shown: Sequence[float | None] = advantages.tolist() if self.has_advantages else [None] * len(advantages)
                rows = list(zip(sampled.rollouts, sampled.scores, shown, strict=True))
                own = [n for n in kept if not rows[n][0].is_stub]
                made = ranks.gather_sharded(lambda: {n: self._row(*rows[n]) for n in own}, with_frames)
                run.folder.rollouts(step, made)
                run.trackers.rollouts(step)

    def _row(self, rollout: Rollout, score: Score, advantage: float | None) -> dict[str, Any]:
        """The row of a rollout in the run folder, with its task's drawing and overlays."""
        tasks, prompt = self.run.tasks, rollout.prompt
        drawing, overlays = draw_completion(tasks, rollout), overlays_of(tasks, rollout)
        return rollout_row(rollout, score, advantage, drawing, overlays, gold_with_places(tasks[prompt.task], prompt))

    def measure(self, rollouts: Sequence[Rollout], names: frozenset[str]) -> Mapping[str, torch.Tensor]:
        """See `mmrl.algorithms.signals.Measure`. The critic's values from collection are used as they are."""
        known = collected_values(rollouts, self.ratio) if "values" in names else {}
        missing = names - known.keys()
        if not missing:
            return known
        (batch,) = self.pack(rollouts, ones(rollouts), keep_zero=True)
        with self.run.clock("update"):
            ranks.meet()
            self.sleep()
            return {**self.learner.measure(batch, missing), **known}


def collected_values(rollouts: Sequence[Rollout], ratio: Ratio) -> dict[str, torch.Tensor]:
    """`values` [N, T] and `bootstrap` [N] of the collector's critic, 0 for rollouts without values; empty if no rollout has
    any."""
    values = [r.values(ratio) for r in rollouts]
    if all(values_L is None for values_L in values):
        return {}
    values_NT = torch.zeros(len(rollouts), max(r.num_targets(ratio) for r in rollouts))
    for n, values_L in enumerate(values):
        if values_L is not None:
            values_NT[n, : len(values_L)] = values_L
    return {"values": values_NT, "bootstrap": torch.tensor([r.bootstrap for r in rollouts])}
