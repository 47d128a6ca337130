"""All environments of a simulator in one worker process (see `mmrl.api.simulators.processes`): JAX steps them in blocks, each by
the same program. Imports nothing of mmrl.

N environments, B of them in a block (the last one is filled up), A action dims, S numbers of a state.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def _beside(name: str) -> Any:
    """Imports a module of this folder by its path, as this interpreter may not have the package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


packages = _beside("packages")
BLOCK = 64
"""Environments that a CPU computes in one call. All calls are one program: XLA rounds otherwise in batches of other sizes."""
SEEDS = 2**64
"""Keys of JAX's generator have two words of 32 bits."""
PEOPLE = 256
"""Side in pixels of the pictures for human viewers."""


class Batch:
    """N environments of a task of Playground, with the sums of their rewards."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        impl: str,
        platform: str,
        config: Mapping[str, Any],
        menagerie: str | None,
        success_return: float | None,
        size: int | None,
        camera: str | None,
        block: int | None,
    ) -> None:
        """platform: auto, cpu or gpu; the environment variable JAX_PLATFORMS says the same. size: side of the pictures in pixels,
        None for no pictures. camera: name in the task's model; by default its first, or a free one. block: B; None: BLOCK on a
        CPU, all environments elsewhere. Others: see `Playground`."""
        packages.check_installed()
        self.devices = packages.devices(platform)
        import jax
        import numpy

        self.jax, self.numpy = jax, numpy
        self.task, self.impl, self.num, self.success_return = task, impl, num_envs, success_return
        self.env = packages.load(task, impl, config, menagerie)
        self.block = block or (BLOCK if jax.default_backend() == "cpu" else num_envs)
        self.repeat = int(self.env._config.get("action_repeat", 1))
        self.pictures = None if size is None else numpy.zeros((num_envs, size, size, 3), numpy.uint8)
        self.drawing = Drawing(self.env.mj_model, camera)
        if size is not None:
            self.drawing.renderer(size)  # or it is refused before anything is compiled
        self._begin, self._choose = jax.jit(self._begun), jax.jit(_chosen, donate_argnums=0)
        self._advance = jax.jit(self._advanced, donate_argnums=0)
        self.kept = [self._begin(self._keys({})) for _ in range(-(-num_envs // self.block))]
        """Of each block the state: Playground's, and `total`, float32 [B], the sum of the rewards of each episode."""
        self._check(self.kept[0])
        self.step(numpy.zeros(num_envs * (self.env.action_size + 1), numpy.float32))  # compiles it; nobody moves
        self.facts = {
            "dims": num_envs * (self.env.action_size + 1),
            "action": self.env.action_size,
            "max_steps": int(self.env._config.get("episode_length", 0)) // self.repeat,
            "devices": self.devices,
        }

    # -- calls ------------------------------------------------------------------------------------------------------------

    def reset(self, seeds: Mapping[int, int] | int, variant: None) -> dict[str, Any]:
        """Begin episodes. seeds: index of the environment -> its seed; 0, in the first call, begins none."""
        if isinstance(seeds, Mapping):
            for number, places in self._blocks(list(seeds)).items():
                rows = self._begin(self._keys({place: seeds[env] for place, env in places.items()}))
                self._put(number, places, rows)
            self._draw(list(seeds))
        return self._rows()

    def step(self, numbers: Any) -> dict[str, Any]:
        """numbers: float32 [N A + N]: the actions, and for each environment whether it is active, 1 or 0."""
        numpy, most = self.numpy, len(self.kept) * self.block
        actions = numpy.zeros((most, self.env.action_size), numpy.float32)
        active = numpy.zeros(most, bool)
        actions[: self.num] = numbers[: -self.num].reshape(self.num, -1)
        active[: self.num] = numbers[-self.num :] > 0
        flags = []
        for number, kept in enumerate(self.kept):
            part = slice(number * self.block, (number + 1) * self.block)
            self.kept[number], told = self._advance(kept, actions[part], active[part])
            flags.append(told)
        self.flags = {name: self._joined([told[name] for told in flags]) for name in flags[0]}
        self._draw(active.nonzero()[0].tolist())
        return self._rows()

    def snapshot(self, envs: Sequence[int]) -> dict[str, Any]:
        """The rows of these environments in all arrays of the state."""
        blocks = [[self.numpy.asarray(leaf) for leaf in self.jax.tree.leaves(kept)] for kept in self.kept]
        at = [divmod(env, self.block) for env in envs]
        rows = [self.numpy.stack([blocks[number][leaf][place] for number, place in at]) for leaf in range(len(blocks[0]))]
        return {"task": self.task, "impl": self.impl, "rows": rows}

    def restore(self, given: tuple[Sequence[int], Mapping[str, Any]]) -> dict[str, Any]:
        """Put environments into the states of a snapshot. given: (their indices, the snapshot)."""
        envs, state = given
        leaves, form = self.jax.tree.flatten(self.kept[0])
        wanted = [((len(envs), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        rows = state.get("rows", ()) if isinstance(state, Mapping) else ()
        if [(row.shape, row.dtype) for row in rows] != wanted or (state["task"], state["impl"]) != (self.task, self.impl):
            raise packages.Refused(
                f"the state doesn't fit {len(envs)} environments of {self.task} by {self.impl}: restore it in the task it is of"
            )
        index = {env: row for row, env in enumerate(envs)}
        for number, places in self._blocks(envs).items():
            filled = [self.numpy.zeros((self.block, *row.shape[1:]), row.dtype) for row in rows]
            for whole, row in zip(filled, rows, strict=True):
                whole[list(places)] = row[[index[env] for env in places.values()]]
            self._put(number, places, self.jax.tree.unflatten(form, filled))
        self._draw(envs)
        return self._rows()

    def render(self, envs: Sequence[int]) -> Any:
        """uint8 [n, 256, 256, 3]."""
        return self.numpy.stack([self.drawing(PEOPLE, *each) for each in self._poses(envs)])

    # -- the batch --------------------------------------------------------------------------------------------------------

    def _blocks(self, envs: Sequence[int]) -> dict[int, dict[int, int]]:
        """Number of a block -> place in it -> the environment there."""
        found: dict[int, dict[int, int]] = {}
        for env in envs:
            number, place = divmod(env, self.block)
            found.setdefault(number, {})[place] = env
        return found

    def _put(self, number: int, places: Iterable[int], rows: Any) -> None:
        """Put the environments at these places of a block into the states there in `rows`."""
        mask_B = self.numpy.zeros(self.block, bool)
        mask_B[list(places)] = True
        self.kept[number] = self._choose(self.kept[number], rows, mask_B)

    def _begun(self, keys_B2: Any) -> dict[str, Any]:
        return {"state": self.jax.vmap(self.env.reset)(keys_B2), "total": self.jax.numpy.zeros(self.block)}

    def _advanced(self, kept: Any, actions_BA: Any, active_B: Any) -> tuple[Any, dict[str, Any]]:
        """(the state after a step, its flags). Who isn't active or has numbers that aren't finite stays as it was."""
        jax, jnp = self.jax, self.jax.numpy
        before = kept["state"]

        def once(state: Any, _: None) -> tuple[Any, Any]:
            after = jax.vmap(self.env.step)(state, actions_BA)
            return _like(after, state, jax), after.reward

        after, rewards = jax.lax.scan(once, before, None, self.repeat)  # as Brax's EpisodeWrapper repeats actions
        reward_B = rewards.sum(0)
        numbers = (_observed(after), reward_B[:, None], after.data.qpos, after.data.qvel)
        sound_B = jnp.stack([jnp.isfinite(value).all(1) for value in numbers]).all(0)
        moved_B = active_B & sound_B
        total_B = kept["total"] + jnp.where(moved_B, reward_B, 0)
        state = jax.tree.map(lambda new, old: jnp.where(_wide(moved_B, new), new, old), after, before)
        flags = {"reward": jnp.where(moved_B, reward_B, 0), "terminated": moved_B & (after.done > 0), "lost": active_B & ~sound_B}
        return {"state": state, "total": total_B}, flags

    def _rows(self) -> dict[str, Any]:
        numpy = self.numpy
        least = numpy.inf if self.success_return is None else self.success_return
        shown = {} if self.pictures is None else {"camera": self.pictures}
        state_NS = self._joined([_observed(kept["state"]) for kept in self.kept]).astype(numpy.float32)
        return {**self.flags, **shown, "state": state_NS, "success": self._joined([kept["total"] for kept in self.kept]) >= least}

    def _joined(self, blocks: Sequence[Any]) -> Any:
        """[N, ...] of the blocks' rows."""
        return self.numpy.concatenate([self.numpy.asarray(rows) for rows in blocks])[: self.num]

    def _check(self, first: Any) -> None:
        """Raises Refused for observations without a state, and for arrays that the environments share."""
        seen = first["state"].obs
        if isinstance(seen, Mapping) and "state" not in seen:
            raise packages.Refused(f"{self.task} observes {', '.join(seen)} and no state: pictures come from MuJoCo, see obs")
        if any(leaf.shape[:1] != (self.block,) for leaf in self.jax.tree.leaves(first)):
            raise packages.Refused(f"{self.task} by {self.impl} shares arrays among environments: set impl = 'jax'")

    def _keys(self, seeds: Mapping[int, int]) -> Any:
        """uint32 [B, 2]: `jax.random.PRNGKey` of the seed at each place, of 0 elsewhere."""
        return self.numpy.array([divmod(seeds.get(place, 0) % SEEDS, 2**32) for place in range(self.block)], self.numpy.uint32)

    def _draw(self, envs: Sequence[int]) -> None:
        if self.pictures is None:
            return
        for env, pose in zip(envs, self._poses(envs), strict=True):
            self.pictures[env] = self.drawing(self.pictures.shape[1], *pose)

    def _poses(self, envs: Sequence[int]) -> Any:
        """Of each environment what Playground's own `render_array` draws from: positions, velocities, mocap bodies."""
        names = ("qpos", "qvel", "mocap_pos", "mocap_quat")
        data = [kept["state"].data for kept in self.kept]
        return zip(*(self._joined([getattr(each, name) for each in data])[list(envs)] for name in names), strict=True)


class Drawing:
    """Pictures of single states by MuJoCo's own renderer, with the library that MUJOCO_GL names."""

    def __init__(self, model: Any, camera: str | None) -> None:
        import mujoco

        self.mujoco, self.model, self.data = mujoco, model, mujoco.MjData(model)
        names = [model.camera(i).name for i in range(model.ncam)]
        if camera is not None and camera not in names:
            raise packages.Refused(f"camera = {camera!r} is not in the task's model: it has {', '.join(names) or 'none'}")
        self.camera = names.index(camera) if camera else 0 if names else -1
        """Index of the camera; -1 is a free one that sees all."""
        self.renderers: dict[int, Any] = {}

    def renderer(self, size: int) -> Any:
        """Raises Refused if there is no library to draw with."""
        if size not in self.renderers:
            screen = self.model.vis.global_
            screen.offwidth, screen.offheight = max(screen.offwidth, size), max(screen.offheight, size)
            try:
                self.renderers[size] = self.mujoco.Renderer(self.model, size, size)
            except Exception as error:  # a missing library raises only an AttributeError of None
                way = os.environ.get("MUJOCO_GL")
                raise packages.Refused(
                    f"MuJoCo can't render with MUJOCO_GL = {way!r} ({type(error).__name__}: {packages.said(error)}): "
                    'apt-get install libosmesa6, which renders in software, or set obs = "state"'
                ) from error
        return self.renderers[size]

    def __call__(self, size: int, qpos: Any, qvel: Any, mocap_pos: Any, mocap_quat: Any) -> Any:
        """uint8 [size, size, 3]."""
        data, renderer = self.data, self.renderer(size)
        data.qpos, data.qvel, data.mocap_pos, data.mocap_quat = qpos, qvel, mocap_pos, mocap_quat
        self.mujoco.mj_forward(self.model, data)
        renderer.update_scene(data, camera=self.camera)
        return renderer.render()


def _chosen(kept: Any, rows: Any, mask_B: Any) -> Any:
    """`kept` with the rows where the mask is true."""
    import jax

    return jax.tree.map(lambda old, new: jax.numpy.where(_wide(mask_B, old), new.astype(old.dtype), old), kept, rows)


def _wide(mask_B: Any, like: Any) -> Any:
    """The mask as an array that selects rows of another."""
    return mask_B.reshape(-1, *(1,) * (like.ndim - 1))


def _observed(state: Any) -> Any:
    """float32 [B, S]: what a policy sees; of several observations that of the robot, `state`, without `privileged_state`."""
    seen = state.obs
    return seen["state"] if isinstance(seen, Mapping) else seen


def _like(after: Any, before: Any, jax: Any) -> Any:
    """`after` with the types of numbers that `before` has."""
    return jax.tree.map(lambda new, old: new.astype(old.dtype), after, before)
