"""X-VLA: action spaces are learned and read as published, what is sampled is what is learned, a folder is the same policy. The
network itself is compared with LeRobot's in `test_xvla_lerobot.py`."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from flow_cases import calls
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec, Observation
from mmrl.api.specs import SimulatorSpec
from mmrl.config import parts
from mmrl.config.sections import CriticConfig, LoraConfig, PartConfig, PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.critic import Critic
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.xvla.model import XVLA
from mmrl.policies.xvla.poses import Robot, matrix_of_six, matrix_of_turn, six_of_matrix, turn_of_matrix
from mmrl.policies.xvla.spaces import space_of
from pi0_cases import CALLS, DRAW, SEEDS, moved, seen
from xvla_cases import MODEL, xvla

HANDS = {"action_mode": "ee6d", "dims": 7}


# -- action spaces --------------------------------------------------------------------------------------------------------


def published_loss(mode, said, target):
    """Written out as in 2toINF/X-VLA, models/action_hub.py, and lerobot 0.6.1."""
    if mode == "joint":
        grippers = sum(binary_cross_entropy_with_logits(said[..., i], target[..., i]) for i in (6, 13)) / 2
        joints = [i for i in range(14) if i not in (6, 13)]
        return 0.1 * grippers + mse_loss(said[..., joints], target[..., joints])
    if mode == "so101_bimanual":
        some = ([*range(12)], [5, 11], [*range(6)], [*range(6, 12)])
        return sum(mse_loss(said[..., numbers], target[..., numbers]) for numbers in some)
    if mode in ("auto", "franka_joint7"):
        return mse_loss(said[..., :7], target[..., :7])
    places = mse_loss(said[..., :3], target[..., :3]) + mse_loss(said[..., 10:13], target[..., 10:13])
    turns = mse_loss(said[..., 3:9], target[..., 3:9]) + mse_loss(said[..., 13:19], target[..., 13:19])
    if mode == "ee6d":
        grippers = sum(binary_cross_entropy_with_logits(said[..., i], target[..., i]) for i in (9, 19)) / 2
    else:
        grippers = 10 * mse_loss(said[..., [9, 19]], target[..., [9, 19]])
    return 500 * places + 10 * turns + grippers


@pytest.mark.parametrize("mode", ["ee6d", "agibot_ee6d", "joint", "franka_joint7", "auto", "so101_bimanual"])
def test_the_loss_of_a_space_is_the_published_one(mode):
    space = space_of(mode, {"joint": 14, "so101_bimanual": 12}.get(mode, 7), 20)
    draw = torch.Generator().manual_seed(1)
    said, target = (torch.rand(4, 5, space.size, generator=draw) for _ in range(2))
    torch.testing.assert_close(space.errors(said, target).sum(-1).mean(), published_loss(mode, said, target))


def test_a_demonstration_is_learned_by_the_published_loss():
    """Of all predicted actions and the second hand's zeros, at times and with noise that the sampler gives."""
    policy, shown = moved(xvla(**HANDS)), seen()
    actions = torch.rand(4, 5, 7, generator=torch.Generator().manual_seed(5)) - 0.5
    choices = policy.head.choices_of(actions)
    assert choices.shape == (4, 1, 5, 20) and (choices[..., 10:] == 0).all() and choices[..., 9].min() >= 0
    x, times = policy.chains.noised(choices[:, 0])
    assert ((torch.arange(PLACES) / PLACES) <= times).all() and ((torch.arange(PLACES) + 1) / PLACES >= times).all()
    noise = (x - (1 - times[:, :, None, None]) * choices) / times[:, :, None, None]
    assert abs(noise.std() - 1) < 0.05 and abs(noise.mean()) < 0.05
    with torch.no_grad():
        said = policy.velocity(policy.look(shown), x, times)
    found = policy.outputs(calls(shown, choices), 1.0)
    torch.testing.assert_close(-found.logprobs_L.mean(), published_loss("ee6d", said, choices.expand_as(said)))
    assert found.logprobs_L.requires_grad and (found.entropy_L == 0).all()


