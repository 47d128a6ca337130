"""What `mmrl doctor` says of robosuite, of facts; and that an interpreter that can't be asked is said to be so."""

import pytest
from mmrl_robosuite import diagnosis, packages


def test_what_is_installed_is_named_with_its_interpreter(monkeypatch):
    monkeypatch.setattr(packages, "check", lambda: None)
    monkeypatch.setattr(packages, "version", {"robosuite": "1.5.2", "mujoco": "3.5.0", "numpy": "2.4.6", "h5py": "3.16.0"}.get)
    assert diagnosis.package(diagnosis.ask(None), "there") == {
        "state": "ok",
        "detail": "robosuite 1.5.2, mujoco 3.5.0, numpy 2.4.6 in there",
    }
    assert diagnosis.package({"package": "robosuite 1.5.2", "h5py": ""}, "there")["cure"] == "pip install h5py"


def test_a_missing_or_another_robosuite_has_a_cure(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    found = diagnosis.package(diagnosis.ask(None), None)
    assert found["state"] == "missing" and found["detail"] == "not installed here, and no other interpreter is named"
    assert found["cure"].startswith("pip install") and packages.PYTHON in found["cure"]
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(packages, "version", {"robosuite": "1.4.0"}.get)
    assert "robosuite 1.4.0 is installed, and its version must be 1.5" in diagnosis.package(diagnosis.ask(None), None)["detail"]


@pytest.mark.parametrize("python", ["/no/such", "/bin/false"])
def test_an_interpreter_that_does_not_answer_is_said(python):
    found = diagnosis.package(diagnosis.ask(python), python)
    assert found["state"] == "missing" and f"MMRL_ROBOSUITE_PYTHON = '{python}' can't be asked" in found["detail"]
