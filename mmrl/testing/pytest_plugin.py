"""Fixtures for plugins. pytest loads this module wherever mmrl is installed, so it imports mmrl only when a fixture is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mmrl.testing import Report


@pytest.fixture(scope="session")
def check_plugin() -> Callable[..., list[Report]]:
    """`check_plugin("flags")` runs the conformance kit on a whole plugin, see `mmrl.testing.check_plugin`."""
    from mmrl.testing import check_plugin

    return check_plugin


@pytest.fixture(scope="session")
def mmrl_registry() -> Any:
    """The plugins of this environment, see `mmrl.registry.plugins.Registry`."""
    from mmrl.registry.plugins import registry

    return registry()
