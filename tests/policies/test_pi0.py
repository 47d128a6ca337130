"""pi0: velocities are those of transformers' own network, and a folder is the same policy. `test_flow_policies.py` has what holds
for every policy of its kind."""

from __future__ import annotations

import json

import pytest
import torch

from flow_cases import calls, gradients
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config import parts
from mmrl.config.sections import PartConfig, PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.pi0 import tiny as pi0_tiny
from mmrl.policies.pi0.loading import check_model
from pi0_cases import CALLS, DRAW, KINDS, MODELS, SEEDS, moved, pi0, published, seen

BOTH = pytest.mark.parametrize("kind", KINDS)


def checked(name, kind="pi0"):
    check_model(PolicyConfig(model=name, kind=kind), kind)


# -- the network ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_velocities_are_those_of_transformers(attention):
    """All moments of all rows in one pass, padded and behind one prefix, against each alone: a mask that let a moment see
    another, a padded place or a wrong position would show."""
    policy, shown = pi0(attention=attention), seen()
    noise = torch.Generator().manual_seed(3)
    x, times = torch.randn(4, 3, 5, 32, generator=noise), torch.rand(4, 3, generator=noise)
    with torch.no_grad():
        found = policy.velocity(policy.look(shown), x, times)
        for n in range(4):
            for m in range(3):
                own = published(policy, shown, n)
                wanted = policy.model(**own, noise=x[n : n + 1, m], timestep=times[n : n + 1, m]).logits
                torch.testing.assert_close(found[n, m], wanted[0], atol=1e-6, rtol=1e-4)
    assert found.std(1).max() > 1e-3


def test_without_noise_a_chain_ends_where_transformers_ends():
    policy, shown = pi0(steps=7), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.0)
    actions, choices = found.actions_nKA, found.choices
    for n in range(4):
        wanted = policy.model.sample_actions(**published(policy, shown, n), noise=choices[n : n + 1, 0], num_steps=7)[0]
        torch.testing.assert_close(choices[n, -1], wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(actions[n], wanted[:2, :3].clamp(-1, 1), atol=1e-5, rtol=1e-4)


def test_imitation_is_transformers_loss():
    """A demonstration's figures, on average, against the mean of the network's own loss at the same times and noise."""
    policy, shown = pi0(), seen()
    actions = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(5)).clamp(-1, 1)
    choices = policy.head.choices_of(actions)
    assert choices.shape == (4, 1, 5, 32) and (choices[..., 3:] == 0).all()
    asked = []

    def remember(x, times):
        asked.append((x, times))
        return torch.zeros_like(x)

    policy.chains.score(remember, choices, 1.0)
    ((x, times),) = asked
    assert ((torch.arange(PLACES) / PLACES) ** (2 / 3) <= times).all() and (times < 1).all(), "one in each part of Beta(1.5, 1)"
    wanted = []
    for n in range(4):
        for m in range(PLACES):
            t = times[n, m]
            start = (x[n, m] - (1 - t) * choices[n, 0]) / t
            own = published(policy, shown, n)
            wanted.append(policy.model(**own, noise=start[None], timestep=t[None], actions=choices[n]).loss)
    found = policy.outputs(calls(shown, choices), 1.0)
    torch.testing.assert_close(found.logprobs_L.mean(), -torch.stack(wanted).mean(), atol=1e-4, rtol=1e-4)
    assert found.logprobs_L.requires_grad and (found.entropy_L == 0).all()


