"""The angle concentration of a stage's prompts, for `[stages.curriculum]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.api.errors import PluginError, UserError
from mmrl.api.types import Prompt, user_message
from mmrl.compute import ranks
from mmrl.data.prompts import PromptIndex
from mmrl.policies.vlm.angles import Angles, last_feed_forward, prompt_angles
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.sampling.source import PromptSource

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

UNSEEN = Angles(-3.0, 0.0)
"""Of a prompt that can't be opened: below what a prompt can have, so that it comes last."""

BLANK = Prompt(id="", task="", messages=[user_message(".")])


def order_prompts(run: StageContext, source: PromptSource) -> None:
    """Order all prompts of the stage by the angles that the policy's weights of now give them, unless that is done."""
    curriculum = source.curriculum
    if curriculum is None or curriculum.orders:
        return
    last_feed_forward(_writer(run))  # refuses a model before its prompts are read
    places = [(label, i) for label, count in curriculum.counts.items() for i in range(count)]
    found = iter(_measured(run, source, places))
    curriculum.set_order({label: [next(found).question for _ in range(n)] for label, n in curriculum.counts.items()})


def measure_step(run: StageContext, source: PromptSource, places: Sequence[PromptIndex]) -> None:
    """Give the curriculum the angles of a step's prompts."""
    if source.curriculum is not None:
        places = sorted(set(places))
        found = _measured(run, source, places)
        source.curriculum.angles |= {place: one.everything for place, one in zip(places, found, strict=True)}


def _measured(run: StageContext, source: PromptSource, places: Sequence[PromptIndex]) -> list[Angles]:
    """The angles of prompts; each rank passes over its share. All ranks pass equally often, as they must with sharded weights."""
    size, rank = ranks.world_size(), ranks.rank()
    with run.clock("process"):

        def work() -> dict[int, Angles]:
            found = {}
            for n in range(rank, -(-len(places) // size) * size, size):
                found[n] = _of(run, source, places[min(n, len(places) - 1)])
            return {n: angles for n, angles in found.items() if n < len(places)}

        return ranks.gather_sharded(work)


def _of(run: StageContext, source: PromptSource, place: PromptIndex) -> Angles:
    policy = _writer(run)
    try:
        return prompt_angles(policy, source.shown(source[place]))
    except PluginError:
        raise
    except UserError:
        if policy.root is not None:  # the other ranks pass over a prompt too
            prompt_angles(policy, BLANK)
        return UNSEEN


def _writer(run: StageContext) -> VLM:
    assert isinstance(run.policy, VLM), "a run file whose policy acts is refused"
    return run.policy
