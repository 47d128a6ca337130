"""What a Diffusion Policy reads: pictures, and the files that LeRobot writes; and what of them is refused, in one line."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffusion_cases import PICTURES, SEEDS, STATES, diffusion, seen
from mmrl.api.errors import UserError
from mmrl.api.simulators.history import follow
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.diffusion.config import read_config
from mmrl.policies.diffusion.model import Diffusion
from mmrl.policies.load import make_policy

STATISTICS = {
    "kind": "min-max",
    "action": {"min": [-2.0, -1.0, 0.0], "max": [2.0, 3.0, 1.0]},
    "state": {"min": [0.0] * 3, "max": [2.0] * 3},
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A folder as LeRobot leaves it."""
    folder = tmp_path_factory.mktemp("saved") / "saved"
    diffusion(statistics=STATISTICS).save(folder)
    for name in ("acting.json", "acting.safetensors"):
        (folder / name).unlink()
    return folder


def changed(folder, to, **fields):
    shutil.copytree(folder, to)
    table = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(table | fields))
    return to


def test_a_folder_says_what_the_policy_is(left):
    policy = diffusion(str(left))
    assert (policy.dims, policy.state, policy.chunk, policy.history) == (3, 6, 2, 1)
    assert policy.statistics.action.first == (-2.0, -1.0, 0.0) and policy.statistics.state.second == (2.0,) * 3
    state = torch.arange(12.0)[None]
    shown = Observation(images={}, state=state, instructions=["x"])
    assert policy._states(shown).tolist() == [[[-1, 0, 1, 3, 4, 5], [5, 6, 7, 9, 10, 11]]], "the environment's is left as it is"
    none = diffusion(str(left), statistics="none")
    assert none.statistics is None and none._states(shown).flatten().tolist() == state.flatten().tolist()
    steps = json.loads((left / "policy_preprocessor.json").read_text())["steps"]
    assert [s["registry_name"] for s in steps] == [
        "rename_observations_processor",
        "to_batch_processor",
        "device_processor",
        "normalizer_processor",
    ]


