"""What a run file comes to before its first step."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from mmrl.algorithms.presets import with_defaults
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.config.load import explain
from mmrl.config.sections import RlStage, RunConfig, SftStage
from mmrl.policies.policy import Policy


def resolved(config: RunConfig) -> RunConfig:
    """The run file with what its algorithms have by default."""
    stale = config.compute.staleness
    stages = [corrected(with_defaults(s), stale) if isinstance(s, RlStage) else s for s in config.stages]
    try:
        return RunConfig.model_validate(config.model_copy(update={"stages": stages}).model_dump(exclude_unset=True))
    except ValidationError as error:
        raise UserError(f"the run file with the defaults of its algorithms: {explain(error)}") from None


def corrected(stage: RlStage, staleness: int) -> RlStage:
    """The stage with the importance correction on, where a run file with `staleness` doesn't say."""
    if not staleness or "importance" in stage.model_fields_set:
        return stage
    return RlStage.model_validate({**stage.model_dump(exclude_unset=True), "importance": "truncate"})


def lend_eyes(tasks: Iterable[Task], policy: Policy) -> None:
    """Let tasks know how the policy sees pictures, before they are asked for prompts."""
    for task in tasks:
        task.eyes = policy.eyes


def opening(config: RunConfig) -> int:
    """The number of the first stage that isn't a warm start, which is where a run is first evaluated."""
    return next((i for i, s in enumerate(config.stages) if not isinstance(s, SftStage)), 0)
