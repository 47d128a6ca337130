"""A pi0 or pi0.5 that LeRobot saved is the same policy here: its weights under LeRobot's names, its config.json, its processors,
its way of resizing. `test_pi0_of_lerobot` compares with LeRobot itself."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import interpolate, pad

from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.pi0 import loading
from mmrl.policies.pi0.lerobot_names import network_weights, saved_weights
from mmrl.policies.pi0.model import Pi0
from pi0_cases import CALLS, KINDS, SEEDS, moved, pi0, seen

EMBEDDING = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"
BOTH = pytest.mark.parametrize("kind", KINDS)
CONFIG = {
    "n_obs_steps": 1,
    "input_features": {
        "observation.images.front": {"type": "VISUAL", "shape": [3, 56, 56]},
        "observation.images.right": {"type": "VISUAL", "shape": [3, 56, 56]},
        "observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 56, 56]},
        "observation.state": {"type": "STATE", "shape": [6]},
    },
    "output_features": {"action": {"type": "ACTION", "shape": [3]}},
    "chunk_size": 5,
    "n_action_steps": 5,
    "max_state_dim": 32,
    "max_action_dim": 32,
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "image_resolution": [56, 56],
    "num_inference_steps": 10,
    "use_relative_actions": False,
    "empty_cameras": 1,
    "tokenizer_max_length": 90,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "QUANTILES"},
}
"""Of `PI0Policy.save_pretrained`, lerobot 0.6.1."""
TENSORS = {
    "observation.state.mean": torch.arange(6) / 8,
    "observation.state.std": torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0, 1.0]),
    "action.mean": torch.zeros(3),
    "action.q01": torch.tensor([-1.0, 0.25, 0.5]),
    "action.q99": torch.tensor([1.0, 0.75, 0.5]),
}


def as_lerobot_saves(policy, folder, tied=False, tensors=TENSORS, config=None, more=()):
    """tied: the language model's head is the embedding, of which safetensors keeps one name."""
    renamed = {}
    for name, weight in policy.model.state_dict().items():
        name = re.sub(r"^model\.vlm\.vision_tower\.", "model.vlm.vision_tower.vision_model.", name)
        name = re.sub(r"^model\.vlm\.", "paligemma_with_expert.paligemma.model.", name)
        name = re.sub(r"^model\.dit\.embed_tokens\.", "paligemma_with_expert.gemma_expert.lm_head.", name)
        name = re.sub(r"^model\.dit\.", "paligemma_with_expert.gemma_expert.model.", name)
        renamed["model." + name.removeprefix("embed_action_time.")] = weight.clone()
    assert EMBEDDING in renamed and HEAD not in renamed
    renamed[HEAD] = renamed.pop(EMBEDDING) if tied else torch.randn_like(renamed[EMBEDDING])
    folder.mkdir()
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | {"type": policy.kind} | (config or {})))
    for name, kind in (("policy_preprocessor", "normalizer_processor"), ("policy_postprocessor", "unnormalizer_processor")):
        modes = (config or {}).get("normalization_mapping", CONFIG["normalization_mapping"])
        step = {"registry_name": kind, "config": {"eps": 1e-8, "norm_map": modes}}
        if tensors:
            step["state_file"] = f"{name}_step_1_{kind}.safetensors"
            save_file(tensors, folder / step["state_file"])
        renaming = {"rename_map": {"observation.images.wrist": "observation.images.right"}}
        first = [{"registry_name": "rename_observations_processor", "config": renaming}] if name == "policy_preprocessor" else []
        steps = [*first, step, {"registry_name": "relative_actions_processor", "config": {"enabled": False}}, *more]
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}))
    policy.tokenizer.save_pretrained(folder)
    return str(folder)


