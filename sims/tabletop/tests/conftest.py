"""Tables of all kinds, made once."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_tabletop.table import Table


@pytest.fixture
def table() -> Callable[..., Table]:
    """A small table: `table(4, task="push")`."""

    def make(num_envs: int, **options: Any) -> Table:
        return Table(num_envs=num_envs, device="cpu", **{"size": 16} | options)

    return make