def test_a_gripper_is_said_and_never_read():
    policy, shown = moved(xvla(**HANDS)), seen()
    scene, times = policy.look(shown), torch.full((4, 1), 0.5)
    x = torch.randn(4, 1, 5, 20, generator=torch.Generator().manual_seed(2))
    other, much = x.clone(), x.clone()
    other[..., [9, 19]] += 5
    much[..., 8] += 5
    with torch.no_grad():
        one, two, three = (policy.velocity(scene, each, times) for each in (x, other, much))
    assert torch.equal(one, two) and (one - three).abs().max() > 1e-3
    assert (
        policy.model.read(torch.zeros(4, 24).long(), policy._pictures(shown), 2, torch.ones(4, 20), 0).state_nS[:, 9] == 0
    ).all()


# -- turns ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["columns", "rows"])
def test_turns_go_both_ways(order):
    axis = torch.nn.functional.normalize(
        torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    turns = axis * torch.linspace(0, math.pi - 1e-4, 200, dtype=torch.float64)[:, None]
    matrices = matrix_of_turn(turns)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(200, 3, 3))
    torch.testing.assert_close(matrices @ axis[..., None], axis[..., None])  # the axis stays
    six = six_of_matrix(matrices, order)
    torch.testing.assert_close(turn_of_matrix(matrix_of_six(3 * six, order)), turns, atol=1e-5, rtol=1e-5)
    quarter = torch.tensor([0.0, 0.0, math.pi / 2])
    wanted = [0.0, 1, 0, -1, 0, 0] if order == "columns" else [0.0, -1, 1, 0, 0, 0]
    torch.testing.assert_close(six_of_matrix(matrix_of_turn(quarter), order), torch.tensor(wanted), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("dims", "hands"), [(7, 1), (14, 2), (10, 0), (20, 0)])
def test_a_robots_numbers_go_both_ways(dims, hands):
    robot = Robot(space=space_of("ee6d", dims, 20), dims=dims, scaled=True)
    actions = torch.rand(3, 2, dims, generator=torch.Generator().manual_seed(1)) * 2 - 1
    numbers = robot.demonstrated(actions)
    assert robot.hands == hands and numbers.shape == (3, 2, 20) and (numbers[..., robot.used :] == 0).all()
    torch.testing.assert_close(robot.carried_out(numbers[..., : robot.used]), actions, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(numbers[..., 9], (actions[..., 6 if hands else 9] + 1) / 2)


# -- likelihoods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noisy", ["all", "one", "learned"])
@pytest.mark.parametrize("options", [{}, HANDS, {"action_mode": "so101_bimanual", "dims": 12}], ids=["auto", "ee6d", "so101"])
def test_what_is_sampled_is_what_is_learned(noisy, options):
    policy, shown = moved(xvla(noisy=noisy, **options)), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.6)
    outputs = policy.outputs(calls(shown, found.choices), 0.6, states=True)
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-5, rtol=1e-6)
    assert outputs.logprobs_L.requires_grad and found.actions_nKA.shape == (4, 2, policy.dims)
    some = torch.tensor([2, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 0.6)
    torch.testing.assert_close(alone.actions_nKA, found.actions_nKA[some], atol=1e-5, rtol=1e-5)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS + 1, 0.6).actions_nKA, found.actions_nKA)


