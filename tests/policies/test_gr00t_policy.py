"""GR00T as a policy: its numbers, pictures and text are processed as the files beside its weights say."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from flow_cases import calls, gradients
from gr00t_cases import MODEL, SPEC, arm, gr00t, looked, published, relative, two_robots
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec, Observation, TrajectoryData
from mmrl.api.specs import SimulatorSpec
from mmrl.config import parts
from mmrl.config.sections import PartConfig, PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.gr00t.policy import Gr00t
from mmrl.policies.gr00t.reading import Reader
from pi0_cases import CALLS, SEEDS, seen

ENDS = {"relative_action": ("min", "max"), "action": ("q01", "q99")}
RELATIVE = SimulatorSpec(id="some/arm", target="-:-", action=ActionSpec(dims=13, units=(3.0,) * 13))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return two_robots(tmp_path_factory.mktemp("gr00t") / "model")


# -- what its numbers mean ------------------------------------------------------------------------------------------------


def test_states_lie_between_the_quantiles(checkpoints):
    name, tables = checkpoints
    policy, shown = arm(name), looked(3)
    found = policy._state(shown)
    flat = [tables["state"][group] for group in ("x", "arm", "gripper")]
    low, high = ([x for group in flat for x in group[end]] for end in ("q01", "q99"))
    for n in range(3):
        for i in range(8):
            wanted = 0.0 if high[i] == low[i] else 2 * (float(shown.state[n, i]) - low[i]) / (high[i] - low[i]) - 1
            assert float(found[n, i]) == pytest.approx(max(-1, min(1, wanted)), abs=1e-5), (n, i)
    assert found.shape == (3, 132) and (found[:, 8:] == 0).all() and (found[:, 7] == 0).all(), "the last number never changes"
    assert (found[:, :7].abs() == 1).any() and (found[:, :7].abs() < 1).any()


def test_actions_reach_the_simulator_in_its_units(checkpoints):
    name, tables = checkpoints
    policy, shown = arm(name), looked(3)
    policy.fits("t", None, SPEC)
    own = policy.choose(shown, CallRandomness(seeds_n=SEEDS[:3], calls_n=CALLS[:3]), 1.0)[0]
    found = policy.act(shown, SEEDS[:3], CALLS[:3], 1.0).actions_nKA
    flat = [tables["action"][group] for group in ("x", "turn", "gripper")]
    low, high = (torch.tensor([x for group in flat for x in group[end]]) for end in ("q01", "q99"))
    physical = (own.clamp(-1, 1) + 1) / 2 * (high - low) + low
    wanted = (physical / torch.tensor([0.5, 2.0, 4.0, 1.0])).clamp(-1, 1)
    wanted[..., 3] = torch.where(physical[..., 3] > 0.5, -1.0, 1.0)  # open is 1 in the data and below 0 in the simulator
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert set(found[..., 3].flatten().tolist()) == {-1.0, 1.0}


def test_relative_actions_start_at_the_robots_state(checkpoints):
    """Joints by addition, a pose by turning and moving it: with plain loops."""
    policy = gr00t(checkpoints[0], embodiment="joints", dims=13, state=13, chunk=5)
    tables = relative()[1]
    noise = torch.Generator().manual_seed(3)
    own, state = torch.rand(2, 5, 13, generator=noise) * 2 - 1, torch.randn(2, 13, generator=noise)
    found = policy.embodiment.physical(own, state)

    def scaled(x, group, kind, step, i):
        table = tables[kind][group]
        low, high = (table[end][step][i] if kind == "relative_action" else table[end][i] for end in ENDS[kind])
        return (x + 1) / 2 * (high - low) + low

    def turned(rows):
        first = rows[:3] / rows[:3].norm()
        second = rows[3:] - (rows[3:] @ first) * first
        second = second / second.norm()
        return torch.stack([first, second, torch.tensor([[0, 0, 0]]).double()[0] + torch.linalg.cross(first, second)])

    for n in range(2):
        for k in range(5):
            pose = torch.tensor([scaled(float(own[n, k, i]), "eef_9d", "relative_action", k, i) for i in range(9)]).double()
            here = state[n, :9].double()
            frame, rotation = turned(here[3:]), turned(pose[3:])
            wanted = [*(here[:3] + frame @ pose[:3]).tolist(), *(frame @ rotation)[:2].flatten().tolist()]
            wanted.append(scaled(float(own[n, k, 9]), "gripper", "action", k, 0))
            for i in range(3):
                wanted.append(float(state[n, 10 + i]) + scaled(float(own[n, k, 10 + i]), "arm", "relative_action", k, i))
            torch.testing.assert_close(found[n, k], torch.tensor(wanted, dtype=torch.float32), atol=1e-5, rtol=1e-4)
    joints = policy.embodiment.normalised(found, state)[..., 9:]
    torch.testing.assert_close(joints, own[..., 9:], atol=1e-4, rtol=1e-4)


def test_means_deviations_and_angles(tmp_path):
    """With plain loops, as Isaac-GR00T's `StateActionProcessor` has them: numbers of a state are not cut, those of a
    demonstration are, a number that never changes stays as it is, and angles are shown as their sines and then cosines."""
    config, tables = relative()
    config["state"] |= {"mean_std_embedding_keys": ["joints"], "sin_cos_embedding_keys": ["eef_9d"]}
    config["action"]["mean_std_embedding_keys"] = ["gripper", "arm"]
    tables["state"]["joints"]["std"][1] = tables["relative_action"]["arm"]["std"][2][1] = 0.0
    name = published(tmp_path / "model", {"arm": (config, tables)}, {"apply_sincos_state_encoding": True})
    policy, shown = gr00t(name, dims=13, state=13, chunk=5), looked(2, cameras=("image",), state=13)
    found, joints = policy._state(shown), tables["state"]["joints"]
    assert found.shape == (2, 132) and (found[:, 22:] == 0).all()
    for n in range(2):
        x = shown.state[n].tolist()
        wanted = [f(value) for f in (math.sin, math.cos) for value in x[:9]]
        low, high = (tables["state"]["gripper"][end][0] for end in ("q01", "q99"))
        wanted.append(max(-1, min(1, 2 * (x[9] - low) / (high - low) - 1)))
        wanted += [(v - m) / s if s else v for v, m, s in zip(x[10:], joints["mean"], joints["std"], strict=True)]
        torch.testing.assert_close(found[n, :22], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
    assert found[:, 19:22].abs().max() > 1, "nothing is cut"
    own = torch.randn(2, 5, 13, generator=torch.Generator().manual_seed(1)) * 2
    physical = policy.embodiment.physical(own, shown.state)
    gripper, arm_ = tables["action"]["gripper"], tables["relative_action"]["arm"]
    for n in range(2):
        for k in range(5):
            wanted = [float(own[n, k, 9]) * gripper["std"][0] + gripper["mean"][0]]
            for i in range(3):
                mean, deviation, x = arm_["mean"][k][i], arm_["std"][k][i], float(own[n, k, 10 + i])
                wanted.append(float(shown.state[n, 10 + i]) + (x * deviation + mean if deviation else x))
            torch.testing.assert_close(physical[n, k, 9:], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
    back = policy.embodiment.normalised(physical, shown.state)[..., 9:]
    torch.testing.assert_close(back, own[..., 9:].clamp(-1, 1), atol=1e-5, rtol=1e-5)
    assert policy.embodiment.normalised(physical, shown.state).shape == own.shape and (own[..., 9:].abs() > 1).any()
    again = policy.save(tmp_path / "saved") or gr00t(str(tmp_path / "saved"), dims=13, state=13, chunk=5)
    assert again.embodiment.plain() == policy.embodiment.plain() and torch.equal(again._state(shown), found)


def test_a_pose_and_its_inverse(checkpoints):
    """A pose that is relative to another, and then absolute again, with ends wide enough that nothing is cut."""
    group = gr00t(checkpoints[0], embodiment="joints", dims=13, state=13, chunk=5).embodiment.actions[0]
    noise = torch.Generator().manual_seed(5)
    state = torch.randn(3, 13, generator=noise)
    rotations = torch.linalg.qr(torch.randn(3, 4, 3, 3, generator=noise)).Q
    rotations = rotations * torch.linalg.det(rotations)[..., None, None]
    absolute_ = torch.cat([torch.randn(3, 4, 3, generator=noise), rotations[..., :2, :].flatten(-2)], -1)
    torch.testing.assert_close(group.absolute(group.relative(absolute_, state), state), absolute_, atol=1e-5, rtol=1e-5)
    assert (group.relative(absolute_, state) - absolute_).abs().max() > 0.1


def shown_by_expert(policy, count=6):
    noise = torch.Generator().manual_seed(4)
    actions = torch.rand(count, policy.dims, generator=noise) * 2 - 1
    return TrajectoryData(
        instruction="push it",
        images={"image": torch.zeros(count + 1, 8, 8, 3, dtype=torch.uint8)},
        state=torch.randn(count + 1, 13, generator=noise)[:, : policy.state],
        choices=actions[:, None],
        logprobs_TKC=torch.zeros(count, 1, 1),
        valid_TK=torch.ones(count, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(count, 1),
    )


def test_a_demonstration_is_normalised_relative_to_the_state_at_its_start(checkpoints):
    policy = gr00t(checkpoints[0], embodiment="joints", dims=13, state=13, chunk=3)
    policy.fits("t", None, RELATIVE)
    track = shown_by_expert(policy)
    found = policy.chunked(track)
    assert found.choices.shape == (6, 1, 5, 132) and (found.choices[..., 13:] == 0).all() and found.valid_TK.shape == (6, 3)
    tables = relative()[1]["relative_action"]["arm"]
    for t in range(6):
        for k in range(5):
            for i in range(3):
                physical = float(track.choices[min(t + k, 5), 0, 10 + i]) * 3.0 - float(track.state[t, 10 + i])
                low, high = tables["min"][k][i], tables["max"][k][i]
                wanted = max(-1.0, min(1.0, 2 * (physical - low) / (high - low) - 1))
                assert float(found.choices[t, 0, k, 10 + i]) == pytest.approx(wanted, abs=1e-4), (t, k, i)
    longer = dataclasses.replace(track, state=track.state[:4])
    assert torch.equal(policy.chunked(longer).choices[:4], found.choices[:4]), "actions after the last known state"


def test_imitation_is_the_published_loss(checkpoints):
    """The squared error of actions minus noise, over the steps and numbers that the robot has (`action_mask`), on average."""
    policy, shown = arm(checkpoints[0], chunk=2), looked(3)
    actions = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(5)) * 2 - 1
    choices = policy.head.choices_of(actions)
    assert choices.shape == (3, 1, 5, 132) and (choices[:, :, 4:] == 0).all()
    asked = []
    policy.chains.score(lambda x, times: asked.append((x, times)) or torch.zeros_like(x), choices, 1.0)
    ((x, times),) = asked
    wanted = []
    for n in range(3):
        context = policy.look(shown.rows(torch.tensor([n]))).context
        for m in range(PLACES):
            t = times[n, m]
            noise = (x[n, m] - (1 - t) * choices[n, 0]) / t
            velocity = policy.model.action_head.velocity(context, x[n, m][None], (1 - t + 1e-6)[None])[0]
            wanted.append(((velocity - (choices[n, 0] - noise)) ** 2)[:4, :4].mean())
    found = policy.outputs(calls(shown, choices), 1.0)
    torch.testing.assert_close(found.logprobs_L.mean(), -torch.stack(wanted).mean(), atol=1e-4, rtol=1e-4)
    assert found.logprobs_L.requires_grad and (found.entropy_L == 0).all()


@pytest.mark.parametrize("steps", [4, 5, 7, 10])
def test_steps_begin_at_the_published_times(steps, monkeypatch):
    """Rounded down to thousandths (`int(t * num_timestep_buckets)` of `get_action_with_features`)."""
    policy, asked = gr00t(steps=steps), []
    network = policy.model.action_head.model
    monkeypatch.setattr(network, "forward", lambda x, buckets, *rest: asked.append(buckets.unique().tolist()) or x)
    policy.act(seen(), SEEDS, CALLS, 1.0)
    assert asked == [[int(i / steps * 1000)] for i in range(steps)]


# -- what it reads --------------------------------------------------------------------------------------------------------


def test_what_is_read_stands_as_in_training(checkpoints):
    policy = arm(checkpoints[0])
    ids = policy.reader.ids("Pick-up the RED cube_2, now!", policy.reader.sizes(looked()))
    text = policy.reader.processor.tokenizer.decode(ids)
    picture = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"
    assert text == f"<|im_start|>user\n{picture}{picture}pickup the red cube_2 now<|im_end|>\n"
    reads = policy.reader.processor
    as_it_is = Reader(reads, policy.reader.framing, policy.embodiment, (), plain_text=False)
    assert "Pick-up the RED cube_2, now!" in reads.tokenizer.decode(as_it_is.ids("Pick-up the RED cube_2, now!", ((64, 64),)))


def test_cameras_are_the_embodiments(checkpoints):
    policy, shown = arm(checkpoints[0]), looked(2)
    turned = Observation(images=dict(reversed(shown.images.items())), state=shown.state, instructions=shown.instructions)
    assert policy.reader.names(turned) == ["image", "wrist_image"], "whatever their order in the simulator"
    other = Observation(
        images={"top": shown.images["image"], "hand": shown.images["wrist_image"]},
        state=shown.state,
        instructions=shown.instructions,
    )
    with pytest.raises(UserError) as told:
        policy.look(other)
    assert str(told.value) == (
        "the embodiment 'arm' looks through image, wrist_image, and the simulator has top, hand: set policy.options.cameras to "
        "those that take their places, in this order"
    )
    same = arm(checkpoints[0], cameras=["top", "hand"])
    assert torch.equal(same.look(other).seen_nH, policy.look(shown).seen_nH)
    with pytest.raises(
        UserError, match=r"^a state of the embodiment 'arm' has 8 numbers \(x 1, arm 5, gripper 2\), and the sim.* 7:"
    ):
        policy.look(Observation(images=shown.images, state=shown.state[:, :7], instructions=shown.instructions))
    frames = gr00t(checkpoints[0], embodiment="joints", dims=13, state=13)
    assert len(frames.reader.pictures(looked(state=13), frames.device)) == 2, "the newest stands for the one before it"


def test_tokens_of_a_call_are_counted(checkpoints):
    policy = arm(checkpoints[0], steps=3)
    track = dataclasses.replace(shown_by_expert(policy), images=looked().images)
    read = len(policy.reader.ids("push it", ((64, 64),) * 2))
    assert read == policy.reader.inputs(looked(2).rows(torch.tensor([1])), policy.device)["input_ids"].shape[1]
    sampled = dataclasses.replace(track, choices=torch.zeros(6, 4, 5, 132))
    assert policy.tokens_per_call([sampled]) == read + 3 * 6 and policy.tokens_per_call([track]) == read + PLACES * 6


# -- its parts ------------------------------------------------------------------------------------------------------------


def test_the_head_is_a_part_of_its_own():
    policy, shown = gr00t(), seen()
    names = [name for name, _ in policy.parameters()]
    assert {parts.part_of(name) for name in names} == {"vision", "projector", "language", "head"}
    assert [n for n, _ in Gr00t.skeleton(PolicyConfig(model=MODEL, kind="gr00t")).named_parameters()] == names
    frozen = [PartConfig(match=part, freeze=True) for part in ("vision", "projector", "language")]
    for name, p in policy.parameters():
        p.requires_grad_(parts.entry(frozen, name) is None)
    made = calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    reached = gradients(policy, made)
    assert reached and all(name.startswith("action_head.") for name in reached)
    assert {name.split(".")[1] for name in reached} >= {"model", "vlln", "vl_self_attention", "state_encoder", "action_decoder"}
