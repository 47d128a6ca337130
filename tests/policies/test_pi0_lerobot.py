"""A pi0 that LeRobot saved is the same policy here: its weights under LeRobot's names, its config.json, its way of resizing."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate, pad

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.pi0 import loading, tiny
from mmrl.policies.pi0.model import Pi0
from pi0_cases import CALLS, SEEDS, moved, pi0, seen

EMBEDDING = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"
CONFIG = {
    "type": "pi0",
    "n_obs_steps": 1,
    "chunk_size": 5,
    "n_action_steps": 5,
    "max_state_dim": 32,
    "max_action_dim": 32,
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "image_resolution": [56, 56],
    "num_inference_steps": 10,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
}
"""Of `PI0Policy.save_pretrained`, lerobot 0.6.1."""


def as_lerobot_saves(policy, folder, tied):
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
    (folder / "config.json").write_text(json.dumps(CONFIG))
    policy.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def small(monkeypatch):
    """LeRobot's config.json doesn't say the sizes of the network, which are the published ones: here a tiny pi0's."""
    read = loading._settings

    def sized(name):
        found = read(name)
        wide = found.dit_config.hidden_size > 100
        return tiny.config(hidden=32, layers=2, chunk=found.chunk_size) if wide else found

    monkeypatch.setattr(loading, "_settings", sized)


def test_the_config_that_lerobot_saves_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_action_dim": 24}))
    found = loading._settings(str(tmp_path))
    assert (found.chunk_size, found.max_state_dim, found.max_action_dim, found.dit_config.hidden_size) == (5, 32, 24, 1024)


@pytest.mark.parametrize("tied", [True, False])
def test_what_lerobot_saved_acts_the_same(tied, tmp_path, small):
    policy = moved(pi0())
    name = as_lerobot_saves(policy, tmp_path / "lerobot", tied)
    loading.check_model(name)
    again = pi0(name, resize="openpi")
    unused = "model.dit.embed_tokens.weight"
    theirs, ours = ({n: p for n, p in m.named_parameters() if n != unused} for m in (policy.model, again.model))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0) for p in (policy, again))
    assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)


def test_a_weight_that_lerobot_did_not_save_is_named(tmp_path, small):
    policy = pi0()
    name = as_lerobot_saves(policy, tmp_path / "lerobot", True)
    (tmp_path / "lerobot" / "model.safetensors").unlink()
    kept = {"model.paligemma_with_expert.x": torch.zeros(1)}
    save_file(kept, tmp_path / "lerobot" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks \d+ of pi0's weights") as told:
        pi0(name)
    assert "\n" not in str(told.value)
    (tmp_path / "lerobot" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"policy\.model: .* can't be loaded: .*give a folder or hub name of a pi0") as told:
        pi0(name)
    assert "\n" not in str(told.value)


def test_pictures_are_resized_as_the_checkpoint_was_trained(tmp_path, small):
    """LeRobot interpolates between neighbours, in [0, 1]; the wrist's 40 x 64 fill 35 of 56 rows."""
    policy, shown = pi0(), seen()
    again = pi0(as_lerobot_saves(policy, tmp_path / "lerobot", False))
    assert (policy.resize, again.resize) == ("openpi", "lerobot")
    found = again._pictures(shown)
    wrist = shown.images["wrist"].permute(0, 3, 1, 2).float() / 255
    wanted = pad(interpolate(wrist, (35, 56), mode="bilinear", align_corners=False), (0, 0, 10, 11)) * 2 - 1
    torch.testing.assert_close(found[:, 1], wanted, atol=1e-5, rtol=0)
    front = shown.images["front"].permute(0, 3, 1, 2).float() / 255
    wanted = interpolate(front, (56, 56), mode="bilinear", align_corners=False) * 2 - 1
    torch.testing.assert_close(found[:, 0], wanted, atol=1e-5, rtol=0)
    assert (found - policy._pictures(shown)).abs().max() > 0.1


def test_the_way_of_resizing_is_saved_and_may_be_changed(tmp_path, small):
    again = pi0(as_lerobot_saves(pi0(), tmp_path / "lerobot", False))
    again.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "acting.json").read_text())["resize"] == "lerobot"
    saved = str(tmp_path / "saved")
    assert pi0(saved).resize == pi0(source=tmp_path / "saved").resize == "lerobot"
    assert pi0(saved, resize="openpi").resize == "openpi"
    kept = json.loads((tmp_path / "saved" / "acting.json").read_text())
    del kept["resize"]
    (tmp_path / "saved" / "acting.json").write_text(json.dumps(kept))
    assert pi0(saved).resize == "openpi", "as all were before there was a choice"


def test_another_way_of_resizing_is_refused():
    with pytest.raises(UserError, match=r"policy\.options\.resize = 'pillow' is unknown: choose one of auto, openpi, lerobot$"):
        Pi0(PolicyConfig(model="tiny:pi0:hidden=32,layers=2,chunk=5", kind="pi0"), chunk=2, resize="pillow")
