"""N worlds of one MuJoCo model, stepped at once by mujoco-warp, on a GPU or, by the same kernels, on a CPU."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import mujoco
import mujoco_warp
import torch
import warp as wp

from mmrl import UserError
from mmrl_mjx.control import follow
from mmrl_mjx.models import ARM, HOME, OPEN

INTEGRATION = ("time", "qpos", "qvel", "qacc_warmstart", "ctrl", "mocap_pos")
"""Fields of MuJoCo's integration state (mjSTATE_INTEGRATION) that ever change here; applied forces, equalities and the turns of
mocap bodies stay as the model has them."""
CONTACTS, ROWS = 48, 192
"""Room for contacts, and for rows of constraints, of one world."""

LAUNCHING = threading.Lock()
"""Held while Warp launches: its current device, and each device's stream, are the whole process's, and each lane has a thread."""
UNREMARKABLE = mujoco_warp.OverflowType.ITERATIONS | mujoco_warp.OverflowType.LS_ITERATIONS
"""Of what kernels print: that a solver has reached its limit, as it does when things collide."""


class Worlds:
    """N worlds. Tensors are views of mujoco-warp's arrays: writing into them changes the worlds.

    On a CPU a world's future depends on its own state alone, bit for bit. On a GPU mujoco-warp is asked for the same
    (`Option.deterministic`).
    """

    def __init__(self, scene: str, num: int, device: torch.device, substeps: int) -> None:
        """scene: MJCF. num: N. device: cpu or cuda. substeps: steps of the physics in a step. Raises UserError for a device that
        Warp doesn't have."""
        wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # it would report each of a hundred kernels
        wp.init()
        try:
            self._device = wp.get_device(str(device))
        except (RuntimeError, ValueError) as error:
            raise UserError(f"mjx: Warp has no device {str(device)!r} here: use cpu, or cuda with an NVIDIA GPU") from error
        self.num, self.substeps = num, substeps
        self.source = mujoco.MjModel.from_xml_string(scene)
        """MuJoCo's own model."""
        with _launching(wp.ScopedDevice(self._device)):
            self.model = mujoco_warp.put_model(self.source)
            self.model.opt.warn_overflow &= ~UNREMARKABLE
            if self._device.is_cuda:
                self.model.opt.deterministic = mujoco_warp.DeterminismType.ALL
                # a driver before CUDA 12.4 has no such graphs: there each launch has all iterations of the solver
                self.model.opt.graph_conditional = wp.is_conditional_graph_supported()
            self.data = mujoco_warp.make_data(self.source, nworld=num, nconmax=CONTACTS, njmax=ROWS)
            self._home: wp.array = wp.array(HOME, dtype=wp.float32)
            self._before, self._after = (wp.zeros((num, 6), dtype=wp.float32) for _ in range(2))
        self.grip = self.source.site("grip").id
        names = [name for name in INTEGRATION if getattr(self.data, name).size]
        self.views = {name: wp.to_torch(getattr(self.data, name)) for name in names}
        """Field -> [N, ...]."""
        self.sites = wp.to_torch(self.data.site_xpos)
        """[N, sites, 3]: metres."""
        self._graph: wp.Graph | None = None
        self._compile(scene)

    @property
    def grips(self) -> torch.Tensor:
        """[N, 3]: the point between the fingertips, metres."""
        return self.sites[:, self.grip]

    def state(self, ids_n: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Copies of the rows of these worlds, or of all."""
        return {name: view.clone() if ids_n is None else view[ids_n] for name, view in self.views.items()}

    def put(self, ids_n: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        """Put these worlds into this state; fields that aren't given are 0."""
        for name, view in self.views.items():
            view[ids_n] = state.get(name, 0)
        self._kinematics()

    def keep(self, moved_N: torch.Tensor, before: Mapping[str, torch.Tensor]) -> None:
        """Put all but the moved worlds back, and find where everything is: a step leaves the places of its beginning. before:
        the `state` before it."""
        for name, view in self.views.items():
            moved = moved_N.view(-1, *(1,) * (view.dim() - 1))
            view.copy_(torch.where(moved, view, before[name]))
        self._kinematics()

    def step(self, before_N6: torch.Tensor, after_N6: torch.Tensor, closed_N: torch.Tensor) -> None:
        """Lead the gripper from one commanded pose to another, and close or open it. before_N6, after_N6: x, y, z, roll, pitch,
        yaw; metres, radians. closed_N: bool."""
        self.views["ctrl"][:, ARM:] = torch.where(closed_N, 0.0, OPEN)[:, None]
        wp.to_torch(self._before).copy_(before_N6)
        wp.to_torch(self._after).copy_(after_N6)
        with self.on_stream():
            if self._graph is None:
                self._advance()
            else:
                wp.capture_launch(self._graph, stream=wp.get_stream(self._device))

    def _advance(self) -> None:
        """The joints are led along the way: told its end at once, some would be there before others, and shake what is held."""
        for i in range(self.substeps):
            mujoco_warp.step1(self.model, self.data)
            share = (i + 1) / self.substeps
            follow(self.model, self.data, self._before, self._after, share, self._home, self.grip)
            mujoco_warp.step2(self.model, self.data)

    def _kinematics(self) -> None:
        with self.on_stream():
            mujoco_warp.kinematics(self.model, self.data)

    def on_stream(self) -> contextlib.AbstractContextManager[None]:
        """Inside, Warp works on this device, its work follows torch's, and torch's follows it."""
        if self._device.is_cuda:
            stream = torch.cuda.current_stream(wp.device_to_torch(self._device))
            return _launching(wp.ScopedStream(wp.stream_from_torch(stream)))
        return _launching(wp.ScopedDevice(self._device))

    def _compile(self, scene: str) -> None:
        """The first step, which compiles all that later ones need. What was compiled for a scene is remembered beside it."""
        kind = "cuda" if self._device.is_cuda else "cpu"
        digest = hashlib.sha256(f"{scene} {kind} {mujoco_warp.__version__} {wp.config.version}".encode()).hexdigest()[:16]
        done = Path(str(wp.config.kernel_cache_dir)) / f"mmrl_mjx_{digest}"
        if not done.exists():
            warnings.warn(
                f"mjx compiles its kernels for {kind}, once: half a minute of a CPU, or a few; they stay in {done.parent}",
                stacklevel=2,
            )
        before = self.state()
        self.put(torch.arange(self.num, device=self.views["qpos"].device), before)
        with _launching(wp.ScopedDevice(self._device)):
            self._advance()
            if self._device.is_cuda:
                with wp.ScopedCapture() as capture:
                    self._advance()
                self._graph = capture.graph
            wp.synchronize_device(self._device)
        self.put(torch.arange(self.num, device=self.views["qpos"].device), before)
        done.touch()


@contextlib.contextmanager
def _launching(scope: wp.ScopedDevice | wp.ScopedStream) -> Iterator[None]:
    """Inside the scope, as one thread at a time. Without a GPU Warp has one device, and threads don't wait for each other."""
    with LAUNCHING if wp.is_cuda_available() else contextlib.nullcontext(), scope:
        yield
