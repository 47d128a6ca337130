"""The toy task, in this process and in the workers it starts."""

import pytest

import runs


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
