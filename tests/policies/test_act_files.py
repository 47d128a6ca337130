"""What an ACT reads: pictures, and the files that LeRobot writes; and what of them is refused, in one line."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from act_cases import CALLS, PICTURES, SEEDS, STATES, act, seen
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.act.config import read_config
from mmrl.policies.act.model import ACT
from mmrl.policies.load import make_policy

STATISTICS = {
    "kind": "mean-std",
    "action": {"mean": [-2.0, -1.0, 0.0], "std": [2.0, 3.0, 1.0]},
    "state": {"mean": [1.0] * 3, "std": [0.5] * 3},
}
FRONT, WRIST = "observation.images.front", "observation.images.wrist"


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A folder as LeRobot leaves it."""
    folder = tmp_path_factory.mktemp("saved") / "saved"
    act(statistics=STATISTICS).save(folder)
    for name in ("acting.json", "acting.safetensors"):
        (folder / name).unlink()
    return folder


def changed(folder, to, **fields):
    shutil.copytree(folder, to)
    table = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(table | fields))
    return to


def test_a_folder_says_what_the_policy_is(left):
    policy = act(str(left))
    assert (policy.dims, policy.state, policy.chunk, policy.ahead, policy.history) == (3, 6, 2, 5, 0)
    assert policy.statistics.action.second == (2.0, 3.0, 1.0) and (policy.kl_weight, policy.dropout) == (10.0, 0.1)
    shown = Observation(images={}, state=torch.arange(6.0)[None], instructions=["x"])
    robot, environment, pictures = policy.look(shown)
    assert (
        robot.flatten().tolist() == pytest.approx([-2, 0, 2], abs=1e-4) and environment.tolist() == [[3, 4, 5]] and not pictures
    )
    assert act(str(left), statistics="none").statistics is None


