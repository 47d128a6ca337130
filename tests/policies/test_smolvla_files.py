"""What SmolVLA reads: pictures, texts, the files that LeRobot writes; and what of them is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import interpolate, pad

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.smolvla import tiny
from mmrl.policies.smolvla.config import BACKBONE, layers_of, read_config
from mmrl.policies.smolvla.loading import check_model
from mmrl.policies.smolvla.model import SmolVLA
from pi0_cases import DRAW, moved, seen
from smolvla_cases import smolvla

STATISTICS = {
    "kind": "min-max",
    "state_kind": "mean-std",
    "action": {"min": [-2.0, -1.0, 0.0], "max": [2.0, 3.0, 1.0]},
    "state": {"mean": [1.0] * 6, "std": [0.5] * 6},
}


# -- reading --------------------------------------------------------------------------------------------------------------


def test_pictures_are_framed_as_lerobot_does():
    """Scaled until they fit, black at the left and above; the wrist's 40 x 64 fill the lower 35 of 56 rows."""
    policy, shown = smolvla(), seen()
    pixels = policy._pictures(shown)
    wrist = shown.images["wrist"].permute(0, 3, 1, 2).float() / 255
    wanted = pad(interpolate(wrist, (35, 56), mode="bilinear", align_corners=False), (0, 0, 21, 0)) * 2 - 1
    torch.testing.assert_close(pixels[:, 1], wanted, atol=1e-6, rtol=0)
    assert (pixels[:, 1, :, :21] == -1).all() and pixels.shape == (4, 2, 3, 56, 56)
    assert torch.equal(smolvla(cameras=["wrist"])._pictures(shown), pixels[:, 1:])
    middle = shown.images["front"][:, 9:54, 9:54].permute(0, 3, 1, 2).float() / 255  # half of 64 x 64
    wanted = interpolate(middle, (56, 56), mode="bilinear", align_corners=False) * 2 - 1
    torch.testing.assert_close(smolvla(crop=0.5)._pictures(shown)[:, 0], wanted, atol=1e-6, rtol=0)


def test_what_is_read_stands_as_in_training():
    policy = smolvla(prompt="do {instruction}")
    ids = policy._ids("pick_up the cube", 2)
    assert ids[:32] == [policy.checkpoint.backbone.image_token_id] * 32
    assert policy.tokenizer.decode(ids[32:]) == "do pick_up the cube\n"
    assert policy._ids("x\n", 0) == policy._ids("x", 0) and len(policy._ids("long " * 99, 0)) == 48


def as_lerobot_left_it(folder, **options):
    """A policy with statistics, in a folder without mmrl's own files."""
    policy = moved(smolvla(statistics=STATISTICS, gripper="", **options))
    policy.save(folder)
    for name in ("acting.json", "acting.safetensors"):
        (folder / name).unlink()
    return policy


def test_statistics_come_with_the_checkpoint(tmp_path):
    policy = as_lerobot_left_it(tmp_path, cameras=["wrist"])
    again = smolvla(str(tmp_path), dims=None, chunk=None, state=None)
    assert (again.dims, again.chunk, again.state, again.chains.steps) == (3, 2, 6, 4)
    for mine, theirs in ((policy.statistics.action, again.statistics.action), (policy.statistics.state, again.statistics.state)):
        assert mine.kind == theirs.kind and mine.first == theirs.first
        torch.testing.assert_close(torch.tensor(mine.second), torch.tensor(theirs.second), atol=1e-7, rtol=0)
    shown = seen()
    torch.testing.assert_close(again._state(shown)[:, :6], (shown.state - 1) / 0.5, atol=1e-5, rtol=1e-5)
    assert (again._state(shown)[:, 6:] == 0).all() and again._names(shown) == ["wrist"]
    one, two = (p.choose(shown, DRAW, 1.0)[0] for p in (policy, again))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    bare = smolvla(str(tmp_path), statistics="none")
    assert bare.statistics is None and torch.equal(bare._state(shown)[:, :6], shown.state)


def test_a_number_that_never_changed_is_scaled_as_by_lerobot_before_and_after_saving(tmp_path):
    """LeRobot divides a state by its deviation plus 1e-8, and multiplies an action by its deviation alone (lerobot 0.6.1,
    processor/normalize_processor.py)."""
    given = {"kind": "mean-std", "action": {"mean": [0.5] * 3, "std": [0.25] * 3}, "state": STATISTICS["state"]}
    smolvla(statistics=given, gripper="").save(tmp_path / "first")
    files = [f"policy_{name}" for name in ("preprocessor_step_5_normalizer", "postprocessor_step_0_unnormalizer")]
    lists = load_file(tmp_path / "first" / f"{files[0]}_processor.safetensors")
    lists["observation.state.std"][2], lists["action.std"][1] = 0.0, 0.0
    for name in files:
        save_file(lists, tmp_path / "first" / f"{name}_processor.safetensors")
    (tmp_path / "first" / "acting.json").unlink()
    shown, last = seen(), "first"
    wanted = (shown.state - lists["observation.state.mean"]) / (lists["observation.state.std"] + 1e-8)
    for following in ("second", "third"):
        policy = smolvla(str(tmp_path / last))
        torch.testing.assert_close(policy._state(shown)[:, :6], wanted, atol=0, rtol=1e-6)
        assert policy.statistics.action.unnormalize(torch.full((3,), 2.0)).tolist() == [1.0, 0.5, 1.0]
        policy.save(tmp_path / following)
        (tmp_path / following / "acting.json").unlink()
        for name in files:
            kept = load_file(tmp_path / following / f"{name}_processor.safetensors")
            assert kept.keys() == lists.keys() and all(torch.equal(kept[key], lists[key]) for key in lists)
        last = following


