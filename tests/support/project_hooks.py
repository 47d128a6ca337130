"""Hooks for all tests, those of plugins/ and sims/ too, whichever of them are named: a plugin of pytest, see pyproject.toml."""

from __future__ import annotations

import os

import pytest

import fork_server
import forked
import long_tests
import working_folder

CI_LINES = 12
"""Last lines of a failure that are told at once."""


def pytest_configure(config: pytest.Config) -> None:
    for hooks in (long_tests, working_folder):
        config.pluginmanager.register(hooks)
    fork_server.prepare()  # here, so that the processes of pytest-xdist share one
    forked.fork_children()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On CI, tell of a failure when it happens, so that a run that is cut off has said what failed."""
    if report.failed and "CI" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        said = str(report.longrepr).splitlines()
        print(
            "", f"FAILED {report.nodeid} after {report.duration:.0f} s ({report.when})", *said[-CI_LINES:], sep="\n", flush=True
        )
