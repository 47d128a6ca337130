"""`driving/road`: N cars in lock-step, each among its own others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.reproducible import sin_cos, wrapped
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl_driving import VARIANTS, expert, language
from mmrl_driving.judging import judge, kept, located, swing
from mmrl_driving.motion import driven_on, steered
from mmrl_driving.render import Renderer
from mmrl_driving.routes import Place, Routes
from mmrl_driving.scene import HISTORY, Scene
from mmrl_driving.settings import checked
from mmrl_driving.spawn import spawn

PEOPLE = 256
"""Side in pixels of the pictures for human viewers."""
AHEAD = (0.5, 1.0, 2.0)
"""Seconds at the target speed to the points of the route that the state tells."""
FAR = 20.0
"""Metres that are 1 in the state."""


class Road:
    """A crossing or a motorway; see `Scene` for the state. Metres, radians, seconds.

    Example::

        road = Road(num_envs=64, device="cpu", task="crossing", size=64)
        road.reset(torch.arange(64))
        transition = road.step(road.expert(), torch.ones(64, dtype=torch.bool))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        task: str = "crossing",
        obs: Literal["rgb", "state"] = "rgb",
        size: int = 64,
        cameras: Sequence[str] = ("top",),
        traffic: int | None = None,
        templates: int = 3,
        horizon: int | None = None,
    ) -> None:
        """task: crossing or motorway. obs: rgb, pictures and three numbers; or state, all that is known, and no pictures.
        size: side of the pictures in pixels. cameras: list of top, front. traffic: other cars, 0 to 8, by default 4.
        templates: number of instruction templates in training, 1 to 3. horizon: maximum steps of an episode, by default by
        task."""
        check_count("driving/road", num_envs)
        self.device, self.num_envs = torch.device(device), num_envs
        self.settings = checked(
            task=task, obs=obs, size=size, cameras=cameras, traffic=traffic, templates=templates, horizon=horizon
        )
        self.action = ActionSpec(dims=2)
        """The action space: steering, and a pedal."""
        self.max_steps = self.settings.horizon
        """Steps after which an episode of this task should be truncated."""
        self._eyes = Renderer(task, self.settings.cameras, size, self.device) if obs == "rgb" else None
        self._people = Renderer(task, ("top",), PEOPLE, self.device)
        self._closed = False
        self._all_N = torch.arange(num_envs, device=self.device)
        self._scene = spawn(self.settings, self._all_N, None)
        self._texts = language.instructions(self._scene, task)

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. variant: one of `mmrl_driving.VARIANTS`."""
        ids_n = self._ids(env_ids_n)
        check_variant("driving/road", variant, VARIANTS)
        return self._put(ids_n, spawn(self.settings, checked_seeds(seeds_n, len(ids_n), self.device), variant))

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`. An action is the steering, as a share of the tightest turn at this speed, left above 0, and
        the pedal: 1 is 3 m/s^2, -1 brakes by 6 m/s^2."""
        settings, before = self.settings, self._scene
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, 2, self.device)
        car = steered(before.car, actions_NA[:, 0], actions_NA[:, 1], settings.course.fast)
        after = dataclasses.replace(before, car=car, steering=actions_NA[:, 0], steps=before.steps + 1)
        after.others = driven_on(after)
        place = located(after, settings)[1]
        after.aside = torch.cat([place.left.abs()[:, None], before.aside[:, : HISTORY - 1]], 1)
        judgement = judge(after, settings, place)
        after.failed, after.reward = judgement.failed_N, judgement.reward_N
        self._scene = before.merged(active_N, after)
        return Transition(
            observation=self._observe(self._all_N),
            reward_N=judgement.reward_N,
            terminated_N=judgement.failed_N,
            truncated_N=torch.zeros_like(active_N),
            success_N=judgement.success_N,
            parts=judgement.parts,
        )

    def expert(self) -> torch.Tensor:
        """See `mmrl.Expert.expert`."""
        return expert.act(self._scene, self.settings)

    def snapshot(self, env_ids_n: torch.Tensor) -> dict[str, torch.Tensor]:
        """Field of `Scene` -> a copy of its rows."""
        return self._scene.rows(self._ids(env_ids_n)).as_mapping()

    def restore(self, env_ids_n: torch.Tensor, state: Mapping[str, torch.Tensor]) -> Observation:
        """See `mmrl.Simulator.restore`. Raises UserError if the state is from a road with other options."""
        ids_n = self._ids(env_ids_n)
        what = "this road: restore it with the traffic that it was taken with"
        return self._put(ids_n, self._scene.restored(state, len(ids_n), what))

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 256, 256, 3], from above."""
        return self._people(self._scene.rows(self._ids(env_ids_n)))["top"]

    def close(self) -> None:
        self._closed = True

    def _put(self, ids_n: torch.Tensor, rows: Scene) -> Observation:
        self._scene.put(ids_n, rows)
        for place, text in zip(ids_n.tolist(), language.instructions(rows, self.settings.task), strict=True):
            self._texts[place] = text
        return self._observe(ids_n)

    def _observe(self, ids_n: torch.Tensor) -> Observation:
        if self._closed:
            raise UserError("this road is closed: make a new one")
        scene = self._scene.rows(ids_n)
        texts = list(self._texts) if ids_n is self._all_N else [self._texts[i] for i in ids_n.tolist()]
        images = self._eyes(scene) if self._eyes else {}
        return Observation(images=images, state=self._state(scene), instructions=texts)

    def _state(self, scene: Scene) -> torch.Tensor:
        """float32 [n, S]. The first three are what `robotics/vlm-rl` reads: speed, of the target's; how well the car keeps its
        way; the simulator's own reward of the last step."""
        course = self.settings.course
        routes, place = located(scene, self.settings)
        angle = wrapped(scene.car[:, 2] - place.direction)
        centred, aligned, stable = kept(course, place.left.abs(), angle, swing(scene))
        told = [scene.car[:, 3] / course.target, centred * aligned * stable, scene.reward]
        if self.settings.obs == "rgb":
            return torch.stack(told, 1)
        gone = (place.along - scene.first) / course.length
        told += [place.left / course.wide, angle, scene.steering, gone]
        told += _route_ahead(scene, routes, place, course.target) + _others(scene, course.target)
        return torch.stack(told, 1)

    def _ids(self, env_ids_n: torch.Tensor | None) -> torch.Tensor:
        return checked_ids(env_ids_n, self.num_envs, self.device)


