"""What `mmrl doctor` says of Playground, of facts; and that an interpreter that can't be asked is said to be so."""

import pytest
from mmrl_playground import diagnosis, packages

TOLD = {"package": "playground 0.2.0, jax 0.10.2", "devices": "1 x cpu", "menagerie": ""}


def test_an_installed_package_is_named_with_its_devices_and_folders() -> None:
    found = diagnosis.package(TOLD, "/opt/python")
    assert found["state"] == "ok"
    assert found["detail"].startswith("playground 0.2.0, jax 0.10.2 in /opt/python; devices: 1 x cpu; MuJoCo Menagerie: none")
    assert "compiled programs are kept in /" in found["detail"]
    assert "MuJoCo Menagerie: /robots;" in diagnosis.package({**TOLD, "menagerie": "/robots"}, None)["detail"]


def test_a_missing_package_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(packages.PYTHON, raising=False)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    found = diagnosis.findings()["playground"]
    assert found == {"state": "missing", "detail": "no module named 'mujoco_playground' here", "cure": packages.CURE}


@pytest.mark.parametrize("python", ["/no/such", "/bin/false"])
def test_an_interpreter_that_does_not_answer_is_said(python: str) -> None:
    found = diagnosis.package(diagnosis.ask(python), python)
    assert found["state"] == "missing" and f"MMRL_PLAYGROUND_PYTHON = '{python}' can't be asked" in found["detail"]
    assert found["cure"] == "name an interpreter"