def test_cameras_are_found_by_their_names(tmp_path):
    as_lerobot_left_it(tmp_path, cameras=["wrist", "front"])
    assert smolvla(str(tmp_path))._names(seen()) == ["wrist", "front"], "in the order of the checkpoint's"
    assert smolvla(str(tmp_path), cameras=["front"])._names(seen()) == ["front"]
    file = tmp_path / "policy_preprocessor.json"
    table = json.loads(file.read_text())
    table["steps"][0]["config"]["rename_map"] = {"observation.images.front": "observation.images.wrist"}
    file.write_text(json.dumps(table))
    shown = seen()
    del shown.images["wrist"]
    policy = smolvla(str(tmp_path))
    assert policy._names(shown) == ["front"], "which the network knows as wrist"
    other = Observation(images={"top": shown.images["front"]}, state=shown.state, instructions=shown.instructions)
    with pytest.raises(UserError, match=r"trained with the cameras front, and the simulator has top: set policy.options.cameras"):
        policy.look(other)
    again = smolvla(str(tmp_path), cameras=["top"])
    again.save(tmp_path / "top")
    step = json.loads((tmp_path / "top" / "policy_preprocessor.json").read_text())["steps"][0]
    assert step["config"] == {"rename_map": {"observation.images.top": "observation.images.wrist"}}


# -- what can't be --------------------------------------------------------------------------------------------------------


