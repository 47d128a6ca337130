"""What `mmrl doctor` says of mujoco-warp."""

import importlib.util

import pytest
from mmrl_mjx.diagnosis import findings


def test_it_names_versions_devices_and_the_cache() -> None:
    (found,) = findings().values()
    assert found["state"] == "ok" and "mujoco-warp 4.0" in found["detail"] and "CPU" in found["detail"]
    assert "kernels are kept in /" in found["detail"]


def test_what_is_missing_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mujoco_warp" else real(name))
    assert findings()["mjx"] == {
        "state": "missing",
        "detail": "no module named 'mujoco_warp'",
        "cure": 'pip install "multimodal-rl[mjx]"',
    }
