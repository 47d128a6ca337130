"""What `mmrl plan` reads of a Diffusion Policy; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

import math
from typing import Any

import torch

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.acting.planned import META, Planned
from mmrl.policies.diffusion.network import Network


def planned_diffusion(kind: Any, config: PolicyConfig) -> Planned:
    """kind: the class of the policy."""
    asked = kind.options_class(**config.options)
    said: Any = kind.opened(config.model, asked).config
    with META:
        model = Network(said).eval()
    steps, seen, ahead = asked.steps or said.steps, said.n_obs_steps, said.horizon
    tuned = asked.tuned_steps or steps

    def look(rows: int) -> torch.Tensor:
        robot, environment = (torch.empty(rows, seen, said.numbers(key), device=META) for key in (STATE, ENVIRONMENT))
        shown = [torch.empty(rows, seen, 3, *said.shape_of(key), device=META) for key in said.cameras]
        return model.condition(robot, shown, environment)

    def predicted(condition: torch.Tensor, many: int) -> torch.Tensor:
        rows = len(condition)
        x = torch.empty(rows, many, ahead, said.numbers(ACTION), device=META)
        return model.predict(condition, x, torch.empty(rows, many, dtype=torch.int64, device=META))

    def act(rows: int, text: int) -> None:
        condition = look(rows)
        for _ in range(steps):
            predicted(condition, 1)

    return Planned(
        model=model,
        width=model.width,
        chunk=asked.chunk or said.n_action_steps,
        dims=said.numbers(ACTION),
        steps=steps,
        pictures=len(said.cameras) * seen,
        pixels=math.prod(said.shape_of(said.cameras[0])) if said.cameras else 0,
        prefix=lambda text: 0,
        tokens=lambda text, demonstrated: max(tuned, PLACES if demonstrated else 1) * ahead,
        act=act,
        noise_shape=(ahead, said.numbers(ACTION)),
        look=lambda rows, text: look(rows),
        learn=lambda rows, text, demonstrated: predicted(look(rows), PLACES if demonstrated else tuned),
    )
