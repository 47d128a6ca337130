"""The prompts of a stage: drawn, encoded for the policy, and left out if they are broken."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mmrl.api.errors import PluginError, UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt
from mmrl.compute import ranks
from mmrl.config.sections import RlStage, Training
from mmrl.data.curriculum import Curriculum
from mmrl.data.epoch_filter import EpochFilter
from mmrl.data.prompts import PromptIndex, max_broken
from mmrl.data.stream import GroupOutcome, PromptStream
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.train.position import StepIndex
from mmrl.train.sampling.condition import stage_condition

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

Clock = Callable[[str], Any]
"""Part -> context manager that times it."""


class EncodedPrompt(NamedTuple):
    """A prompt that was drawn."""

    place: PromptIndex
    prompt: Prompt
    inputs: PromptInputs
    """As the policy reads it."""
    earlier: int = 0
    """How often the same prompt comes before it among those that are sampled at once, by all ranks."""


class PromptSource(PromptStream):
    """The prompts of a stage, encoded for the policy."""

    def __init__(
        self, run: StageContext, stage: Training, *, history: bool = False, check: Callable[[Prompt], object] | None = None
    ) -> None:
        """history: keep the rewards that `reward_history` returns. check: raises UserError for a prompt that the stage can't use,
        which is then broken."""
        self.check = check
        self.run, self.shown = run, stage_condition(stage)
        self.quarantine: set[PromptIndex] = set()
        """The prompts with broken media."""
        self.outcomes: list[GroupOutcome] = []
        """The outcomes that the next `settle` records."""
        rl, config = stage if isinstance(stage, RlStage) else None, run.config
        weights = config.weights(stage)
        prompts = {label: run.setup.prompts(run.at.stage, label) for label in weights}
        counts = {label: len(found) for label, found in prompts.items()}
        super().__init__(
            prompts,
            weights,
            derive(config.seed, "source", run.at.stage),
            order=stage.order,
            adapt=rl.adapt_task_weights if rl else "none",
            replay=rl.replay_share if rl else 0.0,
            replay_size=rl.replay_buffer_size if rl else 1,
            templates={t.label: t.prompt_template for t in config.tasks if t.prompt_template},
            history=history,
            curriculum=Curriculum(rl.curriculum, counts) if rl and rl.curriculum else None,
            epoch_filter=EpochFilter(rl.epoch_filter, counts) if rl and rl.epoch_filter else None,
        )

    def upcoming(self, n: int) -> Prompts:
        """The next n prompts; they are drawn when a sampler reads them."""
        return Prompts(self, n)

    def tell(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Add outcomes of groups; they change the draws after the next `settle`."""
        self.outcomes += outcomes

    def settle(self, outcomes: Sequence[GroupOutcome] | None = None) -> None:
        """Record these outcomes, by default those added so far. Must not run while prompts are drawn."""
        if outcomes := self.unsettled() if outcomes is None else outcomes:
            self.record_outcomes(outcomes)

    def unsettled(self) -> list[GroupOutcome]:
        """The outcomes added so far, which the caller gives to `settle` at a time when no prompts are drawn."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def read(self, n: int, at: StepIndex, clock: Clock) -> list[EncodedPrompt | None]:
        """Draw and encode the next n prompts; None for those of other ranks. A broken prompt is reported in `errors.jsonl`, never
        drawn again, and replaced. Raises UserError if too many prompts are broken, see `max_broken`."""
        taken: list[EncodedPrompt | None] = []
        places: list[PromptIndex] = []
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
                        places.append(place)
        return [one and one._replace(earlier=n) for one, n in zip(taken, earlier_of(places), strict=True)]

    def _draw(self, n: int) -> list[tuple[PromptIndex, int]]:
        """(place, number of prompts drawn so far) of the next n prompts."""
        drawn: list[tuple[PromptIndex, int]] = []
        while len(drawn) < n:
            place = self.draw()
            if place not in self.quarantine:
                drawn.append((place, sum(self.taken.values())))
            elif self.epoch_filter:
                self.epoch_filter.leave_out(place)
        return drawn

    def _read(self, places: Mapping[int, PromptIndex]) -> dict[int, EncodedPrompt | _Broken | None]:
        found: dict[int, EncodedPrompt | _Broken | None] = {}
        for number, place in places.items():
            name = f"item {place[1]}"
            try:
                prompt = self.shown(self[place])
                name = prompt.id or name
                if self.check:
                    self.check(prompt)
                found[number] = EncodedPrompt(place, prompt, self.run.collector.encode([prompt])[0])
            except PluginError:
                raise
            except UserError as error:
                found[number] = _Broken(name, str(error))
        return found

    def _leave_out(self, place: PromptIndex, broken: _Broken, drawn: int, at: StepIndex) -> None:
        if place in self.quarantine:  # drawn twice in the same call
            return
        self.quarantine.add(place)
        if self.epoch_filter:
            self.epoch_filter.leave_out(place)
        run = self.run
        run.warn(f"{place[0]} {broken.name}", f"left out {broken.name}: {broken.why}")
        if len(self.quarantine) > max_broken(drawn, len(self)):
            raise UserError(
                f"step {at.step + 1}: {len(self.quarantine)} prompts are broken so far, "
                f"see {run.folder.path / 'errors.jsonl'}: fix or remove them, then continue with --resume; the last: {broken.why}"
            )


@dataclass(frozen=True, slots=True)
class Prompts:
    """The next n prompts of a source. They are drawn in `read`, as an asynchronous sampler draws in its own thread for its own
    step."""

    source: PromptSource
    n: int

    def read(self, at: StepIndex, clock: Clock) -> list[EncodedPrompt | None]:
        """See `PromptSource.read`."""
        return self.source.read(self.n, at, clock)


def earlier_of(places: Iterable[PromptIndex]) -> list[int]:
    """How often each of these comes before it among them."""
    seen = Counter[PromptIndex]()
    found = []
    for place in places:
        found.append(seen[place])
        seen[place] += 1
    return found


class _Broken(NamedTuple):
    """A prompt with broken media."""

    name: str
    why: str


def _fault(read: EncodedPrompt | _Broken | None) -> _Broken | None:
    """What other ranks get of a prompt: only that it is broken."""
    return read if isinstance(read, _Broken) else None