@BOTH
def test_the_config_that_lerobot_saves_is_read(kind, tmp_path):
    """Without weights, as for a name on the hub, the network has the published sizes."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"type": kind, "max_action_dim": 24}))
    found = loading._settings(str(tmp_path), kind)
    assert (found.chunk_size, found.max_state_dim, found.max_action_dim, found.dit_config.hidden_size) == (5, 32, 24, 1024)


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_what_lerobot_saved_acts_the_same(kind, tied, tmp_path):
    policy = moved(pi0(kind=kind, text_tokens=90))
    name = as_lerobot_saves(policy, tmp_path / "lerobot", tied)
    loading.check_model(PolicyConfig(model=name, kind=kind, options={"state": 6}), kind)
    again = pi0(name, kind=kind, resize="openpi", statistics="none")
    theirs, ours = (
        {n: p for n, p in m.named_parameters() if n != "model.dit.embed_tokens.weight"} for m in (policy.model, again.model)
    )
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0) for p in (policy, again))
    assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)


@BOTH
def test_its_processors_say_what_its_numbers_mean(kind, tmp_path):
    """Two ways of normalising, a number that never changed in each, and cameras under the robot's names."""
    policy = pi0(as_lerobot_saves(pi0(kind=kind), tmp_path / "lerobot"), kind=kind)
    state = seen().state
    wanted = (state - TENSORS["observation.state.mean"]) / (TENSORS["observation.state.std"] + 1e-8)
    torch.testing.assert_close(policy.normalised_state(seen(), 6), wanted, rtol=1e-5, atol=1e-5)
    actions = policy.statistics.action.unnormalize(torch.tensor([[0.5, 0.5, 0.5], [-1.0, -1.0, -1.0]]))
    torch.testing.assert_close(actions, torch.tensor([[0.5, 0.625, 0.5], [-1.0, 0.25, 0.5]]))
    assert (policy.cameras, policy.text_tokens) == (["front", "wrist"], 90)
    policy.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    pictures = ["observation.images.front", "observation.images.right"]
    assert [k for k in config["input_features"] if "images" in k] == pictures
    assert config["normalization_mapping"] == CONFIG["normalization_mapping"] and config["type"] == kind
    before = json.loads((tmp_path / "saved" / "policy_preprocessor.json").read_text())["steps"]
    (state_file,) = (step["state_file"] for step in before if "state_file" in step)
    kept = load_file(tmp_path / "saved" / state_file)
    assert kept.keys() == {"action.q01", "action.q99", "observation.state.mean", "observation.state.std"}
    assert all(torch.equal(value, TENSORS[name]) for name, value in kept.items())
    options = {name: value for name, value in saved_options(tmp_path / "saved").items() if name != "kind"}
    again = pi0(str(tmp_path / "saved"), kind=kind, **options)
    assert again.statistics == policy.statistics and again.statistics.state.kind != again.statistics.action.kind
    renaming = before[0]["config"]["rename_map"]
    assert renaming == {"observation.images.wrist": "observation.images.right"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": {}}, r"its action is normalised by QUANTILES, .* lack action.q01 and action.q99: they have no stat"),
        (
            {"tensors": {k: v for k, v in TENSORS.items() if "state" not in k}},
            r"its observation.state is normalised by MEAN_STD, and .*: they have action.mean, action.q01, action.q99: set policy",
        ),
        ({"config": {"use_relative_actions": True}}, r"its actions are relative to the state, which mmrl doesn't compute$"),
        (
            {"config": {"normalization_mapping": {"VISUAL": "MEAN_STD"}}},
            r"its pictures are normalised by 'MEAN_STD', which mmrl doesn't compute$",
        ),
        ({"config": {"input_features": {"a": 3}}}, r"is not as LeRobot writes it: AttributeError: .*: copy the folder again$"),
        ({"config": {"tokenizer_max_length": "x"}}, r"is not as LeRobot writes it: ValueError: .*: copy the folder again$"),
        ({"more": ["steps"]}, r"is not as LeRobot writes it: AttributeError: .*: copy the folder again$"),
        ({"more": [{"registry_name": "delta"}]}, r"policy_preprocessor.json has the step 'delta', which mmrl doesn't compute$"),
    ],
)
def test_what_cannot_be_computed_is_told_before_weights_are_read(changes, message, tmp_path, monkeypatch):
    name = as_lerobot_saves(pi0(), tmp_path / "lerobot", **changes)
    monkeypatch.setattr(loading, "load_file", None)
    monkeypatch.setattr(loading, "network_class", None)
    for refuse in (pi0, lambda it: loading.check_model(PolicyConfig(model=it, kind="pi0", options={"state": 6}), "pi0")):
        with pytest.raises(UserError, match=message) as told:
            refuse(name)
        assert "\n" not in str(told.value)


@BOTH
def test_names_of_weights_are_those_of_lerobot_and_back(kind):
    network = pi0(kind=kind).model
    saved = saved_weights(network, kind)
    assert all(name.startswith("model.") for name in saved) and HEAD in saved and EMBEDDING not in saved
    back = network_weights(saved)
    own = dict(network.named_parameters())
    assert back.keys() - own.keys() <= {"model.dit.embed_tokens.weight"} and own.keys() <= back.keys()
    assert all(torch.equal(own[name], back[name]) for name in own)


