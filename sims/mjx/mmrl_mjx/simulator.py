"""`mjx/reach`, `mjx/pick`, ...: N arms in lock-step, simulated by mujoco-warp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.api.transfer import upload_one
from mmrl_mjx import CAMERAS, REACH, TURN, expert, models
from mmrl_mjx.models import ARM, OPEN
from mmrl_mjx.tasks import TASKS, Judgement, Scene, instruction, judge, order, start

if TYPE_CHECKING:
    from mmrl_mjx.physics import Worlds
    from mmrl_mjx.pictures import BatchRenderer

PEOPLE = 256
"""Side in pixels of the pictures for human viewers."""
SUBSTEPS = 10
"""Steps of the physics in a step: 20 Hz."""
LOW, HIGH = (0.25, -0.4, 0.012), (0.75, 0.4, 0.55)
"""Corners of the box in which the gripper is commanded, metres."""
TILT, YAW = 0.4, 1.5
"""Greatest roll and pitch, and yaw, radians."""
LEASH = 0.06
"""Metres by which a command may be ahead of the gripper in each direction: an arm that is held doesn't store up its wishes."""


class Mjx:
    """An arm like Franka's Panda at a table, N times; see `mmrl_mjx.tasks`.

    Example::

        simulator = Mjx(num_envs=64, device="cpu", task="pick", obs="state")
        simulator.reset(torch.arange(64))
        transition = simulator.step(simulator.expert(), torch.ones(64, dtype=torch.bool))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        task: str = "reach",
        obs: Literal["rgb", "state"] = "rgb",
        size: int = 64,
        cameras: Sequence[str] = ("front",),
        dims: int = 7,
        reward: Literal["dense", "sparse"] = "dense",
    ) -> None:
        """task: reach, pick, stack or door. obs: rgb, pictures and what the robot knows of itself; or state, the full state
        without pictures. size: side of the pictures in pixels. cameras: list of front, wrist, top. dims: 7 numbers of an action,
        or 4 (x, y, z, gripper). reward: dense, 0 to 1 in each step by progress; or sparse, 1 in steps that end solved."""
        self._what = f"mjx/{task}" if task in tuple(TASKS) else "mjx"
        _check(self._what, num_envs, task, obs, size, cameras, dims, reward)
        from mmrl_mjx.physics import Worlds  # imports MuJoCo and Warp for seconds
        from mmrl_mjx.pictures import BatchRenderer

        self.num_envs, self.device = num_envs, torch.device(device)
        self._called, self._task, self._dense = task, TASKS[task], reward == "dense"
        self._worlds: Worlds | None = Worlds(self._task.scene(self._task.colours), num_envs, self.device, SUBSTEPS)
        units = (*(REACH,) * 3, *(TURN,) * (dims - 4))
        self.action = ActionSpec(dims=dims, control_mode="end-effector-delta", gripper=dims - 1, units=(*units, 1.0))
        """The action space of this instance."""
        self.max_steps = self._task.max_steps
        """Steps after which an episode should be truncated."""
        self._shown = obs == "rgb"
        self._eyes = BatchRenderer(self._worlds, cameras, size) if self._shown else None
        self._people: BatchRenderer | None = None
        self._all_N = torch.arange(num_envs, device=self.device)
        self._units = torch.tensor(units, device=self.device)
        self._low, self._high = (
            torch.tensor((*edge, *sides), device=self.device)
            for edge, sides in ((LOW, (-TILT, -TILT, -YAW)), (HIGH, (TILT, TILT, YAW)))
        )
        self._commands_N6 = torch.zeros(num_envs, 6, device=self.device)
        self._order_NK = torch.zeros(num_envs, len(self._task.colours), dtype=torch.int64, device=self.device)
        self._texts = [""] * num_envs
        doors = self._task.colours if self._task.scene is models.doors else ()
        self._handles, self._hinges = (
            [self._worlds.source.site(f"{name} {what}").id for name in doors] for what in ("handle", "hinge")
        )
        self._place(self._all_N, self._all_N)

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. It has no variants."""
        self._opened()
        ids_n = self._ids(env_ids_n)
        check_variant(self._what, variant, ())
        self._place(ids_n, checked_seeds(seeds_n, len(ids_n), self.device))
        return self._observe(ids_n, torch.ones(len(ids_n), dtype=torch.bool, device="cpu"))

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`. An action is x, y, z, with 7 dims roll, pitch, yaw, and the gripper: it closes above 0."""
        worlds, drawn_N = self._opened(), active_N
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, self.action.dims, self.device)
        before, commands_N6 = worlds.state(), self._commanded(actions_NA[:, :-1] * self._units)
        worlds.step(self._commands_N6, commands_N6, actions_NA[:, -1] > 0)
        sound_N = worlds.views["qpos"].isfinite().all(1) & worlds.views["qvel"].isfinite().all(1)
        moved_N = active_N & sound_N
        worlds.keep(moved_N, before)
        self._commands_N6 = torch.where(moved_N[:, None], commands_N6, self._commands_N6)
        judgement = self._judged()
        never_N = torch.zeros_like(active_N)
        return Transition(
            observation=self._observe(self._all_N, drawn_N),
            reward_N=judgement.dense_N if self._dense else judgement.success_N.float(),
            terminated_N=never_N,
            truncated_N=never_N,
            success_N=judgement.success_N,
            lost_N=active_N & ~sound_N,
            parts=judgement.parts,
        )

    def expert(self) -> torch.Tensor:
        """See `mmrl.Expert.expert`."""
        return expert.act(self._called, self._scene(self._all_N), self._judged(), self._commands_N6, self._units)

    def snapshot(self, env_ids_n: torch.Tensor) -> dict[str, torch.Tensor]:
        """Name -> rows: MuJoCo's integration state, where the gripper is told to be, and which thing is named."""
        ids_n = self._ids(env_ids_n)
        return {**self._opened().state(ids_n), "command": self._commands_N6[ids_n], "order": self._order_NK[ids_n]}

    def restore(self, env_ids_n: torch.Tensor, state: Mapping[str, torch.Tensor]) -> Observation:
        """See `mmrl.Simulator.restore`. Raises UserError if the state is from another task."""
        worlds, ids_n = self._opened(), self._ids(env_ids_n)
        mine = {**worlds.views, "command": self._commands_N6, "order": self._order_NK}
        if set(state) != set(mine) or any(
            state[name].shape != (len(ids_n), *value.shape[1:]) or state[name].dtype != value.dtype
            for name, value in mine.items()
        ):
            raise UserError(f"the state doesn't fit {len(ids_n)} environments of {self._what}: restore it in the task it is of")
        rows = {name: value.to(self.device) for name, value in state.items()}
        worlds.put(ids_n, rows)
        self._commands_N6[ids_n] = rows["command"]
        self._name(ids_n, rows["order"])
        return self._observe(ids_n, torch.ones(len(ids_n), dtype=torch.bool, device="cpu"))

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 256, 256, 3], from the front."""
        if self._people is None:
            from mmrl_mjx.pictures import BatchRenderer

            self._people = BatchRenderer(self._opened(), CAMERAS[:1], PEOPLE)
        return self._people(self._ids(env_ids_n))[CAMERAS[0]]

    def close(self) -> None:
        self._worlds = self._eyes = self._people = None

    def _place(self, ids_n: torch.Tensor, seeds_n: torch.Tensor) -> None:
        """Episodes begin in these environments."""
        worlds = self._opened()
        worlds.put(ids_n, start(self._task, seeds_n))
        self._commands_N6[ids_n] = 0.0
        self._commands_N6[ids_n, :3] = worlds.grips[ids_n]
        self._name(ids_n, order(self._task, seeds_n))

    def _name(self, ids_n: torch.Tensor, order_nK: torch.Tensor) -> None:
        """Things are called in this order in these environments."""
        self._order_NK[ids_n] = order_nK
        for place, names in zip(ids_n.tolist(), order_nK.tolist(), strict=True):
            self._texts[place] = instruction(self._task, names)

    def _commanded(self, moves_NA: torch.Tensor) -> torch.Tensor:
        """[N, 6]: where the gripper is told to be after these moves."""
        commands_N6 = self._commands_N6.clone()
        commands_N6[:, : moves_NA.shape[1]] += moves_NA
        grips_N3 = self._opened().grips
        commands_N6[:, :3] = torch.clamp(commands_N6[:, :3], grips_N3 - LEASH, grips_N3 + LEASH)
        return torch.clamp(commands_N6, self._low, self._high)

    def _scene(self, ids_n: torch.Tensor) -> Scene:
        worlds, order_nK = self._opened(), self._order_NK[ids_n]
        qpos, count = worlds.views["qpos"][ids_n], len(self._task.colours)
        angles, hinges = qpos[:, :0], worlds.sites[ids_n, :0]
        if self._task.scene is models.balls:
            things = worlds.views["mocap_pos"][ids_n]
        elif self._task.scene is models.cubes:
            things = qpos[:, ARM + 2 :].view(len(ids_n), count, 7)[..., :3]
        else:
            things, hinges = worlds.sites[ids_n][:, self._handles], worlds.sites[ids_n][:, self._hinges]
            angles = qpos[:, ARM + 2 :].gather(1, order_nK)
        named = order_nK[..., None].expand(-1, -1, 3)
        return Scene(
            grip=worlds.grips[ids_n],
            gap=qpos[:, ARM] + qpos[:, ARM + 1],
            closed=worlds.views["ctrl"][ids_n, ARM] < 0.5 * OPEN,
            things=things.gather(1, named),
            angles=angles,
            hinges=hinges.gather(1, named) if hinges.shape[1] else hinges,
        )

    def _judged(self) -> Judgement:
        return judge(self._called, self._scene(self._all_N))

    def _observe(self, ids_n: torch.Tensor, drawn_n: torch.Tensor) -> Observation:
        """The observations of these environments; pictures that are not rendered are black. drawn_n: on the host, nothing waits
        for a device."""
        images = {}
        if self._eyes is not None:
            which_k = upload_one(drawn_n.nonzero()[:, 0], self.device)
            for camera, pixels in self._eyes(ids_n[which_k]).items():
                images[camera] = torch.zeros(len(ids_n), *pixels.shape[1:], dtype=torch.uint8, device=self.device)
                images[camera][which_k] = pixels
        texts = [self._texts[i] for i in ids_n.tolist()]
        return Observation(images=images, state=self._state(ids_n), instructions=texts)

    def _state(self, ids_n: torch.Tensor) -> torch.Tensor:
        """float32 [n, S]: the arm's angles and speeds, the gripper's place and commanded turn, its fingers, whether it is told to
        close; with `obs = "state"` also each thing, the named one first."""
        worlds, scene = self._opened(), self._scene(ids_n)
        qpos, qvel = worlds.views["qpos"][ids_n], worlds.views["qvel"][ids_n]
        closed = scene.closed.float()[:, None]
        own = [qpos[:, :ARM], qvel[:, :ARM], scene.grip, self._commands_N6[ids_n, 3:], qpos[:, ARM : ARM + 2], closed]
        if self._shown:
            return torch.cat(own, 1)
        things = (scene.things - scene.grip[:, None]).flatten(1)
        if self._task.scene is models.cubes:
            order_nK = self._order_NK[ids_n]
            turns = qpos[:, ARM + 2 :].view(len(ids_n), -1, 7)[..., 3:]
            turns = turns.gather(1, order_nK[..., None].expand(-1, -1, 4)).flatten(1)
            return torch.cat([*own, things, turns], 1)
        return torch.cat([*own, things, scene.angles], 1)

    def _ids(self, env_ids_n: torch.Tensor | None) -> torch.Tensor:
        return checked_ids(env_ids_n, self.num_envs, self.device)

    def _opened(self) -> Worlds:
        if self._worlds is None:
            raise UserError(f"{self._what} is closed: make a new one")
        return self._worlds


def _check(what: str, num_envs: int, task: str, obs: str, size: int, cameras: Sequence[str], dims: int, reward: str) -> None:
    """Raises UserError for an option that no instance supports."""
    check_count(what, num_envs)
    for name, value, known in (
        ("task", task, tuple(TASKS)),
        ("obs", obs, ("rgb", "state")),
        ("dims", dims, (4, 7)),
        ("reward", reward, ("dense", "sparse")),
    ):
        if isinstance(value, bool) or value not in known:
            raise UserError(f"{what}: {name} = {value!r} must be one of {', '.join(map(str, known))}")
    if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 1024:
        raise UserError(f"{what}: size = {size!r} must be a whole number of 8 to 1024")
    listed = isinstance(cameras, Sequence) and not isinstance(cameras, str)
    if not listed or not cameras or any(camera not in CAMERAS for camera in cameras):
        raise UserError(f"{what}: cameras = {cameras!r} must be a list of {', '.join(CAMERAS)}")
    if len(set(cameras)) < len(cameras):
        raise UserError(f"{what}: cameras = {cameras!r} names a camera twice")
