"""`tabletop/table`: N tables in lock-step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.api.transfer import upload_one
from mmrl_tabletop import VARIANTS, expert, language
from mmrl_tabletop.physics import TURN, Contact
from mmrl_tabletop.render import Renderer
from mmrl_tabletop.scene import Scene
from mmrl_tabletop.settings import checked
from mmrl_tabletop.spawn import elsewhere, spawn
from mmrl_tabletop.tasks import judge
from mmrl_tabletop.tracking import demonstrated, track

PEOPLE = 256
"""Side in pixels of the pictures for human viewers."""


class Table:
    """Objects on a table and a gripper above it; see `Scene` for the state. Lengths are metres.

    Example::

        table = Table(num_envs=64, device="cpu", task="pick", size=64)
        table.reset(torch.arange(64))
        transition = table.step(table.expert(), torch.ones(64, dtype=torch.bool))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        task: str = "pick",
        size: int = 64,
        cameras: Sequence[str] = ("front",),
        dims: int = 7,
        distractors: int = 1,
        shapes: Sequence[str] = ("cube", "ball", "cylinder"),
        colours: Sequence[str] = ("red", "green", "blue", "yellow"),
        alike: bool = False,
        templates: int = 4,
        textures: int = 1,
        horizon: int | None = None,
        step: float = 0.1,
        radius: float = 0.07,
        light: float = 0.0,
        noise: float = 0.0,
        samples: int = 1,
        expert_slop: float = 0.0,
        tracking: bool = False,
    ) -> None:
        """task: reach, push, pick, put-on or stack. size: side of the pictures in pixels. cameras: list of front, wrist, top.
        dims: 7 numbers of an action, or 4 (x, y, z, gripper). distractors: number of objects that the instruction doesn't name.
        shapes: of the objects in training. colours: of the objects in training. alike: distractors may share the target's colour
        or shape, so that both words matter. templates: number of instruction templates in training. textures: number of table
        pictures in training. horizon: maximum steps of an episode, by default by task. step: metres for an action of 1.
        radius: of the objects in metres. light: greatest relative change of the brightness, 0 to 0.8. noise: standard deviation
        of pixel noise in 255ths. samples: rays along each side of a pixel. expert_slop: deliberate clumsiness of `expert`, 0 to
        1. tracking: the own reward is for the target's pose relative to a demonstration's, instead of differences of the
        potential.
        """
        check_count("tabletop/table", num_envs)
        self.device = torch.device(device)
        self.num_envs = num_envs
        self.settings = checked(
            task=task,
            size=size,
            cameras=cameras,
            dims=dims,
            distractors=distractors,
            shapes=shapes,
            colours=colours,
            alike=alike,
            templates=templates,
            textures=textures,
            horizon=horizon,
            step=step,
            radius=radius,
            light=light,
            noise=noise,
            samples=samples,
            expert_slop=expert_slop,
            tracking=tracking,
        )
        turns = (TURN,) * (dims - 4)
        self.action = ActionSpec(
            dims=dims, control_mode="end-effector-delta", gripper=dims - 1, units=(*(step,) * 3, *turns, 1.0)
        )
        """The action space of this instance."""
        self.max_steps = self.settings.horizon
        """Steps after which an episode of this task should be truncated."""
        self._contact = Contact(radius, step, self.device)
        self._renderer: Renderer | None = Renderer(self.settings.cameras, size, self._contact, noise, samples, self.device)
        self._people: Renderer | None = None
        self._all_N = torch.arange(num_envs, device=self.device)
        self._scene = self._start(self._all_N, None)
        self._texts = language.instructions(self._scene, task)
        self._moving = False
        """Some target is moved during its episode."""

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. variant: one of `mmrl_tabletop.VARIANTS`."""
        ids_n = self._ids(env_ids_n)
        check_variant("tabletop/table", variant, VARIANTS)
        return self._put(ids_n, self._start(checked_seeds(seeds_n, len(ids_n), self.device), variant))

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`. An action is x, y, z, with 7 dims roll, pitch, yaw, and the gripper, which closes above 0
        after the move."""
        settings, before, drawn_N = self.settings, self._scene, active_N
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, settings.dims, self.device)
        turn_N3 = actions_NA[:, 3:6] * TURN if settings.dims == 7 else torch.zeros_like(before.gripper[:, 3:])
        after = self._contact.move(before, actions_NA[:, :3] * settings.step, turn_N3, actions_NA[:, -1] > 0)
        after = self._moved(dataclasses.replace(after, steps=after.steps + 1))
        after.held_steps = torch.where(after.held == 0, after.held_steps + 1, 0)
        judgement = judge(after, settings, self._contact)
        after.potential = judgement.potential_N
        paid_N = after.potential - before.potential
        if settings.tracking:
            tracked = track(after)
            paid_N, after.phase = tracked.reward_N, tracked.phase_N
        self._scene = before.merged(active_N, after)
        return Transition(
            observation=self._observe(self._all_N, drawn_N),
            reward_N=paid_N,
            terminated_N=judgement.lost_N,
            truncated_N=torch.zeros_like(active_N),
            success_N=judgement.success_N,
            parts=judgement.parts,
        )

    def expert(self) -> torch.Tensor:
        """See `mmrl.Expert.expert`."""
        judgement = judge(self._scene, self.settings, self._contact)
        return expert.act(self._scene, judgement, self.settings, self._contact)

    def snapshot(self, env_ids_n: torch.Tensor) -> dict[str, torch.Tensor]:
        """Field of `Scene` -> a copy of its rows."""
        return self._scene.rows(self._ids(env_ids_n)).as_mapping()

    def restore(self, env_ids_n: torch.Tensor, state: Mapping[str, torch.Tensor]) -> Observation:
        """See `mmrl.Simulator.restore`. Raises UserError if the state is from a table with other options."""
        ids_n = self._ids(env_ids_n)
        what = "this table: restore it with the task and the distractors that it was taken with"
        return self._put(ids_n, self._scene.restored(state, len(ids_n), what))

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 256, 256, 3], from the front, with smooth edges and without noise."""
        if self._people is None:
            self._people = Renderer(("front",), PEOPLE, self._contact, 0.0, 2, self.device)
        return self._people(self._scene.rows(self._ids(env_ids_n)))["front"]

    def close(self) -> None:
        self._renderer = self._people = None

    def _start(self, seeds_n: torch.Tensor, variant: str | None) -> Scene:
        scene = spawn(self.settings, seeds_n, variant)
        return demonstrated(scene, self.settings, self._contact) if self.settings.tracking else scene

    def _put(self, ids_n: torch.Tensor, rows: Scene) -> Observation:
        self._scene.put(ids_n, rows)
        for place, text in zip(ids_n.tolist(), language.instructions(rows, self.settings.task), strict=True):
            self._texts[place] = text
        self._moving = bool((self._scene.moves_at >= 0).any())
        return self._observe(ids_n, torch.ones(len(ids_n), dtype=torch.bool, device="cpu"))

    def _moved(self, scene: Scene) -> Scene:
        """`execution.moved`: moves the target to another place, and out of the gripper."""
        if not self._moving:
            return scene
        now_N = scene.steps == scene.moves_at
        objects = scene.objects.clone()
        objects[:, 0, :2] = elsewhere(scene, self.settings)
        objects[:, 0, 2] = self._contact.body(scene).half[:, 0]
        return scene.merged(
            now_N,
            dataclasses.replace(
                scene,
                objects=objects,
                held=torch.where(scene.held == 0, -1, scene.held),
                support=torch.full_like(scene.support, -1),
            ),
        )

    def _observe(self, ids_n: torch.Tensor, drawn_n: torch.Tensor) -> Observation:
        """The observations of these environments; pictures that are not rendered are black. drawn_n: on the host, nothing waits
        for a device."""
        if self._renderer is None:
            raise UserError("this table is closed: make a new one")
        scene = self._scene.rows(ids_n)
        texts = list(self._texts) if ids_n is self._all_N else [self._texts[i] for i in ids_n.tolist()]
        if drawn_n.all():
            images = self._renderer(scene)
        else:
            which = upload_one(drawn_n.nonzero()[:, 0], self.device)
            some = self._renderer(scene.rows(which))
            images = {name: torch.zeros(len(ids_n), *v.shape[1:], dtype=v.dtype, device=v.device) for name, v in some.items()}
            for name, pixels in some.items():
                images[name][which] = pixels
        state = torch.cat([scene.gripper, self._contact.gap(scene)[:, None], scene.closed.float()[:, None]], 1)
        return Observation(images=images, state=state, instructions=texts)

    def _ids(self, env_ids_n: torch.Tensor | None) -> torch.Tensor:
        return checked_ids(env_ids_n, self.num_envs, self.device)
