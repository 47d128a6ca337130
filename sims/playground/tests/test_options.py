"""What is refused before a process is started, and what listing shows."""

import mmrl_playground
import pytest
import torch
from mmrl_playground import packages, simulator
from mmrl_playground.simulator import Playground

from mmrl import UserError


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No interpreter is named, and nothing was compiled."""
    monkeypatch.delenv(packages.PYTHON, raising=False)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))


def refused(**options: object) -> str:
    with pytest.raises(UserError) as error:
        Playground(**{"num_envs": 2, "device": "cpu", "task": "CartpoleBalance", "instruction": "balance", **options})
    return str(error.value)


@pytest.mark.parametrize(
    "options,said",
    [
        ({"num_envs": 0}, "num_envs = 0 must be a whole number of 1 or more"),
        ({"obs": "pixels"}, "obs = 'pixels' must be one of rgb, state"),
        ({"impl": "brax"}, "impl = 'brax' must be one of jax, warp"),
        ({"platform": ["cpu"]}, "platform = ['cpu'] must be one of auto, cpu, gpu"),
        ({"rendering": "none"}, "rendering = 'none' must be one of software, gpu"),
        ({"size": 4}, "size = 4 must be a whole number of 8 to 1024"),
        ({"block": 0}, "block = 0 must be a whole number of 1 to 65536"),
        ({"config": "ctrl_dt"}, "config = 'ctrl_dt' must be names and values, such as { ctrl_dt = 0.02 }"),
        ({"success_return": 0}, "success_return = 0 must be above 0, the return at the start of an episode"),
        ({"success_return": True}, "success_return = True must be above 0, the return at the start of an episode"),
        ({"python": "/no/such"}, "python = '/no/such' is no program: give the path of an interpreter, such as .venv/bin/python"),
    ],
)
@pytest.mark.filterwarnings("ignore:playground .* is compiled")
def test_a_bad_option_is_one_line(options, said) -> None:
    assert refused(**options) == f"playground (CartpoleBalance): {said}"


def test_without_playground_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    said = refused()
    assert said.startswith("playground (CartpoleBalance): no module named 'mujoco_playground': pip install ")
    assert said.endswith(f"name its interpreter by the option python or {packages.PYTHON}")


def test_a_cache_that_can_not_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/proc/cache")
    with pytest.warns(UserWarning, match="is compiled, once"):
        said = refused(python="/bin/false")
    assert said.endswith("set JAX_COMPILATION_CACHE_DIR to one that can") and "\n" not in said


def test_the_process_is_told_where_to_compute_and_to_keep(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    told = simulator._environment("gpu", "software", torch.device("cpu"))
    assert (told["JAX_PLATFORMS"], told["MUJOCO_GL"]) == ("cuda", "osmesa")
    assert told["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "cache")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = simulator._environment("auto", "gpu", torch.device("cpu"))
    assert "JAX_PLATFORMS" not in told and told["MUJOCO_GL"] == "egl"
    assert told["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mmrl" / "playground")


@pytest.mark.filterwarnings("ignore:playground .* is compiled")
@pytest.mark.parametrize(
    "given,visible,platforms,expected",
    [
        ({"device": "cuda:3"}, None, None, {"CUDA_VISIBLE_DEVICES": "3"}),
        ({"device": "cuda:3"}, "4,5,6,GPU-7", None, {"CUDA_VISIBLE_DEVICES": "GPU-7"}),
        ({"device": "cuda:0"}, None, None, {"CUDA_VISIBLE_DEVICES": "0"}),
        (
            {"device": "cuda:1", "rendering": "gpu", "platform": "gpu"},
            "4,5",
            None,
            {"CUDA_VISIBLE_DEVICES": "5", "MUJOCO_EGL_DEVICE_ID": "5", "JAX_PLATFORMS": "cuda"},
        ),
        ({"device": "cpu"}, "4,5", None, {"JAX_PLATFORMS": "cpu"}),
        ({"device": "cpu"}, None, "cuda", {}),
        ({"device": "cpu", "platform": "gpu"}, None, None, {"JAX_PLATFORMS": "cuda"}),
    ],
)
def test_jax_computes_and_mujoco_draws_where_the_simulator_is(monkeypatch, given, visible, platforms, expected) -> None:
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "JAX_PLATFORMS": platforms, "MUJOCO_EGL_DEVICE_ID": None}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    told = {}

    def processes(*_: object, environment: dict[str, str], **__: object) -> None:
        told.update(environment)
        raise UserError("enough")

    monkeypatch.setattr(simulator, "EnvironmentProcesses", processes)
    assert refused(python="/bin/false", **given) == "enough"
    names = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "MUJOCO_EGL_DEVICE_ID")
    assert {name: told[name] for name in names if name in told} == expected


def test_specs_are_plain_and_say_who_diagnoses_them() -> None:
    specs = {spec.id: spec for spec in mmrl_playground.mmrl_simulators()}
    assert len(specs) == 26 and specs["playground/humanoid-run"].action.dims == 21
    assert specs["playground/cartpole-balance"].options == {"task": "CartpoleBalance", "instruction": "keep the pole upright"}
    assert {spec.max_steps for spec in specs.values()} == {1000}
