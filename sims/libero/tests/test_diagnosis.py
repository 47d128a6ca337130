"""What `mmrl doctor` says of LIBERO, of facts; and that an interpreter that can't be asked is said to be so."""

import pytest
from mmrl_libero import diagnosis, packages, simulator

from mmrl import UserError
from mmrl.api.simulators import mujoco_rendering as rendering


def test_an_installed_package_is_named_with_its_assets_and_their_source(package):
    found = diagnosis.package(diagnosis.ask(None), None)
    assert found["state"] == "ok"
    assert found["detail"].startswith("hf-libero 0.1.4, mujoco None") and found["detail"].endswith(
        f"the package: {package / 'assets'}"
    )


def test_a_missing_package_has_a_cure(package):
    (package / "bddl_files").rename(package / "elsewhere")
    found = diagnosis.package(diagnosis.ask(None), None)
    assert found["state"] == "missing" and found["detail"] == "not installed here, and no other interpreter is named"
    assert found["cure"].startswith("pip install") and packages.PYTHON in found["cure"]


def test_assets_that_can_not_be_are_said(package, monkeypatch):
    monkeypatch.setenv(packages.VARIABLE, "/no/such")
    found = diagnosis.package(diagnosis.ask(None), None)
    assert found["state"] == "missing" and "/no/such, which MMRL_LIBERO_ASSETS names" in found["detail"]


@pytest.mark.parametrize("python", ["/no/such", "/bin/false"])
def test_an_interpreter_that_does_not_answer_is_said(python):
    found = diagnosis.package(diagnosis.ask(python), python)
    assert found["state"] == "missing" and f"MMRL_LIBERO_PYTHON = '{python}' can't be asked" in found["detail"]


def test_a_way_that_fails_or_hangs_is_skipped_and_said(monkeypatch):
    """EGL is tried in a child; what it does there is no fault of a run."""
    monkeypatch.setattr(rendering, "_devices", lambda: True)
    monkeypatch.setattr(rendering, "_probe", lambda rung, *_: {"gpu": "it took longer than 60 s"}.get(rung.rendering))
    with pytest.warns(UserWarning, match=r"libero renders with osmesa: egl doesn't work .it took longer than 60 s"):
        assert rendering.choose("libero", "auto").environment == {"MUJOCO_GL": "osmesa"}
    found = rendering.finding("libero", None, 30.0)
    assert found["state"] == "note" and "egl doesn't work (it took longer than 60 s)" in found["detail"]
    with pytest.raises(UserError, match="libero can't render: egl doesn't work"):
        rendering.choose("libero", "gpu")


@pytest.mark.parametrize("visible,gpu", [(None, "3"), ("4,5,6,7", "7")])
def test_the_simulator_s_gpu_is_tried_and_draws(monkeypatch, visible, gpu):
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible) if visible else monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = []

    class Processes:
        def __init__(self, factory, *_, environment, **__):
            told.append(environment)
            if not factory.endswith(":Probe"):
                raise UserError("enough")

        def close(self):
            pass

    for module in (rendering, simulator):
        monkeypatch.setattr(module, "EnvironmentProcesses", Processes)
    rendering._probe.cache_clear()
    given = {"suite": "libero_spatial", "max_steps": 9, "python": "/bin/false"}
    with pytest.raises(UserError, match="enough"):
        simulator.Libero(num_envs=1, device="cuda:3", rendering="gpu", **given)
    assert told == [{"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": gpu, "CUDA_VISIBLE_DEVICES": gpu}] * 2
    told.clear()
    with pytest.raises(UserError, match="enough"):
        simulator.Libero(num_envs=1, device="cuda:3", rendering="software", **given)
    assert told == [{"MUJOCO_GL": "osmesa"}] * 2
    rendering._probe.cache_clear()


def test_an_expert_whose_process_dies_ends_no_run(monkeypatch):
    class Processes:
        what, num_envs, lost, facts = "libero", 2, 0, {"instructions": {"": ["pick up the bowl"]}}

        def __init__(self, *_, **__):
            pass

        def call_going(self, method):
            self.lost += 1
            return {1: [0.5] * 7}, {0: "its process was killed by SIGKILL"}

    monkeypatch.setattr(simulator, "EnvironmentProcesses", Processes)
    given = {"suite": "libero_spatial", "max_steps": 9, "python": "/bin/false", "rendering": "none"}
    made = simulator.Libero(num_envs=2, device="cpu", **given)
    with pytest.warns(UserWarning, match=r"libero: environment 0 was lost \(loss number 1\): its process was killed by SIGKILL"):
        assert made.expert().tolist() == [[0.0] * 7, [0.5] * 7]


def test_without_any_way_there_are_states_and_a_cure(monkeypatch):
    monkeypatch.setattr(rendering, "_devices", lambda: False)
    monkeypatch.setattr(rendering, "_probe", lambda *_: "no library")
    with pytest.raises(UserError, match=r'osmesa doesn\'t work .no library.: apt-get install libosmesa6.*rendering = "none"'):
        rendering.choose("libero", "auto")
    found = rendering.finding("libero", None, 30.0)
    assert found == {"state": "missing", "detail": "none, only states: osmesa doesn't work (no library)", "cure": rendering.CURE}
    assert rendering.choose("libero", "none").rendering == "none"
