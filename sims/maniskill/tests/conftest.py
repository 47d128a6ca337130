"""ManiSkill's environments, made by options, in whatever interpreter has ManiSkill."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_maniskill.simulator import ManiSkill

from mmrl import UserError
from mmrl.api.specs import SimulatorSpec

OWN = Path(__file__).parents[3] / ".simulators" / "maniskill"
"""Where `make simulators` puts it: its packages don't go with mmrl's."""


@pytest.fixture(scope="session")
def python() -> str | None:
    """The option `python`: None where ManiSkill is installed here. Skips where it is nowhere."""
    if importlib.util.find_spec("mani_skill"):
        return None
    if (OWN / "installed").is_file():  # written when all of it was
        return str(OWN / "bin" / "python")
    pytest.skip('ManiSkill is not installed: make simulators, or pip install "multimodal-rl[maniskill]"')


@pytest.fixture
def made(python: str | None) -> Iterator[Callable[..., ManiSkill]]:
    """An instance by its spec: `made(spec, 2, obs="state")`; closed at the end."""
    found: list[ManiSkill] = []

    def make(spec: SimulatorSpec, num_envs: int, **options: Any) -> ManiSkill:
        found.append(ManiSkill(num_envs=num_envs, device="cpu", **{"python": python, **spec.options, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.fixture(scope="session")
def vulkan(python: str | None) -> None:
    """Skips where nothing renders."""
    from mmrl_maniskill.rendering import choose

    try:
        choose("auto", True, python)
    except UserError as error:
        pytest.skip(str(error))
