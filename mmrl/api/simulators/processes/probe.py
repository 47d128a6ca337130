"""Draws one picture with MuJoCo, to try a way to render in a process that may hang or crash. Loaded by its path, as `child` is:
the interpreter that has MuJoCo may have no mmrl."""

from __future__ import annotations

from typing import Any


class Empty(Exception):
    """Nothing was drawn."""

    plain = True


class Probe:
    """An environment whose making is the trial."""

    facts = {"dims": 1}

    def __init__(self) -> None:
        import mujoco

        model = mujoco.MjModel.from_xml_string(
            "<mujoco><worldbody><light pos='0 0 3'/><geom type='box' size='1 1 .1' rgba='1 0 0 1'/></worldbody></mujoco>"
        )
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        renderer = mujoco.Renderer(model, 32, 32)
        renderer.update_scene(data)
        if renderer.render().std() < 1:
            raise Empty("its picture is empty")

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        import numpy

        return {"reward": numpy.array(0.0, numpy.float32)}