def test_missing_statistics_are_told_with_what_there_is(tmp_path, monkeypatch):
    as_lerobot_left_it(tmp_path / "whole")
    SmolVLA.check(PolicyConfig(model=str(tmp_path / "whole"), kind="smolvla"))
    monkeypatch.setattr("mmrl.policies.smolvla.model.load_network", lambda *a: pytest.fail("weights were read"))
    cure = "set policy.options.statistics to a file, or to 'none' where the policy's numbers are the simulator's"

    def told(name, change):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / name)
        change(folder)
        with pytest.raises(UserError) as caught:
            smolvla(str(folder))
        with pytest.raises(UserError) as earlier:
            SmolVLA.check(PolicyConfig(model=str(folder), kind="smolvla"))
        assert str(earlier.value) == str(caught.value) and "\n" not in str(caught.value)
        return str(caught.value).replace(repr(str(folder)), "IT")

    assert told("bare", lambda folder: (folder / "policy_preprocessor.json").unlink()) == (
        "policy.model: IT comes without statistics of its data: it has backbone, config.json, model.safetensors, "
        "policy_postprocessor.json, policy_postprocessor_step_0_unnormalizer_processor.safetensors, "
        f"policy_preprocessor_step_5_normalizer_processor.safetensors, and no policy_preprocessor.json with "
        f"policy_postprocessor.json: {cure}"
    )
    behind = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    assert told("none", lambda folder: (folder / behind).unlink()) == (
        f"policy.model: IT lacks min and max of action in {behind}, which has nothing: {cure}"
    )
    assert told("other", lambda folder: save_file({"so100.action.min": torch.zeros(3)}, folder / behind)) == (
        f"policy.model: IT lacks min and max of action in {behind}, which has so100.action: {cure}"
    )
    assert told("half", lambda folder: save_file({"action.min": torch.zeros(3)}, folder / behind)) == (
        f"policy.model: IT lacks min and max of action in {behind}, which has action: min: {cure}"
    )

    def stranger(folder):
        file = folder / "policy_preprocessor.json"
        file.write_text(file.read_text().replace("to_batch_processor", "relative_actions_processor"))

    assert "policy_preprocessor.json has the step 'relative_actions_processor', which can't be done here" in told("odd", stranger)
    for text in ("{", "[]", '{"steps": [1]}', "null"):
        folder = f"damaged{len(text)}{text[:1]}"
        assert "policy_preprocessor.json can't be read" in told(
            folder, lambda folder, text=text: (folder / "policy_preprocessor.json").write_text(text)
        )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"chunk": 6}, "policy.options.chunk = 6 is too many for this SmolVLA: 5 actions are predicted"),
        ({"dims": 33}, "policy.options.dims = 33 is too many for this SmolVLA: 32 numbers an action has at most"),
        ({"state": 40}, "policy.options.state = 40 is too many for this SmolVLA: 32 numbers a state has at most"),
        ({"steps": 0}, "policy.options.steps = 0 must be a whole number from 1 to 256"),
        ({"noisy": "some"}, "policy.options.noisy = 'some' must be one of 'all', 'one', 'learned'"),
        ({"prompt": "go"}, r"policy.options.prompt = 'go' must contain \{instruction\}"),
        ({"backbone": 3}, "policy.options.backbone = 3 must be a text"),
        ({"statistics": 3}, "policy.options.statistics = 3 must be a text or a table"),
        ({"model": "tiny:smolvla:depth=2"}, "'depth=2' is not understood: write tiny:smolvla:hidden=64,layers=2,chunk=50"),
        ({"model": "tiny:pi0"}, "policy.model: 'tiny:pi0' is no SmolVLA: write tiny:smolvla"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        smolvla(**options)


def test_folders_that_are_no_smolvla(tmp_path):
    whole = tmp_path / "whole"
    smolvla().save(whole)
    weights, config = load_file(whole / "model.safetensors"), json.loads((whole / "config.json").read_text())
    first = next(iter(weights))

    def changed(kept):
        save_file(kept, whole / "model.safetensors")
        with pytest.raises(UserError) as caught:
            smolvla(str(whole))
        save_file(weights, whole / "model.safetensors")
        return str(caught.value)

    assert "lacks 2 of a SmolVLA's weights, such as action_out_proj.bias" in changed(
        {k: v for k, v in weights.items() if "action_out" not in k}
    )
    old = changed({**weights, "normalize_inputs.buffer_observation_state.mean": torch.zeros(1)})
    assert "has 1 weights too many, such as normalize_inputs.buffer_observation_state.mean: convert it by `python -m" in old
    assert "such as x: give a folder or hub name of a SmolVLA that LeRobot saved" in changed({**weights, "x": torch.zeros(1)})
    assert f"{first.removeprefix('model.')} is [2], and " in changed({**weights, first: torch.zeros(2)})
    for change, message in (
        ({"type": "pi0"}, "is a pi0, not a SmolVLA: give a folder or hub name of a SmolVLA that LeRobot saved"),
        ({"adapt_to_pi_aloha": True}, "config.json: adapt_to_pi_aloha = True, and only False can be read"),
        ({"chunk_size": "5"}, "config.json: chunk_size = '5' is not what a SmolVLA's must be"),
        ({"num_steps": 0}, "config.json: num_steps = 0 must be above 0"),
        ({"num_expert_layers": 2}, "num_expert_layers = 2 doesn't divide the language model's 3 layers"),
        ({"resize_imgs_with_padding": [56, 42]}, r"= \[56, 42\] must be a square whose side is a multiple of 14"),
        ({"resize_imgs_with_padding": None}, "config.json: resize_imgs_with_padding = None is not what"),
    ):
        (whole / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message) as caught:
            smolvla(str(whole))
        assert "\n" not in str(caught.value) and str(caught.value).startswith("policy.model: ")
    (whole / "config.json").write_text("{")
    for refuse in (check_model, smolvla):
        with pytest.raises(UserError, match=r"has no config\.json that can be read"):
            refuse(str(whole))
    (whole / "config.json").write_text(json.dumps(config))
    shutil.rmtree(whole / "backbone")
    with pytest.raises(UserError, match=rf"can't be read in .*set policy.options.backbone to a folder with .* of {BACKBONE}"):
        smolvla(str(whole))
    with pytest.raises(UserError, match="is not a folder: give a folder or hub name of a SmolVLA"):
        check_model("/nowhere/at/all")
    check_model("lerobot/smolvla_base")
    assert tiny.full_name("tiny:smolvla", 7) == "tiny:smolvla:hidden=64,layers=2,chunk=50,seed=7"


def test_the_experts_layers():
    def kinds(**table):
        return [(one.expert, one.crosses) for one in layers_of(read_config(table), 6)]

    assert kinds(num_vlm_layers=4) == [(0, False), (1, True), (2, False), (3, True)]
    assert kinds(num_vlm_layers=4, self_attn_every_n_layers=0, num_expert_layers=2) == [
        (0, True),
        (None, True),
        (1, True),
        (None, True),
    ]
    assert kinds(num_vlm_layers=0, attention_mode="self_attn") == [(i, False) for i in range(6)]
    assert kinds(num_vlm_layers=4, num_expert_layers=2, self_attn_every_n_layers=4)[2] == (1, True)
    with pytest.raises(UserError, match=r"the expert can't attend to itself in layer 2 of 4: take as many layers of both"):
        kinds(num_vlm_layers=4, num_expert_layers=2)
