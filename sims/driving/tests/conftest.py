"""Roads of both kinds, made once."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_driving.road import Road


@pytest.fixture
def road() -> Callable[..., Road]:
    """A small road: `road(4, task="motorway")`."""

    def make(num_envs: int, **options: Any) -> Road:
        return Road(num_envs=num_envs, device="cpu", **{"size": 16} | options)

    return make