def test_pictures_are_normalised_and_of_the_moments_in_their_order():
    policy, shown = diffusion(PICTURES, cameras=["wrist"]), seen()
    policy.scales = {"observation.images.wrist": (torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25))}
    (pixels,) = policy._pictures(shown)
    assert pixels.shape == (4, 2, 3, 40, 64)
    for moment, name in enumerate(("wrist, 1 before", "wrist")):
        wanted = (shown.images[name].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
        torch.testing.assert_close(pixels[:, moment], wanted, atol=1e-6, rtol=1e-5)
    assert policy.model.diffusion["rgb_encoder"][0](pixels[:, 0]).shape == (4, 16)


def test_the_cameras_are_those_of_the_checkpoint_or_of_the_option(tmp_path):
    named = diffusion(PICTURES, cameras=["wrist"])
    named.save(tmp_path / "named")
    again = diffusion(str(tmp_path / "named"))
    assert again._names(seen()) == ["wrist"] and diffusion(PICTURES)._names(seen()) == ["front"]
    moved = diffusion(str(tmp_path / "named"), cameras=["front"])
    moved.save(tmp_path / "moved")
    table = json.loads((tmp_path / "moved" / "policy_preprocessor.json").read_text())
    assert table["steps"][0]["config"]["rename_map"] == {"observation.images.front": "observation.images.wrist"}
    other = Observation(images={"top": torch.zeros(1, 8, 8, 3, dtype=torch.uint8)}, state=None, instructions=["x"])
    again.cameras = []
    with pytest.raises(
        UserError, match=r"trained with the cameras wrist, and the simulator has top: set policy\.options\.cameras"
    ):
        again._names(other)
    with pytest.raises(UserError, match="cameras names 2 cameras, and the policy looks through 1"):
        diffusion(str(tmp_path / "named"), cameras=["front", "wrist"])
    with pytest.raises(UserError, match="sees 2 moments, and the observation has no earlier pictures"):
        named._pictures(Observation(images={"wrist": other.images["top"]}, state=None, instructions=["x"]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "act"}, "is a act, not a Diffusion Policy: give a folder or hub name"),
        ({"compile_model": True}, "compile_model = True, and only False can be read"),
        ({"vision_backbone": "vit"}, "vision_backbone = 'vit' is not one of resnet18"),
        ({"noise_scheduler_type": "DPM"}, "noise_scheduler_type = 'DPM' is not one of DDPM, DDIM"),
        ({"beta_schedule": "sigmoid"}, "beta_schedule = 'sigmoid' is not one of squaredcos_cap_v2"),
        ({"prediction_type": "v_prediction"}, "prediction_type = 'v_prediction' is not one of epsilon, sample"),
        ({"horizon": 6}, "horizon = 6 must be a multiple of 4, as there are 2 down_dims"),
        ({"horizon": 10**9}, "horizon = 1000000000 must be at most 100,000"),
        ({"horizon": "8"}, "horizon = '8' is not what a Diffusion Policy's must be"),
        ({"horizon": True}, "horizon = True is not what a Diffusion Policy's must be"),
        ({"down_dims": []}, r"down_dims = \(\) is not what"),
        ({"down_dims": [16, 20]}, "down_dims must be multiples of n_groups"),
        ({"n_obs_steps": 0}, "n_obs_steps = 0 must be above 0"),
        ({"n_action_steps": 8}, r"n_action_steps = 8 is above horizon - n_obs_steps \+ 1 = 7"),
        ({"num_inference_steps": 9}, "num_inference_steps = 9 is above num_train_timesteps = 4"),
        ({"diffusion_step_embed_dim": 3}, "diffusion_step_embed_dim = 3 must be even, from 4"),
        ({"input_features": {}}, "it has no observation.state, which a Diffusion Policy reads or makes"),
        (
            {"output_features": {"action": {"type": "ACTION", "shape": [3, 1]}}},
            r"the shape of action is \[3, 1\], and must have 1",
        ),
        ({"input_features": {"observation.state": {"type": "STATE", "shape": [3]}}}, "neither a picture nor observation.environ"),
        ({"crop_shape": [0, 2]}, r"crop_shape = \(0, 2\) is not what"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused_in_one_line(left, tmp_path, fields, said):
    folder = changed(left, tmp_path / "odd", **fields)
    with pytest.raises(UserError, match=said) as error:
        Diffusion.check(PolicyConfig(model=str(folder), kind="diffusion"))
    assert "\n" not in str(error.value) and error.value.key == "policy.model"


def test_pictures_of_several_shapes_are_refused():
    picture = {"type": "VISUAL", "shape": [3, 8, 8]}
    table = {"input_features": {"observation.state": {"type": "STATE", "shape": [1]}, "a": picture}}
    table |= {"output_features": {"action": {"type": "ACTION", "shape": [1]}}}
    assert read_config(table).picture_shape == (8, 8)
    with pytest.raises(UserError, match=r"crop_shape = \(9, 4\) is larger than a picture, \(8, 8\)"):
        read_config(table | {"crop_shape": [9, 4]})
    table["input_features"]["b"] = {"type": "VISUAL", "shape": [3, 8, 9]}
    with pytest.raises(UserError, match="and must all have one"):
        read_config(table)


def test_files_that_lack_something_are_refused_in_one_line(left, tmp_path):
    def told(**options):
        with pytest.raises(UserError) as error:
            make_policy(PolicyConfig(model=str(folder), kind="diffusion", options=options))
        assert "\n" not in str(error.value)
        return str(error.value)

    folder = changed(left, tmp_path / "weights")
    weights = load_file(folder / "model.safetensors")
    first = next(iter(weights))
    save_file({n: w for n, w in weights.items() if n != first}, folder / "model.safetensors")
    assert f"lacks 1 of a Diffusion Policy's weights, such as {first}" in told()
    save_file(weights | {"normalize_inputs.buffer": torch.zeros(1)}, folder / "model.safetensors")
    assert "weights too many, such as normalize_inputs.buffer: convert it by" in told()
    save_file(weights | {first: torch.zeros(1)}, folder / "model.safetensors")
    assert f"{first} is [1], and" in told()
    folder = changed(left, tmp_path / "processors")
    (folder / "policy_preprocessor.json").unlink()
    assert "comes without statistics of its data" in told() and "set policy.options.statistics" in told()
    folder = changed(left, tmp_path / "steps")
    table = json.loads((folder / "policy_preprocessor.json").read_text())
    table["steps"].append({"registry_name": "tokenizer_processor"})
    (folder / "policy_preprocessor.json").write_text(json.dumps(table))
    assert "has the step 'tokenizer_processor', which can't be done here" in told()
    table["steps"][3]["config"]["norm_map"]["ENV"] = "MIN_MAX"
    (folder / "policy_preprocessor.json").write_text(json.dumps({**table, "steps": table["steps"][:4]}))
    assert "normalises the environment's state by MIN_MAX, which can't be done here" in told()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk": 8}, "chunk = 8 is too many for this policy: 7 is the most"),
        ({"steps": 5}, "steps = 5 is too many for this policy: 4 is the most"),
        ({"tuned_steps": 5}, "tuned_steps = 5 is too many for this policy: 4 is the most"),
        ({"steps": 2, "tuned_steps": 3}, "tuned_steps = 3 is too many for this policy: 2 is the most"),
        ({"state": 1}, "state = 1: a Diffusion Policy reads the state: set it to the size"),
        ({"state": None}, "state = 0: a Diffusion Policy reads the state"),
        ({"scheduler": "PNDM"}, "scheduler = 'PNDM' must be one of"),
        ({"exploration_std": 0}, "exploration_std = 0 must be a number above 0"),
        ({"likelihood_std": -1.0}, "likelihood_std = -1.0 must be a number above 0"),
        ({"eta": 2}, "eta = 2 must be a number from 0 to 1"),
        ({"likelihood": "max"}, "likelihood = 'max' must be one of 'sum', 'mean'"),
        ({"steps": 0}, "steps = 0 must be a whole number from 1 to 1000"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_in_one_line(options, said):
    with pytest.raises(UserError, match=said) as error:
        diffusion(**options)
    assert "\n" not in str(error.value) and str(error.value).startswith("policy.options.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiny:smolvla", "is no Diffusion Policy: write tiny:diffusion"),
        ("tiny:diffusion:width=12", "width must be a multiple of 8"),
        ("tiny:diffusion:moments=20", "moments must be from 1 to 16"),
        ("tiny:diffusion:depth=2", "'depth=2' is not understood: write tiny:diffusion:width=32"),
        ("./nowhere", "is not a folder: give a folder or hub name of a Diffusion Policy"),
    ],
)
def test_a_model_that_is_none_is_refused(name, said):
    with pytest.raises(UserError, match=said) as error:
        Diffusion.check(PolicyConfig(model=name, kind="diffusion"))
    assert "\n" not in str(error.value) and error.value.key == "policy.model"


def test_a_state_of_another_size_is_told_in_numbers_of_one_moment():
    policy = diffusion()
    shown = follow(Observation(images={}, state=torch.zeros(4, 5), instructions=["x"] * 4), None, SEEDS < 0, 1, True)
    with pytest.raises(UserError, match=r"policy\.options\.state = 6, and the simulator shows a state of 5: make them equal"):
        policy.act(shown, SEEDS, SEEDS, 1.0)


def test_another_seed_is_another_tiny_policy():
    made = [Diffusion(PolicyConfig(model=STATES, kind="diffusion"), seed=seed, dims=3, state=6) for seed in (1, 1, 2)]
    one, two, three = (m.model.diffusion["unet"].final_conv[1].weight for m in made)
    assert torch.equal(one, two) and not torch.equal(one, three)
