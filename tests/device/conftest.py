"""The pretended device, for the tests of this folder."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pretended_device as pretended
from mmrl.compute.bitsandbytes import quiet
from pretended_device import library

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "d" / "pretended_device"
if not torch.backends.cuda.is_built():
    # now, when tests are collected: torch asks for the number of devices at a process's first backward pass and never again
    FOLDER.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(pretended.NoCompiler):  # the fixture tells
        made = library.load(FOLDER)
        made.pretend(True)
        torch.ones(1, requires_grad=True).sum().backward()
        made.pretend(False)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[pretended.Ledger]:
    """torch has a device cuda:0 that isn't there; the value records what the host waits for. With the parameter `threads`,
    backward passes run in a thread of the device."""
    if importlib.util.find_spec("bitsandbytes"):
        with quiet():  # peft imports it, and with a device it would look for CUDA's functions in torch
            importlib.import_module("bitsandbytes")
    # FlexAttention's kernels can't be compiled for a device that isn't there
    monkeypatch.setattr("mmrl.policies.vlm.attention.ways", lambda _, __, invariant: ("varlen",) if invariant else ())
    monkeypatch.setattr("mmrl.policies.vlm.vlm._PROBED", {})
    try:
        with pretended.pretended_device(FOLDER, getattr(request, "param", "") == "threads") as ledger:
            yield ledger
    except pretended.NoCompiler as why:
        pytest.skip(str(why))