def test_cameras_may_have_pictures_of_their_own_sizes():
    policy, shown = act(PICTURES, cameras=["front", "wrist"]), seen()
    policy.checkpoint.config.input_features[WRIST]["shape"] = [3, 40, 64]
    policy.scales = {WRIST: (torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25))}
    front, wrist = policy.look(shown)[2]
    torch.testing.assert_close(front, shown.images["front"].permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(wrist, (shown.images["wrist"].permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25)
    assert policy.checkpoint.config.tokens(vae=False) == 4 + 4 + 3 + 5
    assert policy.foresee(shown.rows(torch.tensor([0])))[0].shape == (1, 5, 3)


def test_what_the_simulator_does_not_show_is_told():
    policy, shown = act(PICTURES, cameras=["front", "wrist"]), seen()
    with pytest.raises(
        UserError, match=r"camera 'wrist' shows 64 x 40 pixels, and the policy was trained with 64 x 64: make them"
    ):
        policy.act(shown, SEEDS, CALLS, 1.0)
    blind = Observation(images={"front": shown.images["front"]}, state=shown.state, instructions=shown.instructions)
    with pytest.raises(UserError, match=r"cameras has 'wrist', which the simulator doesn't have: it has front"):
        policy.act(blind, SEEDS, CALLS, 1.0)
    policy.cameras = []
    with pytest.raises(
        UserError, match=r"trained with the cameras front, wrist, and the simulator has front: set policy\.options"
    ):
        policy.act(blind, SEEDS, CALLS, 1.0)
    with pytest.raises(UserError, match=r"policy\.options\.state = 6, and the simulator shows a state of 5: make them equal"):
        act().act(Observation(images={}, state=torch.zeros(4, 5), instructions=["x"] * 4), SEEDS, CALLS, 1.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "diffusion"}, "is a diffusion, not an ACT: give a folder or hub name of an ACT that LeRobot saved"),
        ({"use_peft": True}, "use_peft = True, and only False can be read"),
        ({"vision_backbone": "vit"}, "vision_backbone = 'vit' is not one of resnet18"),
        ({"feedforward_activation": "glu"}, "feedforward_activation = 'glu' is not one of relu, gelu"),
        ({"n_obs_steps": 2}, "n_obs_steps = 2 is not one of 1"),
        ({"chunk_size": "5"}, "chunk_size = '5' is not what an ACT's must be"),
        ({"chunk_size": 0}, "chunk_size = 0 must be above 0"),
        ({"n_action_steps": 6}, "n_action_steps = 6 is above chunk_size = 5"),
        ({"temporal_ensemble_coeff": 0.01}, "n_action_steps = 2, and temporal_ensemble_coeff needs a call at each step: 1"),
        ({"dim_model": 18}, "dim_model = 18 must be a multiple of 4 and of n_heads = 4"),
        ({"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
        ({"kl_weight": -1.0}, "kl_weight = -1.0 at least 0"),
        ({"replace_final_stride_with_dilation": True}, "is for resnet50 and larger, and vision_backbone = 'resnet18'"),
        ({"output_features": {}}, "it has no action, which an ACT reads or makes"),
        ({"input_features": {"observation.state": {"type": "STATE", "shape": [3]}}}, "neither a picture nor observation.environ"),
        ({"input_features": {"a": {"type": "VISUAL", "shape": [1, 8, 8]}}}, "a has 1 colours, and must have 3"),
        ({"input_features": {"a": {"type": "VISUAL", "shape": [8, 8]}}}, r"the shape of a is \[8, 8\], and must have 3 numbers"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused_in_one_line(left, tmp_path, fields, said):
    folder = changed(left, tmp_path / "odd", **fields)
    with pytest.raises(UserError, match=said) as error:
        ACT.check(PolicyConfig(model=str(folder), kind="act"))
    assert "\n" not in str(error.value) and error.value.key == "policy.model"


def test_a_policy_may_have_no_state_and_no_latent():
    picture = {"type": "VISUAL", "shape": [3, 8, 8]}
    table = {"input_features": {"a": picture}, "output_features": {"action": {"type": "ACTION", "shape": [1]}}}
    assert read_config(table).numbers("observation.state") == 0 and read_config(table).temporal_ensemble_coeff is None
    policy = act("tiny:act:width=16,chunk=5,latent=0,pictures=1", state=0)
    assert policy.foresee(seen(1))[0].shape == (1, 5, 3) and not hasattr(policy.model["act"], "vae_encoder")
    shown = torch.zeros(1, 5, 4)
    errors, divergence, _ = policy.imitated(seen(1), shown)
    assert errors.shape == (1,) and divergence.tolist() == [0]


def test_files_that_lack_something_are_refused_in_one_line(left, tmp_path):
    def told(**options):
        with pytest.raises(UserError) as error:
            make_policy(PolicyConfig(model=str(folder), kind="act", options=options))
        assert "\n" not in str(error.value)
        return str(error.value)

    folder = changed(left, tmp_path / "weights")
    weights = load_file(folder / "model.safetensors")
    assert all(name.startswith("model.") for name in weights)
    first = next(iter(weights))
    save_file({n: w for n, w in weights.items() if n != first}, folder / "model.safetensors")
    assert f"lacks 1 of an ACT's weights, such as {first}" in told()
    save_file(weights | {"normalize_inputs.buffer": torch.zeros(1)}, folder / "model.safetensors")
    assert "weights too many, such as normalize_inputs.buffer: convert it by" in told()
    folder = changed(left, tmp_path / "chunk", chunk_size=4)
    assert "model.vae_encoder_pos_enc is [1, 7, 16], and [1, 6, 16] by its config.json" in told()
    folder = changed(left, tmp_path / "processors")
    (folder / "policy_preprocessor.json").unlink()
    assert "comes without statistics of its data" in told() and "set policy.options.statistics" in told()
    table = json.loads((left / "policy_preprocessor.json").read_text())
    table["steps"][-1]["config"]["norm_map"]["ENV"] = "MIN_MAX"
    folder = changed(left, tmp_path / "environment")
    (folder / "policy_preprocessor.json").write_text(json.dumps(table))
    assert "normalises the environment's state by MIN_MAX, which can't be done here" in told()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk": 6}, "chunk = 6 is too many for this ACT: 5 actions are predicted"),
        ({"ensemble": 0.01}, "ensemble = 0.01 needs a call at each step, and chunk = 2: set chunk = 1"),
        ({"ensemble": 3}, "ensemble = 3 must be a number from -1 to 1"),
        ({"state": 0}, "state = 0: tiny:act.* reads the state alone: set it to the size"),
        ({"spread": 0}, "spread = 0 must be a number above 0"),
        ({"learn_spread": 1}, "learn_spread = 1 must be true or false"),
        ({"kl_weight": -1}, "kl_weight = -1 must be a number from 0"),
        (
            {"kl_weight": 2, "model": f"{STATES},latent=0"},
            "kl_weight = 2 weighs .* a latent, and this ACT has no VAE: leave it out",
        ),
        ({"dropout": 1}, "dropout = 1 must be a number from 0 to 0.9"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_in_one_line(options, said):
    with pytest.raises(UserError, match=said) as error:
        act(**options)
    assert "\n" not in str(error.value) and str(error.value).startswith("policy.options.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiny:diffusion", "is no ACT: write tiny:act"),
        ("tiny:act:width=12", "width must be a multiple of 8"),
        ("tiny:act:chunk=300", "chunk must be from 1 to 256"),
        ("tiny:act:depth=2", "'depth=2' is not understood: write tiny:act:width=32"),
        ("./nowhere", "is not a folder: give a folder or hub name of an ACT"),
    ],
)
def test_a_model_that_is_none_is_refused(name, said):
    with pytest.raises(UserError, match=said) as error:
        ACT.check(PolicyConfig(model=name, kind="act"))
    assert "\n" not in str(error.value) and error.value.key == "policy.model"


def test_another_seed_is_another_tiny_policy():
    made = [ACT(PolicyConfig(model=STATES, kind="act"), seed=seed, dims=3, state=6) for seed in (1, 1, 2)]
    one, two, three = (m.model["act"].action_head.weight for m in made)
    assert torch.equal(one, two) and not torch.equal(one, three)
