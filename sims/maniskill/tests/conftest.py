"""ManiSkill's environments, made by options."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_maniskill.simulator import ManiSkill

from mmrl import UserError
from mmrl.specs import SimulatorSpec


@pytest.fixture
def made() -> Iterator[Callable[..., ManiSkill]]:
    """An instance by its spec: `made(spec, 2, obs="state")`; closed at the end."""
    found: list[ManiSkill] = []

    def make(spec: SimulatorSpec, num_envs: int, **options: Any) -> ManiSkill:
        found.append(ManiSkill(num_envs=num_envs, device="cpu", **{**spec.options, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.fixture(scope="session")
def vulkan() -> None:
    """Skips where nothing renders."""
    from mmrl_maniskill.rendering import choose

    try:
        choose("auto", True)
    except UserError as error:
        pytest.skip(str(error))
