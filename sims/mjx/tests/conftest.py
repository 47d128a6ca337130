"""Arms of all tasks, made once for a module: their kernels are compiled by the first test that needs them, and kept in Warp's
cache for later runs."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed
if importlib.util.find_spec("mujoco_warp") is None:  # it takes three seconds to import, which few tests need
    pytest.skip('mujoco-warp is not installed: pip install "multimodal-rl[mjx]"', allow_module_level=True)

if TYPE_CHECKING:
    from mmrl_mjx.simulator import Mjx


@pytest.fixture(scope="module")
def arms() -> Callable[..., Mjx]:
    """`arms("pick", 3)`, with 4 dims and states; options besides. The same call gives the same instance: begin with a reset."""

    from mmrl_mjx.simulator import Mjx

    @functools.cache
    def make(task: str, num_envs: int, **options: object) -> Mjx:
        return Mjx(num_envs=num_envs, device="cpu", task=task, **{"obs": "state", "dims": 4} | options)

    return make