@BOTH
def test_demonstrations_look_ahead_to_the_end_of_the_episode(kind):
    policy = pi0(kind=kind)
    actions = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    track = TrajectoryData(
        instruction="push it",
        images={},
        state=None,
        choices=actions[:, None],
        logprobs_TKC=torch.zeros(3, 1, 1),
        valid_TK=torch.ones(3, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(3, 1),
    )
    found = policy.chunked(track)
    assert found.valid_TK.tolist() == [[True, True], [True, True], [True, False]] and found.logprobs_TKC.shape == (3, 2, 1)
    for t in range(3):
        wanted = actions[[min(t + k, 2) for k in range(5)]]
        assert torch.equal(found.choices[t, 0, :, :3], wanted) and (found.choices[t, 0, :, 3:] == 0).all()


# -- weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_the_same_policy_and_transformers_own(dtype, tmp_path):
    policy = moved(pi0(dtype=dtype, cameras=["wrist"], noisy="one"))
    policy.save(tmp_path / "saved")
    options = {"cameras": ["wrist"], "noisy": "one"}
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    for again in (pi0(str(tmp_path / "saved"), dtype=dtype, **options), pi0(dtype=dtype, source=tmp_path / "saved", **options)):
        two = again.act(seen(), SEEDS, CALLS, 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    from transformers import PI0ForConditionalGeneration

    theirs, report = PI0ForConditionalGeneration.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and theirs.config.architectures == [type(theirs).__name__]
    assert policy.model.action_out_proj.weight.dtype == torch.float32, "an action's numbers are never rounded to bfloat16"
    assert policy.model.model.dit.layers[0].mlp.up_proj.weight.dtype == getattr(torch, dtype)
    with pytest.raises(UserError, match=r"holds a policy with dims = 3, and the run file says 4: set policy.options.dims = 3"):
        pi0(str(tmp_path / "saved"), dims=4, dtype=dtype, **options)


@BOTH
def test_the_expert_is_a_part_of_its_own(kind):
    """So that a stage freezes the vision-language model by the names of its parts, as openpi's reinforcement does."""
    policy, shown = pi0(kind=kind), seen()
    found = {parts.part_of(name) for name, _ in policy.parameters()}
    assert found == {"vision", "projector", "language", "head"}
    assert [n for n, _ in KINDS[kind].skeleton(PolicyConfig(model=MODELS[kind], kind=kind)).named_parameters()] == [
        n for n, _ in policy.parameters()
    ]
    frozen = [PartConfig(match=part, freeze=True) for part in ("vision", "projector", "language")]
    for name, p in policy.parameters():
        p.requires_grad_(parts.entry(frozen, name) is None)
    made = calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    assert policy.look(shown).cache.layers[0][0].requires_grad is False, "no graph is kept of what was read"
    reached = gradients(policy, made)
    assert reached and all(parts.part_of(name) == "head" for name in reached)


# -- reading --------------------------------------------------------------------------------------------------------------


def test_pictures_are_framed_as_openpi_does():
    """Scaled until they fit, black around them; the wrist's 40 x 64 fill 35 of 56 rows."""
    policy, shown = pi0(), seen()
    pixels = policy._pictures(shown)
    assert pixels.shape == (4, 2, 3, 56, 56) and pixels.min() >= -1 and pixels.max() <= 1
    wrist = pixels[:, 1]
    assert (wrist[:, :, :10] == -1).all() and (wrist[:, :, 45:] == -1).all() and (wrist[:, :, 10:45].std((1, 2, 3)) > 0.1).all()
    import numpy as np
    from PIL import Image

    wanted = np.asarray(Image.fromarray(shown.images["wrist"][0].numpy()).resize((56, 35), Image.Resampling.BILINEAR))
    torch.testing.assert_close((wrist[0, :, 10:45].permute(1, 2, 0) + 1) * 127.5, torch.tensor(wanted).float(), atol=1e-4, rtol=0)
    inner = shown.images["front"][0, 9:54, 9:54].numpy()  # half of 64 x 64
    wanted = np.asarray(Image.fromarray(inner).resize((56, 56), Image.Resampling.BILINEAR))
    found = (pi0(crop=0.5)._pictures(shown)[0, 0].permute(1, 2, 0) + 1) * 127.5
    torch.testing.assert_close(found, torch.tensor(wanted).float(), atol=1e-4, rtol=0)
    assert pi0(cameras=["wrist"])._pictures(shown).shape[1] == 1


def test_what_is_read_stands_as_in_training():
    policy = pi0(prompt="do {instruction}")
    ids = policy._ids("pick_up the\ncube", 2)
    tokenizer = policy.tokenizer
    assert ids[:32] == [policy.model.config.vlm_config.image_token_id] * 32 and ids[32] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[33:]) == "do pick up the cube\n"


def test_states_are_normalised_and_filled_up(tmp_path):
    numbers = {"action": {"mean": [0.0] * 3, "std": [2.0] * 3}, "state": {"mean": [1.0] * 6, "std": [0.5] * 6}}
    (tmp_path / "stats.json").write_text(json.dumps(numbers))
    policy = pi0(statistics=str(tmp_path / "stats.json"))
    shown = seen()
    state = policy._state(shown)
    torch.testing.assert_close(state[:, :6], (shown.state - 1) / 0.5, atol=1e-5, rtol=1e-5)
    assert state.shape == (4, 32) and (state[:, 6:] == 0).all()
    far = policy.choose(shown, DRAW, 1.0)[0]
    assert far.abs().max() > 1, "normalised numbers have no bounds"
    near = pi0().act(shown, SEEDS, CALLS, 1.0).actions_nKA
    assert near.abs().max() == 1, "and the simulator's have"
    with pytest.raises(UserError, match=r"are of states of 6 numbers, and policy.options.state = 5: make them equal"):
        pi0(statistics=str(tmp_path / "stats.json"), state=5).look(
            Observation(images=shown.images, state=shown.state[:, :5], instructions=shown.instructions)
        )


# -- what can't be --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"chunk": 6}, "policy.options.chunk = 6 is too many for this pi0: 5 actions are predicted"),
        ({"dims": 33}, "policy.options.dims = 33 is too many for this pi0: 32 numbers an action has at most"),
        ({"state": 40}, "policy.options.state = 40 is too many for this pi0: 32 numbers a state has at most"),
        ({"steps": 0}, "policy.options.steps = 0 must be a whole number from 1 to 256"),
        ({"noisy": "some"}, "policy.options.noisy = 'some' must be one of 'all', 'one', 'learned'"),
        ({"noise_level": 0.0}, "policy.options.noise_level = 0.0 must be a number above 0"),
        ({"prompt": "go"}, r"policy.options.prompt = 'go' must contain \{instruction\}"),
        ({"crop": 0.0}, "policy.options.crop = 0.0 must be a number from 0.1 to 1"),
        ({"model": "tiny:pi0:depth=2"}, "'depth=2' is not understood: write tiny:pi0:hidden=64,layers=2,chunk=50"),
        ({"model": "tiny:qwen2_vl"}, "policy.model: 'tiny:qwen2_vl' is no pi0: write tiny:pi0"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        pi0(**options)


def test_observations_that_cannot_be():
    shown = seen()
    with pytest.raises(
        UserError, match=r"policy.options.cameras has 'top', which the simulator doesn't have: it has front, wrist"
    ):
        pi0(cameras=["top"]).look(shown)
    with pytest.raises(UserError, match="the simulator shows no picture: give it a camera"):
        pi0().look(Observation(images={}, state=shown.state, instructions=shown.instructions))
    with pytest.raises(UserError, match=r"policy.options.state = 4, and the simulator shows a state of 6: make them equal"):
        pi0(state=4).look(shown)


def test_folders_that_are_no_pi0(tmp_path):
    from mmrl.policies.vlm import tiny

    (tmp_path / "nothing").mkdir()
    tiny.save(str(tmp_path / "qwen"), hidden=32, layers=1)
    for name, message in (("qwen", "is a qwen2_5_vl, not a pi0"), ("nothing", "has no config.json that can be read")):
        for refuse in (checked, pi0):
            with pytest.raises(UserError, match=message):
                refuse(str(tmp_path / name))
    pi0().save(tmp_path / "whole")
    from safetensors.torch import load_file, save_file

    weights = load_file(tmp_path / "whole" / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "action_out_proj" not in k}, tmp_path / "whole" / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks 2 of pi0's weights, such as action_out_proj.bias"):
        pi0(str(tmp_path / "whole"))
    for name in ("/nowhere/at/all", "a/b/c"):
        with pytest.raises(UserError, match="is not a folder: give a folder or hub name of a pi0"):
            checked(name)
    checked("lerobot/pi0_base")
    assert pi0_tiny.NAMES["pi0"].full_name("tiny:pi0", 7) == "tiny:pi0:hidden=64,layers=2,chunk=50,seed=7"


def test_a_model_without_a_tokenizer_says_which_one_to_take(tmp_path):
    policy = pi0()
    policy.model.save_pretrained(tmp_path / "bare")
    policy.tokenizer.save_pretrained(tmp_path / "words")
    with pytest.raises(UserError, match=r"no tokenizer in .*: set policy.options.tokenizer to that of PaliGemma"):
        pi0(str(tmp_path / "bare"))
    found = pi0(str(tmp_path / "bare"), tokenizer=str(tmp_path / "words")).act(seen(), SEEDS, CALLS, 1.0)
    assert torch.equal(found.choices, policy.act(seen(), SEEDS, CALLS, 1.0).choices)
