"""The vision tower by itself: what it sees, and the folder that transformers loads again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.tower import tower_features, tower_of
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow
from mmrl.ui.cli import main


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


def asked(colour: str, text: str = "What?") -> Prompt:
    return Prompt(id=colour, messages=[user_message(text, Image.new("RGB", (56, 56), colour))])


@pytest.mark.parametrize("family", mostly_slow(["qwen2_5_vl", "llava", "qwen3_vl", "internvl", "gemma3"], everyday=1))
def test_its_features_are_the_mean_of_its_own_states(family: str) -> None:
    """They depend on the picture and not on the words; calling the tower by hand gives the same."""
    policy = VLM(PolicyConfig(model=f"tiny:{family}"), seed=0)
    red, blue, other = tower_features(policy, [asked("red"), asked("blue"), asked("red", "Something else entirely")])
    assert not torch.allclose(red, blue, atol=1e-4) and torch.allclose(red, other, atol=1e-6)
    tower, media = tower_of(policy.model), policy.encode(asked("red")).media
    with torch.no_grad():
        if "image_grid_thw" in media:
            output = tower(media["pixel_values"], grid_thw=media["image_grid_thw"])
        else:
            output = tower(media["pixel_values"])
    assert torch.allclose(output[0].flatten(0, -2).mean(0), red, atol=1e-5)


def test_words_alone_have_no_features() -> None:
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    with pytest.raises(UserError, match="prompt 'words' has no picture for the vision tower"):
        tower_features(policy, [Prompt(id="words", messages=[{"role": "user", "content": "What?"}])])


def test_a_model_without_a_tower_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match="a Linear has no vision tower that could be loaded by itself"):
        tower_of(torch.nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4, "target_modules": ["vision"]}])
def test_an_exported_tower_sees_as_the_policy_does(tmp_path: Path, lora: Any) -> None:
    """Loaded by the class that the command names; adapters are worked in."""
    policy = {"model": "tiny:llava:hidden=32,layers=2", **({"lora": lora} if lora else {})}
    stage = {"kind": "preference", "steps": 2, "prompts_per_step": 2, "learning_rate": 5e-2}
    run = runs.run(runs.toy_config(tmp_path, policy=policy, stages=[stage], evaluate={"num_prompts": 0})).path
    done = CliRunner().invoke(main, ["export", str(run), str(tmp_path / "out"), "--tower", "--checkpoint", "last"])
    assert done.exit_code == 0 and "the vision tower of step 2" in done.output, done.output
    kind = done.output.strip().rsplit("transformers.", 1)[1].removesuffix(".from_pretrained")
    alone = getattr(transformers, kind).from_pretrained(tmp_path / "out")
    (saved,) = run.glob("checkpoints/*/policy")
    seed = derive(0, "weights")
    trained = VLM(PolicyConfig(model=policy["model"], lora=lora), seed=seed, source=saved)
    fresh = VLM(PolicyConfig(model=policy["model"]), seed=seed)
    pixels = trained.encode(asked("red")).media["pixel_values"]
    with torch.no_grad():
        mine = alone(pixels)[0].flatten(0, -2).mean(0)
    assert torch.allclose(mine, tower_features(trained, [asked("red")])[0], atol=1e-5)
    assert not torch.allclose(mine, tower_features(fresh, [asked("red")])[0], atol=1e-4), "it has learned"
    assert not any("lora" in name for name in load_file(tmp_path / "out" / "model.safetensors"))
    assert transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    again = CliRunner().invoke(main, ["export", str(run), str(tmp_path / "out"), "--tower"])
    assert "name a new folder" in f"{again.output}{again.exception}"
    both = CliRunner().invoke(main, ["export", str(run), str(tmp_path / "new"), "--tower", "--merge"])
    assert "--merge is for the whole policy: leave it out with --tower" in f"{both.output}{both.exception}"
