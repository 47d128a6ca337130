"""What the steps of all stages share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mmrl.api.errors import PluginError, UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout
from mmrl.compute import ranks
from mmrl.config.sections import RlStage, Training
from mmrl.data.prompts import Place, Source, gold_of, tolerated
from mmrl.policies.batches import Batch, Credit, ones
from mmrl.rollout.generate.sampling import Sampling
from mmrl.train.sampling.gather import Taken, own_of
from mmrl.train.sampling.groups import light
from mmrl.train.stages.ahead import Moment
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import Dealt

if TYPE_CHECKING:
    from mmrl.train.stages.context import Context


class Steps:
    """What the steps of all stages share: where prompts come from, how they are packed, who learns."""

    source: Source
    learner: Learner
    stage: Training

    def __init__(self, run: Context, stage: Training, history: bool = False) -> None:
        self.run, self.config = run, run.config
        self.clock: Callable[[str], Any] = run.clock
        """Times what prompts and completions take."""
        self.quarantine: set[tuple[str, int]] = set()
        """(task, index) of this stage's prompts whose images can't be used."""
        rl = stage if isinstance(stage, RlStage) else None
        weights = self.config.weights(stage)
        self.source = Source(
            {t: run.setup.prompts(run.at.stage, t) for t in weights},
            weights,
            derive(self.config.seed, "source", run.at.stage),
            order=stage.order,
            adapt=rl.adapt if rl else "none",
            replay=rl.replay if rl else 0.0,
            replay_size=rl.replay_size if rl else 1,
            templates={t.label: t.prompt for t in self.config.tasks if t.prompt},
            history=history,
        )

    def begin(self) -> None:
        """Make the learner. Apart from the rest, which may refuse while the learner of the stage before can still be saved."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What the source of prompts needs to go on behind this step."""
        return self.source.state()

    def close(self) -> None:
        """Let go of what was sampled for later steps."""

    @property
    def moment(self) -> Moment:
        """What is being sampled for."""
        at = self.run.at
        return Moment(at.step, at.stage_step, at.step)

    def __call__(self) -> dict[str, float]:
        """One step; returns its metrics."""
        raise NotImplementedError

    def take(self, n: int) -> list[Taken | None]:
        """The next n prompts and their inputs; None for what another rank reads. One whose image is broken is named in
        errors.jsonl, quarantined and replaced; when that befalls more than a tenth of the prompts, the run stops."""
        taken: list[Taken | None] = []
        with self.clock("process"):
            while len(taken) < n:
                drawn = self._draw(n - len(taken))
                read = functools.partial(self._read, {k: place for k, (place, _) in enumerate(drawn) if ranks.is_mine(k)})
                for (place, before), one in zip(drawn, ranks.gathered(read, _fault), strict=True):
                    if isinstance(one, _Broken):
                        self._leave_out(place, one, before)
                    else:
                        taken.append(one)
        return taken

    def _draw(self, n: int) -> list[tuple[Place, int]]:
        """Where the next n prompts are, and how many were drawn until then."""
        drawn: list[tuple[Place, int]] = []
        while len(drawn) < n:
            place = self.source.draw()
            if place not in self.quarantine:
                drawn.append((place, sum(self.source.taken.values())))
        return drawn

    def _read(self, places: Mapping[int, Place]) -> dict[int, Taken | _Broken | None]:
        found: dict[int, Taken | _Broken | None] = {}
        for number, place in places.items():
            name = f"item {place[1]}"
            try:
                prompt = self.shown(self.source[place])
                name = prompt.id or name
                found[number] = place, prompt, self.run.collector.encode([prompt])[0]
            except PluginError:
                raise
            except UserError as error:
                found[number] = _Broken(name, str(error))
        return found

    def _leave_out(self, place: Place, broken: _Broken, drawn: int) -> None:
        if place in self.quarantine:  # it was drawn twice at once
            return
        self.quarantine.add(place)
        run = self.run
        run.warn(f"{place[0]} {broken.name}", f"left out {broken.name}: {broken.why}")
        if len(self.quarantine) > tolerated(drawn, len(self.source)):
            raise UserError(
                f"step {self.moment.step + 1}: {len(self.quarantine)} prompts are broken so far, "
                f"see {run.folder.path / 'errors.jsonl'}: mend or remove them, then go on with --resume; the last: {broken.why}"
            )

    def shown(self, prompt: Prompt) -> Prompt:
        """The prompt as the policy is to see it."""
        return prompt

    def demonstrated(self, n: int) -> list[Rollout]:
        """Gold completions of the next n prompts."""
        taken = dict(enumerate(self.take(n)))
        found = ranks.gathered(functools.partial(self._demonstrate, own_of(taken)), light)
        return [replace(r, group=number) for number, r in enumerate(found)]

    def _demonstrate(self, taken: Mapping[int, Taken]) -> dict[int, Rollout]:
        some = taken.values()
        gold = [gold_of(self.run.tasks[prompt.task], prompt) for _, prompt, _ in some]
        shown = self.run.collector.demonstrate([p for _, p, _ in some], [i for _, _, i in some], gold)
        return dict(zip(taken, shown, strict=True))

    def sampling(self, task: str, calls: int) -> Sampling:
        """How a task's completions are sampled in this step, for the `calls`-th time."""
        seed = derive(self.config.seed, "sample", self.moment.step)
        return self.run.sampling(task, derive(seed, calls) if calls else seed)

    def pack(self, rollouts: Sequence[Rollout], credit: Credit, *, keep_zero: bool | None = None) -> list[Batch]:
        """What an optimiser step learns from; see `mmrl.train.update.packer.Packer.pack`."""
        keep = self.learner.needs_every_rollout if keep_zero is None else keep_zero
        with self.run.clock("update"):
            return self.run.packer.pack(rollouts, credit, self.stage, keep_zero=keep)

    def update(self, batches: Dealt, **options: Any) -> dict[str, float]:
        """Let the learner learn; the weights are those of no step meanwhile."""
        run = self.run
        with run.clock("update"):
            self.rest()
            run.consistent, before = False, self.learner.optimizer.steps
            try:
                return self.learner.update(batches, run.at.stage_step, **options)
            except UserError as error:
                raise error.at(f"step {run.at.step + 1}") from error.__cause__
            finally:
                run.consistent = self.learner.optimizer.steps == before  # `Run.step` makes it so again, once the step is counted

    def rest(self) -> None:
        """The sampler gives its memory to the learner."""
        self.run.collector.rest()

    def measure(self, rollouts: Sequence[Rollout], names: frozenset[str]) -> Mapping[str, torch.Tensor]:
        """See `mmrl.algorithms.signals.Measure`."""

        def forward(names: frozenset[str]) -> Mapping[str, torch.Tensor]:
            (batch,) = self.pack(rollouts, ones(rollouts), keep_zero=True)
            with self.run.clock("update"):
                self.rest()
                return self.learner.measure(batch, names)

        return self.run.packer.measured(rollouts, self.stage, names, forward)


class _Broken(NamedTuple):
    """A prompt whose picture can't be used."""

    name: str
    why: str


def _fault(read: Taken | _Broken | None) -> _Broken | None:
    """What other ranks are told of a prompt that one read."""
    return read if isinstance(read, _Broken) else None