def test_without_noise_the_steps_are_the_published_ones():
    """Each mixes the first noise and the action that was said last."""
    policy, shown = moved(xvla(**HANDS, steps=3)), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.0)
    with torch.no_grad():
        scene, start, said = policy.look(shown), found.choices[:, 0], 0.0
        for i in (3, 2, 1):
            x = start * i / 3 + said * (1 - i / 3)
            said = policy.velocity(scene, x[:, None], torch.full((4, 1), i / 3))[:, 0]
    torch.testing.assert_close(found.actions_nKA[..., :3], said[:, :2, :3].clamp(-1, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.actions_nKA[..., 6], 2 * said[:, :2, 9].sigmoid() - 1, atol=1e-5, rtol=1e-5)
    assert (found.logprobs_nKC == 0).all()


def test_a_likelihood_is_that_of_the_executed_numbers():
    """Step by step with plain loops, from the definition: normal steps, and a toss of the gripper at the end."""
    policy, shown = moved(xvla(**HANDS, steps=2, noise_level=0.7)), seen(1)
    found = policy.act(shown, SEEDS[:1], CALLS[:1], 0.8)
    total, scene, start = torch.zeros(2), policy.look(shown), found.choices[0, 0]
    for i in range(2):
        t, (x, following) = 1 - i / 2, found.choices[0, i : i + 2]
        with torch.no_grad():
            said = policy.velocity(scene, x[None, None], torch.full((1, 1), t))[0, 0]
        sigma = 0.7 * math.sqrt(t / max(1 - t, 0.5)) * 0.8 * math.sqrt(0.5)
        for c in range(2):
            for d in range(10):
                if d == 9:
                    if i == 1:
                        share = torch.sigmoid(said[c, d] / 0.8)
                        total[c] += torch.log(share if following[c, d] == 1 else 1 - share)
                    continue
                last = (500 if d < 3 else 10) ** -0.5 if i == 1 else 1.0
                std = sigma * last if i == 1 else min(sigma, 0.5)
                mean = said[c, d] if i == 1 else 0.5 * said[c, d] + math.sqrt(0.25 - std**2) * start[c, d]
                total[c] += torch.distributions.Normal(mean, std).log_prob(following[c, d])
    torch.testing.assert_close(found.logprobs_nKC[0, :, 0], total, atol=1e-4, rtol=1e-4)
    grippers = found.choices[:, -1, :2, 9]
    assert ((grippers == 0) | (grippers == 1)).all()
    assert torch.equal(found.actions_nKA[..., 6], 2 * grippers - 1)


def test_noise_leaves_the_distribution_of_every_point():
    """With an action that is said whatever x is, the points of many chains are as without noise: t noise + (1 - t) action."""
    policy = xvla(steps=4, noise_level=0.6)
    many = CallRandomness(seeds_n=torch.arange(4000), calls_n=torch.zeros(4000, dtype=torch.long))
    _, places, _ = policy.chains.sample(lambda x, times: torch.full_like(x, 0.3), many, (1, 20), 1.0)
    for i in range(4):
        t = 1 - i / 4
        assert abs(places[:, i].std() - t) < 0.01 and abs(places[:, i].mean() - (1 - t) * 0.3) < 0.01, i
    assert abs(places[:, 4].std() - 0.6 * math.sqrt(0.25 / 0.75) * 0.5) < 0.01


def test_a_gripper_is_tossed_by_what_is_said():
    chains = xvla(**HANDS, steps=2).chains
    many = CallRandomness(seeds_n=torch.arange(4000), calls_n=torch.zeros(4000, dtype=torch.long))
    end, choices, logprob = chains.sample(lambda x, times: torch.full_like(x, 0.8), many, (1, 20), 1.0)
    share = torch.tensor(0.8).sigmoid()
    assert abs(end[..., 9].mean() - share) < 0.02 and torch.equal(end, choices[:, -1])
    torch.testing.assert_close(logprob[..., 9].exp(), torch.where(end[..., 9] == 1, share, 1 - share))
    _, entropy = chains.score(lambda x, times: torch.full_like(x, 0.8), choices, 1.0)
    wanted = -(share * share.log() + (1 - share) * (1 - share).log())
    torch.testing.assert_close(entropy[..., 9], wanted.expand(4000, 1))


# -- what is read ---------------------------------------------------------------------------------------------------------


def test_a_critic_reads_everything_but_noise():
    policy, shown = moved(xvla()), seen()
    first = policy.choose(shown, DRAW, 1.0)[3]
    other = policy.choose(shown, CallRandomness(seeds_n=SEEDS + 9, calls_n=CALLS), 1.0)[3]
    assert torch.equal(first, other) and torch.equal(policy.states_of(shown), first) and first.shape == (4, policy.width)
    known = {"images": shown.images, "state": shown.state, "instructions": shown.instructions}
    for change in (
        {"images": {**shown.images, "front": 255 - shown.images["front"]}},
        {"images": {**shown.images, "wrist": 255 - shown.images["wrist"]}},
        {"state": shown.state + 1},
        {"instructions": ["do nothing at all"] * 4},
    ):
        assert (policy.states_of(Observation(**{**known, **change})) - first).abs().amax(1).min() > 1e-4, change


@pytest.mark.parametrize("detach", [True, False])
def test_a_critics_gradient_is_cut_where_it_says_so(detach):
    policy, shown = xvla(), seen()
    critic = Critic(policy, CriticConfig(hidden_sizes=[4], detach=detach), 0)
    with torch.no_grad():
        critic.head[-1].weight.add_(1.0)
    found = policy.act(shown, SEEDS, CALLS, 1.0, critic)
    made = calls(shown, found.choices)
    values, *_ = critic.values(made, policy.outputs(made, 1.0, states=True).states_QH)
    torch.testing.assert_close(values, found.values_nU.expand(-1, 2).flatten(), atol=1e-5, rtol=1e-4)
    values.sum().backward()
    reached = sum(float(p.grad.abs().sum()) for _, p in policy.parameters() if p.grad is not None)
    assert (reached == 0) == detach and critic.head[0].weight.grad.abs().sum() > 0


def test_units_of_a_simulator_are_those_of_the_network():
    """An absolute pose in metres, with a gripper whose probability of being closed is said, as for LIBERO."""
    numbers = {"kind": "min-max", "action": {"min": [0.0] * 7, "max": [1.0] * 7, "mask": [False] * 7}}
    policy = moved(xvla(**HANDS, statistics=numbers, gripper="close-high", state=8))
    action = ActionSpec(dims=7, gripper=6, units=(2.0, 2.0, 2.0, math.pi, math.pi, math.pi, 1.0))
    policy.fits("reach", type("Arm", (), {"action": action})(), SimulatorSpec(id="arm", target="x:y", action=action))
    shown = seen()
    shown = Observation(
        images=shown.images, state=torch.cat([shown.state, shown.state[:, :2]], 1), instructions=shown.instructions
    )
    found = policy.act(shown, SEEDS, CALLS, 0.0).actions_nKA
    plain = policy.choose(shown, DRAW, 0.0)[0]
    torch.testing.assert_close(found[..., :3], plain[..., :3] / 2)
    torch.testing.assert_close(found[..., 3:6], plain[..., 3:6] / math.pi)
    assert torch.equal(found[..., 6], torch.where(plain[..., 6] > 0.5, 1.0, -1.0))
    state = policy._state(shown)
    torch.testing.assert_close(state[:, :3], shown.state[:, :3])
    torch.testing.assert_close(
        turn_of_matrix(matrix_of_six(state[:, 3:9], "columns")).norm(dim=-1) <= math.pi + 1e-5, torch.ones(4).bool()
    )
    assert state.shape == (4, 20) and (state[:, 9:] == 0).all()


# -- weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "noisy"), [("float32", "learned"), ("bfloat16", "one")])
def test_a_folder_is_the_same_policy(dtype, noisy, tmp_path):
    options = {"cameras": ["wrist"], "noisy": noisy, "dtype": dtype, **HANDS, "domain": 2}
    policy = moved(xvla(**options))
    policy.save(tmp_path / "saved")
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    for again in (xvla(str(tmp_path / "moved"), **options), xvla(source=tmp_path / "moved", **options)):
        two = again.act(seen(), SEEDS, CALLS, 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    assert policy.model.action_head.action_decoder.fc.weight.dtype == torch.float32, "an action's numbers are never rounded"
    assert policy.model.action_head.blocks[0].mlp.fc1.weight.dtype == getattr(torch, dtype)
    with pytest.raises(
        UserError, match=r"holds a policy with domain = 2, and the run file says 1: set policy.options.domain = 2"
    ):
        xvla(str(tmp_path / "moved"), **{**options, "domain": 1})


def gradients(policy, made, on=False):
    policy.model.zero_grad()
    with gradient_checkpointing(policy.model, on):
        policy.outputs(made, 1.0).logprobs_L.sum().backward()
    return {name: p.grad.clone() for name, p in policy.parameters() if p.grad is not None and p.grad.abs().sum() > 0}


@pytest.mark.slow
def test_a_domain_learns_its_own_weights_and_the_shared_ones():
    policy, shown = moved(xvla(domain=1)), seen()
    made = calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    once, again = gradients(policy, made), gradients(policy, made, on=True)
    assert once.keys() == again.keys() and any("vision_tower" in name for name in once)
    for name, gradient in once.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-5, rtol=1e-4)
    for name in ("soft_prompt_hub.weight", "action_encoder.fc.weight", "action_decoder.fc.weight", "action_decoder.bias.weight"):
        rows = once[f"action_head.{name}"].abs().sum(1)
        assert rows[1] > 0 and rows[0] == rows[2] == 0, name
    assert {parts.part_of(name) for name, _ in policy.parameters()} == {"vision", "projector", "language", "head"}
    names = [name for name, _ in policy.parameters()]
    assert [n for n, _ in XVLA.skeleton(PolicyConfig(model=MODEL, kind="xvla")).named_parameters()] == names
    frozen = [PartConfig(match=part, freeze=True) for part in ("vision", "projector", "language")]
    for name, p in policy.parameters():
        p.requires_grad_(parts.entry(frozen, name) is None)
    assert all(name.startswith("action_head.") for name in gradients(policy, made))


def test_adapters_of_other_code_are_refused_in_one_line(tmp_path):
    """As the authors' `peft_train.py` saves them, by the names of their own modules."""
    peft = {"base_model_name_or_path": MODEL, "modules_to_save": ["transformer.soft_prompt_hub"], "target_modules": ["qkv"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(peft))
    config = PolicyConfig(model=str(tmp_path), kind="xvla")
    for made in (XVLA.check, XVLA):
        with pytest.raises(UserError, match=r"has adapters of an X-VLA that mmrl didn't save: merge them by peft") as caught:
            made(config)
        assert "\n" not in str(caught.value) and caught.value.key == "policy.model"


@pytest.mark.slow
def test_adapters_are_trained_with_the_weights_of_domains(tmp_path):
    """As X-VLA's authors train them: soft prompts, encoders and decoders as a whole, and adapters of everything else."""
    lora = LoraConfig(rank=2, target_modules=["head", "language", "vision"])
    policy = xvla(lora=lora)
    names = {name for name, _ in policy.parameters()}
    whole = {name for name in names if "lora_" not in name}
    assert {name.split(".")[1] for name in whole} == {"soft_prompt_hub", "action_encoder", "action_decoder"}
    assert any("vision_tower" in n for n in names) and any("encoder.layers" in n for n in names)
    reached = gradients(policy, calls(seen(), policy.act(seen(), SEEDS, CALLS, 1.0).choices))
    assert whole <= reached.keys() and all(p.requires_grad == (name in names) for name, p in policy.model.named_parameters())
    moved(policy).save(tmp_path / "saved")
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    for again in (xvla(lora=lora, source=tmp_path / "saved"), xvla(str(tmp_path / "saved"))):
        torch.testing.assert_close(again.act(seen(), SEEDS, CALLS, 1.0).choices, one.choices, atol=1e-4, rtol=1e-4)
    again.save(tmp_path / "merged")
    two = xvla(str(tmp_path / "merged")).act(seen(), SEEDS, CALLS, 1.0)
    torch.testing.assert_close(two.choices, one.choices, atol=1e-4, rtol=1e-4)
