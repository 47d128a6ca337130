"""What a VLA can't be made of is one line, of the check before a run, which makes nothing but networks without values."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.load import checked_options, make_policy, policy_class
from mmrl.registry import plugins

MODELS = {
    "vla": ("vla", "tiny:qwen2_5_vl:hidden=32,layers=2"),
    "openvla": ("vla", "tiny:openvla:hidden=32,layers=2"),
    **{
        kind: (kind, f"tiny:{kind}:hidden=32,layers=2,chunk=5")
        for kind in ("pi0", "pi05", "pi0_fast", "smolvla", "xvla", "gr00t")
    },
}
"""By name: the kind of the policy, and its model."""


def config(name, model, lora=None):
    options = {"dims": 3} if name in ("vla", "openvla") else {"dims": 3, "state": 6, "chunk": 2}
    return PolicyConfig(model=str(model), kind=MODELS[name][0], options=options, lora=lora)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of adapters for each name, and one of each whole policy."""
    root = tmp_path_factory.mktemp("saved")
    for name, (_, model) in MODELS.items():
        make_policy(config(name, model)).save(root / name)
        make_policy(config(name, model, LoraConfig(rank=2))).save(root / f"{name}-adapters")
    return root


def told(name, model, monkeypatch):
    """What a run's check of a `policy.model` says."""

    def allocated(*args, **kwargs):
        raise AssertionError("weights were made or read")

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", allocated)
    monkeypatch.setattr("safetensors.torch.load_file", allocated)
    found = config(name, model)
    spec = plugins.registry().get("policies", found.kind)
    with pytest.raises(UserError) as error:
        checked_options(found, spec)
        policy_class(spec).check(found)
    assert "\n" not in str(error.value) and error.value.key == "policy.model"
    return error.value.what


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_without_weights(name, saved, tmp_path, monkeypatch):
    shutil.copytree(saved / name, tmp_path / "bare", ignore=shutil.ignore_patterns("model*.safetensors"))
    assert told(name, tmp_path / "bare", monkeypatch) == (
        f"{str(tmp_path / 'bare')!r}: it has no weights: there is neither model.safetensors nor model.safetensors.index.json: "
        "copy them, too"
    )


@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_another_base(name, saved, tmp_path, monkeypatch):
    """One of another size, one of another kind, and one that is lost."""
    folder = tmp_path / "adapters"
    shutil.copytree(saved / f"{name}-adapters", folder)
    table = json.loads((folder / "adapter_config.json").read_text())
    other = saved / ("openvla" if name != "openvla" else "vla")
    wide = MODELS[name][1].replace("hidden=32", "hidden=64")
    cure = "give its own model as base_model_name_or_path in adapter_config.json"
    instead = "take a GR00T" if name == "gr00t" else "give a folder"
    for base, said in (
        (wide, [f"and the layer of {wide!r} has", cure]),
        (str(other), ["which their model", cure] if name in ("vla", "openvla") else [str(other), instead]),
        (str(tmp_path / "lost"), [f"the model of its adapters, {str(tmp_path / 'lost')!r} is not a folder: put it there"]),
    ):
        (folder / "adapter_config.json").write_text(json.dumps({**table, "base_model_name_or_path": base}))
        found = told(name, folder, monkeypatch)
        assert all(part in found for part in said), found


@pytest.mark.parametrize("name", MODELS)
def test_a_kind_that_contradicts_the_folder(name, saved, tmp_path, monkeypatch):
    """Both as mmrl saved the other policy, and as others publish it."""
    kind = MODELS[name][0]
    for other, (own, _) in MODELS.items():
        if own == kind:
            continue
        found = told(name, saved / other, monkeypatch)
        assert found.endswith(f'holds a policy of another kind than policy.kind = {kind!r}: set policy.kind = "{own}"')
        published = tmp_path / other
        shutil.copytree(saved / other, published, ignore=shutil.ignore_patterns("acting.*"))
        found = told(name, published, monkeypatch)
        assert f'set policy.kind = "{own}"' in found if kind == "vla" else ", not " in found, found
        assert str(published) in found
