"""Tests start in the folder in which pytest was called. A file that leaves its process in another one is named, by the first test
after it, and those after that start where they should."""

from __future__ import annotations

import os

import pytest

_file = ""
"""Of the last test."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _file
    before, _file = _file, item.nodeid.partition("::")[0]
    if before == _file:  # fixtures of a whole file may change it
        return
    start = item.config.invocation_params.dir
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = "one that is gone"
    if folder != str(start):
        os.chdir(start)
        pytest.fail(f"the working folder is {folder}: {before} left it so")
