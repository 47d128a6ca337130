"""How a device is chosen. Probes are real processes; what they find is planted by the files that they are given."""

import subprocess
from pathlib import Path

import pytest
from mmrl_maniskill import rendering

from mmrl import UserError
from mmrl.api import processes
from mmrl.api.simulators.processes import EnvironmentProcesses


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver is installed, no variable set, nothing known from before."""
    for name in rendering.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rendering, "DRIVERS", ())
    monkeypatch.setattr(rendering.Path, "glob", lambda self, pattern: iter(()))
    rendering._probe.cache_clear()


def test_without_any_device_states_are_given_and_it_is_said() -> None:
    with pytest.warns(UserWarning, match="gives states but no pictures: no GPU and no software driver.*apt-get install"):
        assert rendering.choose("auto", False).rendering == "none"


def test_without_any_device_pictures_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"maniskill can't render: no GPU and no software driver.*apt-get install.*obs = \"state\""
    ):
        rendering.choose("auto", True)
    with pytest.raises(UserError, match='rendering = "none" gives no pictures'):
        rendering.choose("none", True)
    with pytest.raises(UserError, match="can't render"):
        rendering.choose("software", False)


def test_a_driver_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str | None) -> None:
    driver = tmp_path / "broken_icd.json"
    driver.write_text("{}")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(driver))
    with pytest.raises(UserError, match=rf"{driver} doesn't work \(.*\)"):
        rendering.choose("auto", True, python)
    with pytest.warns(UserWarning, match=f"states but no pictures: {driver}"):
        assert rendering.choose("auto", False, python).rendering == "none"


def test_the_ladder_goes_down_from_a_gpu_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rung works is planted; the order, the words and what is kept are not."""
    first, second = (
        rendering.Rung(rendering="gpu", driver="the GPU"),
        rendering.Rung(rendering="software", driver="/a/driver.json"),
    )
    monkeypatch.setattr(rendering, "_rungs", lambda wanted, gpu: [first, second])
    monkeypatch.setattr(rendering, "_probe", lambda kind, *_: "it hung" if kind == "gpu" else None)
    with pytest.warns(UserWarning, match=r"renders with /a/driver.json: the GPU doesn't work \(it hung\)"):
        assert rendering.choose("auto", True) is second
    monkeypatch.setattr(rendering, "_probe", lambda kind, *_: None)
    assert rendering.choose("auto", True) is first


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(processes, "subprocess", subprocess)  # a new interpreter takes longer to start than the deadline
    begin = EnvironmentProcesses._start_process
    monkeypatch.setattr(EnvironmentProcesses, "_start_process", lambda self: started.append(0) or begin(self))
    found = rendering._probe("software", (("VK_ICD_FILENAMES", "/no/such/driver.json"),), None, 0.01)
    assert len(started) == 1, "a device that hangs is not tried again"
    assert found == "start took longer than 0.01 s, and its process was killed"
