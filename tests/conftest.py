"""Fixtures that several test folders use."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import forked
from mmrl.api import processes
from mmrl.registry.plugins import _registry


def pytest_collection() -> None:
    gc.disable()  # of what collecting makes hardly anything is garbage


def pytest_collection_finish() -> None:
    """Leave what was collected and imported out of garbage collections, which would walk through all of it in every test. None is
    made before that: it would take two seconds to find some megabytes."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Before the tests of a file: leave what those before have imported out of garbage collections too, and forget the plugins
    that they wrote, since a file's tests may be dealt out in several parts."""
    if changed := forked.other_at_start(os.environ) - {"PYTHONHASHSEED"}:
        warnings.warn(
            f"commands are new interpreters from here on, which is slow: see forked.SET_BY_LIBRARIES, {changed}", stacklevel=1
        )
    written = str(tmp_path_factory.getbasetemp())
    plugins = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(written)]
    for name in plugins:
        del sys.modules[name]
    if plugins:  # what is installed is read once
        _registry.cache_clear()
    gc.collect()
    gc.freeze()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make distributions that look installed: `site("mmrl-x", {"mmrl_x.py": source}, entry={"x": "mmrl_x"}, requires=[...])`.

    The folder is on sys.path here and in child processes until the test ends.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    for name in ("MMRL_PLUGINS", "MMRL_BLOCK", "MMRL_PLUGIN_FILES", "MMRL_STRICT"):
        monkeypatch.delenv(name, raising=False)
    loaded = set(sys.modules)

    def install(
        dist: str, files: Mapping[str, str], entry: Mapping[str, str], requires: Sequence[str] = (), version: str = "0.1"
    ) -> Path:
        for name, source in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source), "utf-8")
        info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {dist}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (info / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
        points = ["[mmrl.plugins]", *(f"{k} = {v}" for k, v in entry.items())]
        (info / "entry_points.txt").write_text("\n".join(points) + "\n", "utf-8")
        _registry.cache_clear()
        return folder

    yield install
    _registry.cache_clear()
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def mmrl(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own, in a folder of its own: `mmrl("list", "--json")`."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return forked.run(args, cwd=tmp_path, env={**os.environ, **env})

    return run


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of mmrl are what they are for users: new interpreters, and no forks."""
    monkeypatch.setattr(processes, "subprocess", subprocess)


@pytest.fixture(autouse=True)
def _long_tests_start_interpreters(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow") and not request.node.get_closest_marker("forks"):
        request.getfixturevalue("new_interpreters")
