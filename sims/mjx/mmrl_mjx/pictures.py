"""Pictures of chosen worlds by mujoco-warp's batch renderer: rays, on a GPU or a CPU, without OpenGL, displays and drivers."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco_warp
import torch
import warp as wp

from mmrl_mjx.physics import Worlds

BATCHES = (64, 8, 1)
"""Numbers of worlds that are drawn at once: as many as are wanted, and memory for no more."""


class BatchRenderer:
    """Draws the worlds that are asked for; the picture of each depends on its own state alone."""

    def __init__(self, worlds: Worlds, cameras: Sequence[str], size: int) -> None:
        """size: side in pixels."""
        self._worlds, self._cameras, self._size = worlds, tuple(cameras), size
        self._batches: dict[int, tuple[mujoco_warp.Data, mujoco_warp.RenderContext]] = {}

    def __call__(self, ids_n: torch.Tensor) -> dict[str, torch.Tensor]:
        """Camera -> uint8 [n, H, W, 3] of these worlds, in this order."""
        shape = (len(ids_n), self._size, self._size, 3)
        shown = {camera: torch.empty(shape, dtype=torch.uint8, device=ids_n.device) for camera in self._cameras}
        done = 0
        for batch in BATCHES:
            while len(ids_n) - done >= batch:
                for camera, pixels in self._draw(ids_n[done : done + batch]).items():
                    shown[camera][done : done + batch] = pixels
                done += batch
        return shown

    def _draw(self, ids_n: torch.Tensor) -> dict[str, torch.Tensor]:
        worlds, size = self._worlds, self._size
        with worlds.on_stream():
            data, context = self._batch(len(ids_n))
            for name in ("qpos", "mocap_pos"):
                if name in worlds.views:
                    wp.to_torch(getattr(data, name)).copy_(worlds.views[name][ids_n])
            mujoco_warp.kinematics(worlds.model, data)
            mujoco_warp.camlight(worlds.model, data)
            mujoco_warp.refit_bvh(worlds.model, data, context)
            mujoco_warp.render(worlds.model, data, context)
            pictures = wp.empty((len(ids_n), size, size), dtype=wp.vec3)
            shown = {}
            for number, camera in enumerate(self._cameras):
                mujoco_warp.get_rgb(context, number, pictures)
                shown[camera] = (wp.to_torch(pictures) * 255 + 0.5).clamp(0, 255).to(torch.uint8)
        return shown

    def _batch(self, count: int) -> tuple[mujoco_warp.Data, mujoco_warp.RenderContext]:
        """Worlds of their own to draw from, and what the renderer needs for as many."""
        if count not in self._batches:
            source = self._worlds.source
            data = mujoco_warp.make_data(source, nworld=count, nconmax=1, njmax=1)
            context = mujoco_warp.create_render_context(
                source,
                nworld=count,
                cam_res=(self._size, self._size),
                render_rgb=True,
                use_shadows=False,
                cam_active=list(self._cameras),
            )
            self._batches[count] = (data, context)
        return self._batches[count]
