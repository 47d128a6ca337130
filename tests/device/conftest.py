"""The pretended device, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pretended_device as pretended


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[pretended.Ledger]:
    """torch has a device cuda:0 that isn't there; the value records what the host waits for."""
    # FlexAttention's kernels can't be compiled for a device that isn't there
    monkeypatch.setattr("mmrl.policies.vlm.attention.ways", lambda setting, device: ())
    monkeypatch.setattr("mmrl.policies.vlm.vlm._PROBED", {})
    try:
        with pretended.pretended_device(request.config.cache.mkdir("pretended_device")) as ledger:
            yield ledger
    except pretended.NoCompiler as why:
        pytest.skip(str(why))
