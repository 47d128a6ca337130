"""The angle concentration of a stage's prompts, for `[stages.curriculum]`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mmrl.api.errors import PluginError, UserError
from mmrl.api.types import Prompt, user_message
from mmrl.compute import ranks
from mmrl.data.prompts import PromptIndex
from mmrl.policies.vlm.angles import last_feed_forward, prompt_angles, question_angles
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.sampling.source import PromptSource

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


BLANK = Prompt(id="", task="", messages=[user_message(".")])


def order_prompts(run: StageContext, source: PromptSource) -> None:
    """Order all prompts of the stage by the angles that the policy's weights of now give them, unless that is done."""
    curriculum = source.curriculum
    if curriculum is None or curriculum.orders:
        return
    last_feed_forward(_writer(run))  # refuses a model before its prompts are read
    places = [(label, i) for label, count in curriculum.counts.items() for i in range(count)]
    found = (-math.inf if angles is None else angles for angles in _measured(run, source, places, question_angles))
    curriculum.set_order({label: list(itertools.islice(found, n)) for label, n in curriculum.counts.items()})


def measure_step(run: StageContext, source: PromptSource, places: Sequence[PromptIndex]) -> None:
    """Give the curriculum the angles of a step's prompts."""
    if source.curriculum is not None:
        places = sorted(set(places))
        found = zip(places, _measured(run, source, places, prompt_angles), strict=True)
        source.curriculum.angles |= {place: angles for place, angles in found if angles is not None}


def _measured(
    run: StageContext, source: PromptSource, places: Sequence[PromptIndex], angles: Callable[[VLM, Prompt], float]
) -> list[float | None]:
    """The angles of prompts; None of one that can't be shown. Each rank passes over its share. All ranks pass equally often, as
    they must with sharded weights."""
    size, rank, policy = ranks.world_size(), ranks.rank(), _writer(run)

    def of(place: PromptIndex) -> float | None:
        try:
            return angles(policy, source.shown(source[place]))
        except PluginError:
            raise
        except UserError:
            if policy.root is not None:  # the other ranks pass over a prompt too
                angles(policy, BLANK)
            return None

    def work() -> dict[int, float | None]:
        rounds = range(rank, -(-len(places) // size) * size, size)
        found = {n: of(places[min(n, len(places) - 1)]) for n in rounds}
        return {n: value for n, value in found.items() if n < len(places)}

    with run.clock("process"):
        return ranks.gather_sharded(work)


def _writer(run: StageContext) -> VLM:
    assert isinstance(run.policy, VLM), "a run file whose policy acts is refused"
    return run.policy
