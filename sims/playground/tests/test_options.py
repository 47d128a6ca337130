"""What is refused before a process is started, and what listing shows."""

import mmrl_playground
import pytest
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
    told = simulator._environment("gpu", "software")
    assert (told["JAX_PLATFORMS"], told["MUJOCO_GL"]) == ("cuda", "osmesa")
    assert told["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "cache")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = simulator._environment("auto", "gpu")
    assert "JAX_PLATFORMS" not in told and told["MUJOCO_GL"] == "egl"
    assert told["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mmrl" / "playground")


def test_specs_are_plain_and_say_who_diagnoses_them() -> None:
    specs = {spec.id: spec for spec in mmrl_playground.mmrl_simulators()}
    assert len(specs) == 26 and specs["playground/humanoid-run"].action.dims == 21
    assert specs["playground/cartpole-balance"].options == {"task": "CartpoleBalance", "instruction": "keep the pole upright"}
    assert {spec.max_steps for spec in specs.values()} == {1000}