def test_a_weight_that_lerobot_did_not_save_is_named(tmp_path):
    name = as_lerobot_saves(pi0(), tmp_path / "lerobot", True)
    cut = load_file(tmp_path / "lerobot" / "model.safetensors")
    cut.pop("model.action_out_proj.bias")
    save_file(cut, tmp_path / "lerobot" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 of pi0's weights, such as action_out_proj.bias"):
        pi0(name)
    save_file({"model.paligemma_with_expert.x": torch.zeros(1)}, tmp_path / "lerobot" / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks weights of a pi0 in LeRobot's layout, such as model\.vlm\.vision_tower") as told:
        pi0(name)
    assert "\n" not in str(told.value)
    (tmp_path / "lerobot" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"policy\.model: .* can't be loaded: .*give a folder or hub name of a pi0") as told:
        pi0(name)
    assert "\n" not in str(told.value)


def test_pictures_are_resized_as_the_checkpoint_was_trained(tmp_path):
    """LeRobot interpolates between neighbours, in [0, 1]; the wrist's 40 x 64 fill 35 of 56 rows."""
    policy, shown = pi0(), seen()
    again = pi0(as_lerobot_saves(policy, tmp_path / "lerobot"))
    assert (policy.resize, again.resize) == ("openpi", "lerobot")
    found = again._pictures(shown)
    wrist = shown.images["wrist"].permute(0, 3, 1, 2).float() / 255
    wanted = pad(interpolate(wrist, (35, 56), mode="bilinear", align_corners=False), (0, 0, 10, 11)) * 2 - 1
    torch.testing.assert_close(found[:, 1], wanted, atol=1e-5, rtol=0)
    front = shown.images["front"].permute(0, 3, 1, 2).float() / 255
    wanted = interpolate(front, (56, 56), mode="bilinear", align_corners=False) * 2 - 1
    torch.testing.assert_close(found[:, 0], wanted, atol=1e-5, rtol=0)
    assert (found - policy._pictures(shown)).abs().max() > 0.1


@pytest.mark.parametrize("layout", ["transformers", "lerobot"])
def test_the_way_of_resizing_is_saved_and_may_be_changed(layout, tmp_path):
    again = pi0(as_lerobot_saves(pi0(), tmp_path / "lerobot"), statistics="none", layout=layout)
    again.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "acting.json").read_text())["resize"] == "lerobot"
    saved, options = str(tmp_path / "saved"), {"cameras": ["front"], "text_tokens": 90}
    assert pi0(saved, **options).resize == pi0(source=tmp_path / "saved", **options).resize == "lerobot"
    assert pi0(saved, resize="openpi", **options).resize == "openpi"
    kept = json.loads((tmp_path / "saved" / "acting.json").read_text())
    del kept["resize"]
    (tmp_path / "saved" / "acting.json").write_text(json.dumps(kept))
    if layout == "transformers":
        assert pi0(saved, **options).resize == "openpi", "as all were before there was a choice"


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "adapters"])
def test_lerobot_is_told_the_cameras_that_a_policy_in_transformers_layout_was_shown(lora, tmp_path):
    policy = pi0(lora=lora)
    policy.look(seen())
    policy.save(tmp_path / "run")
    again = pi0(lora=lora, source=tmp_path / "run", layout="lerobot")
    assert again.cameras == [], "another simulator's are still taken as they come"
    again.lora = None  # as if they were merged
    again.save(tmp_path / "out")
    inputs = json.loads((tmp_path / "out" / "config.json").read_text())["input_features"]
    assert list(inputs) == ["observation.images.front", "observation.images.wrist", "observation.state"]
    if not lora:
        assert pi0(str(tmp_path / "run"), layout="lerobot").shown == again.shown, "also where a run begins from it"
    assert "shown" not in saved_options(tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("pi0", {"resize": "pillow"}, r"policy\.options\.resize = 'pillow' must be one of 'auto', 'openpi', 'lerobot'$"),
        ("pi0", {"layout": "openpi"}, r"policy\.options\.layout = 'openpi' must be one of 'auto', 'transformers', 'lerobot'$"),
        ("pi05", {"layout": "transformers"}, r"options\.layout = 'transformers' must be one of 'auto', 'lerobot'$"),
    ],
)
def test_another_way_is_refused(kind, options, message):
    with pytest.raises(UserError, match=message):
        pi0(kind=kind, **options)


def test_each_kind_refuses_the_other(tmp_path):
    assert issubclass(KINDS["pi05"], Pi0)
    for kind, other in (("pi0", "pi05"), ("pi05", "pi0")):
        pi0(kind=kind, layout="lerobot").save(tmp_path / kind)
        with pytest.raises(UserError, match=f"is a {kind}, not a {other}: give a folder or hub name of a {other} that"):
            pi0(str(tmp_path / kind), kind=other)
        with pytest.raises(UserError, match=f"'tiny:{kind}' is no {other}: write tiny:{other}"):
            pi0(f"tiny:{kind}", kind=other)