def _route_ahead(scene: Scene, routes: Routes, place: Place, target: float) -> list[torch.Tensor]:
    """Points of the route as seen from the car, ahead and left."""
    steps = torch.tensor([target * seconds for seconds in AHEAD], device=scene.car.device)
    x, y, _ = routes.points(place.along[:, None] + steps)
    ahead, left = _from_car(scene, x, y)
    return [*(ahead / FAR).unbind(1), *(left / FAR).unbind(1)]


def _others(scene: Scene, target: float) -> list[torch.Tensor]:
    """Of every other car: whether it is there, its place as seen from the car, and its speed ahead and to the left."""
    x, y, direction, speed, _ = scene.others.unbind(2)
    ahead, left = _from_car(scene, x, y)
    sin, cos = sin_cos(wrapped(direction - scene.car[:, 2:3]))
    there = scene.present.float()
    told = (torch.ones_like(ahead), ahead / FAR, left / FAR, speed * cos / target, speed * sin / target)
    return [row for values in told for row in (values * there).unbind(1)]


def _from_car(scene: Scene, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sin, cos = (v[:, None] for v in sin_cos(scene.car[:, 2]))
    dx, dy = x - scene.car[:, :1], y - scene.car[:, 1:2]
    return dx * cos + dy * sin, dy * cos - dx * sin
