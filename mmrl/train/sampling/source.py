"""The prompts of a stage, drawn and read for the policy; those that can't be used are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mmrl.api.errors import PluginError, UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt
from mmrl.compute import ranks
from mmrl.config.sections import RlStage, Training
from mmrl.data.prompts import GroupOutcome, PromptIndex, PromptStream, max_broken
from mmrl.policies.vlm.processing import PromptInputs
from mmrl.train.position import StepIndex
from mmrl.train.sampling.condition import stage_condition

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

EncodedPrompt = tuple[PromptIndex, Prompt, PromptInputs]
"""A prompt, where it stands in its task, and how the policy reads it."""
Clock = Callable[[str], Any]
"""Makes context managers that time a part of the work."""


class PromptSource(PromptStream):
    """A stage's prompts, as the policy reads them."""

    def __init__(self, run: StageContext, stage: Training, *, history: bool = False) -> None:
        """history: keep what `reward_history` tells."""
        self.run, self.shown = run, stage_condition(stage)
        self.quarantine: set[PromptIndex] = set()
        """The prompts whose pictures can't be used."""
        self.outcomes: list[GroupOutcome] = []
        """What `settle` will take into account."""
        rl, config = stage if isinstance(stage, RlStage) else None, run.config
        weights = config.weights(stage)
        super().__init__(
            {label: run.setup.prompts(run.at.stage, label) for label in weights},
            weights,
            derive(config.seed, "source", run.at.stage),
            order=stage.order,
            adapt=rl.adapt_task_weights if rl else "none",
            replay=rl.replay_share if rl else 0.0,
            replay_size=rl.replay_buffer_size if rl else 1,
            templates={t.label: t.prompt_template for t in config.tasks if t.prompt_template},
            history=history,
        )

    def upcoming(self, n: int) -> Prompts:
        """The next n prompts, which are drawn and read once a sampler reads them."""
        return Prompts(self, n)

    def tell(self, outcomes: Sequence[GroupOutcome]) -> None:
        """What came of groups that were learned from; it changes the draws that follow the next `settle`."""
        self.outcomes += outcomes

    def settle(self) -> None:
        """Take into account what was told. Nobody may be drawing meanwhile."""
        if self.outcomes:
            self.record_outcomes(self.outcomes)
            self.outcomes = []

    def read(self, n: int, at: StepIndex, clock: Clock) -> list[EncodedPrompt | None]:
        """The next n prompts; None for those that another learner process reads. One whose picture is broken is named in
        errors.jsonl, quarantined and replaced. UserError when that befalls more than a tenth of the prompts."""
        taken: list[EncodedPrompt | None] = []
        with clock("process"):
            while len(taken) < n:
                drawn = self._draw(n - len(taken))
                own = {k: place for k, (place, _) in enumerate(drawn) if ranks.owns(k)}
                for (place, before), one in zip(
                    drawn, ranks.gather_sharded(functools.partial(self._read, own), _fault), strict=True
                ):
                    if isinstance(one, _Broken):
                        self._leave_out(place, one, before, at)
                    else:
                        taken.append(one)
        return taken

    def _draw(self, n: int) -> list[tuple[PromptIndex, int]]:
        """Where the next n prompts are, and how many were drawn until then."""
        drawn: list[tuple[PromptIndex, int]] = []
        while len(drawn) < n:
            place = self.draw()
            if place not in self.quarantine:
                drawn.append((place, sum(self.taken.values())))
        return drawn

    def _read(self, places: Mapping[int, PromptIndex]) -> dict[int, EncodedPrompt | _Broken | None]:
        found: dict[int, EncodedPrompt | _Broken | None] = {}
        for number, place in places.items():
            name = f"item {place[1]}"
            try:
                prompt = self.shown(self[place])
                name = prompt.id or name
                found[number] = place, prompt, self.run.collector.encode([prompt])[0]
            except PluginError:
                raise
            except UserError as error:
                found[number] = _Broken(name, str(error))
        return found

    def _leave_out(self, place: PromptIndex, broken: _Broken, drawn: int, at: StepIndex) -> None:
        if place in self.quarantine:  # it was drawn twice at once
            return
        self.quarantine.add(place)
        run = self.run
        run.warn(f"{place[0]} {broken.name}", f"left out {broken.name}: {broken.why}")
        if len(self.quarantine) > max_broken(drawn, len(self)):
            raise UserError(
                f"step {at.step + 1}: {len(self.quarantine)} prompts are broken so far, "
                f"see {run.folder.path / 'errors.jsonl'}: mend or remove them, then go on with --resume; the last: {broken.why}"
            )


@dataclass(frozen=True, slots=True)
class Prompts:
    """The next n prompts of a source. Nothing is drawn before `read`, as a sampler that works ahead draws in its own thread and
    for its own step."""

    source: PromptSource
    n: int

    def read(self, at: StepIndex, clock: Clock) -> list[EncodedPrompt | None]:
        """See `PromptSource.read`."""
        return self.source.read(self.n, at, clock)


class _Broken(NamedTuple):
    """A prompt whose picture can't be used."""

    name: str
    why: str


def _fault(read: EncodedPrompt | _Broken | None) -> _Broken | None:
    """What other ranks get of a prompt that one read."""
    return read if isinstance(read, _Broken) else None
