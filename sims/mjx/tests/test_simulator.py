"""Options, the arm's controller, observations and pictures."""

import pytest
import torch
from mmrl_mjx.simulator import Mjx

from mmrl import UserError

ON = torch.ones(2, dtype=torch.bool)


@pytest.mark.parametrize(
    "options,said",
    [
        ({"task": "fly"}, "mjx: task = 'fly' must be one of reach, pick, stack, door"),
        ({"num_envs": 0}, "mjx/reach: num_envs = 0 must be a whole number of 1 or more"),
        ({"obs": "pixels"}, "mjx/reach: obs = 'pixels' must be one of rgb, state"),
        ({"dims": 8}, "mjx/reach: dims = 8 must be one of 4, 7"),
        ({"dims": True}, "mjx/reach: dims = True must be one of 4, 7"),
        ({"reward": ["dense"]}, "mjx/reach: reward = ['dense'] must be one of dense, sparse"),
        ({"size": 4}, "mjx/reach: size = 4 must be a whole number of 8 to 1024"),
        ({"cameras": "front"}, "mjx/reach: cameras = 'front' must be a list of front, wrist, top"),
        ({"cameras": ["side"]}, "mjx/reach: cameras = ['side'] must be a list of front, wrist, top"),
        ({"cameras": 0.5}, "mjx/reach: cameras = 0.5 must be a list of front, wrist, top"),
        ({"cameras": [["top"]]}, "mjx/reach: cameras = [['top']] must be a list of front, wrist, top"),
        ({"task": ["reach"]}, "mjx: task = ['reach'] must be one of reach, pick, stack, door"),
        ({"cameras": ["top", "top"]}, "mjx/reach: cameras = ['top', 'top'] names a camera twice"),
    ],
)
def test_a_bad_option_is_one_line(options, said) -> None:
    with pytest.raises(UserError) as refused:
        Mjx(**{"num_envs": 2, "device": "cpu", "task": "reach"} | options)
    assert str(refused.value) == said


def test_bad_calls_are_refused_in_a_line(arms) -> None:
    simulator = arms("reach", 2)
    simulator.reset(torch.arange(2))
    actions = torch.zeros(2, 4)
    actions[1, 2] = float("nan")
    with pytest.raises(UserError, match=r"^the action of environment 1 has NaN: check the policy's output$"):
        simulator.step(actions, ON)
    with pytest.raises(UserError, match="has no variant 'night'"):
        simulator.reset(torch.arange(2), variant="night")
    with pytest.raises(UserError, match="must be from 0 to 1"):
        simulator.reset(torch.arange(1), torch.tensor([2]))
    closed = Mjx(num_envs=1, device="cpu", task="reach", obs="state")
    closed.close()
    with pytest.raises(UserError, match=r"^mjx/reach is closed: make a new one$"):
        closed.step(torch.zeros(1, 7), ON[:1])


def test_the_gripper_goes_where_it_is_told(arms) -> None:
    """Ten steps of 2 cm to the left and 1 cm up, and half a radian about the upright axis; then it stands there."""
    simulator = arms("reach", 2, dims=7)
    simulator.reset(torch.arange(2))
    before = simulator._worlds.grips.clone()
    action = torch.tensor([0.0, 0.4, 0.2, 0.0, 0.0, 1 / 3, 0.0])
    for step in range(25):
        simulator.step((action if step < 10 else torch.zeros(7)).expand(2, 7), ON)
    moved = simulator._worlds.grips - before
    assert (moved - torch.tensor([0.0, 0.2, 0.1])).abs().max() < 0.004
    import warp

    frames = warp.to_torch(simulator._worlds.data.site_xmat)[:, simulator._worlds.grip]
    angle = torch.atan2(frames[:, 1, 0], frames[:, 0, 0])
    assert (angle - 0.5).abs().max() < 0.02
    assert (frames[:, 2, 2] + 1).abs().max() < 1e-3, "it still points down"


def test_commands_stay_in_the_box_and_near_the_gripper(arms) -> None:
    """However long a corner is asked for, half as long brings it back."""
    simulator = arms("reach", 2)
    simulator.reset(torch.arange(2))
    for _ in range(40):
        simulator.step(torch.tensor([[1.0, 1.0, -1.0, 1.0]]).expand(2, 4), ON)
    assert (simulator._commands_N6[:, :3] - simulator._worlds.grips).abs().max() < 0.061
    assert simulator._worlds.grips[:, 2].min() > 0.0
    low = simulator._worlds.grips[:, 1].clone()
    for _ in range(4):
        simulator.step(torch.tensor([[0.0, -1.0, 0.0, 1.0]]).expand(2, 4), ON)
    assert (low - simulator._worlds.grips[:, 1] > 0.05).all()


def test_the_state_has_the_named_thing_first(arms) -> None:
    """Its place from the gripper; the robot's own numbers are the same with pictures, and nothing else is told there."""
    simulator = arms("reach", 2)
    seen = simulator.reset(torch.tensor([3, 4]))
    assert seen.state.shape == (2, 23 + 9) and simulator.reset(torch.tensor([3])[:1], torch.tensor([0])).state.shape == (1, 32)
    grip, ball = seen.state[:, 14:17], seen.state[:, 23:26]
    places = simulator._worlds.views["mocap_pos"]
    for i, words in enumerate(seen.instructions):
        colour = ["red", "green", "blue"].index(words.split()[2])
        assert torch.equal(ball[i], places[i, colour] - grip[i])
    pictured = Mjx(num_envs=2, device="cpu", task="reach", size=16).reset(torch.tensor([3, 4]))
    assert torch.equal(pictured.state, seen.state[:, :23])


def test_pictures_show_the_named_ball_in_its_colour() -> None:
    simulator = Mjx(num_envs=12, device="cpu", task="reach", size=64, cameras=("top", "front"))
    seen = simulator.reset(torch.arange(12))
    assert list(seen.images) == ["top", "front"] and seen.images["top"].shape == (12, 64, 64, 3)
    found = torch.zeros(12)
    for i, words in enumerate(seen.instructions):
        channel = ["red", "green", "blue"].index(words.split()[2])
        for pixels in (shown[i].int() for shown in seen.images.values()):
            others = pixels.sum(-1) - pixels[..., channel]
            found[i] += int((pixels[..., channel] > 30 + others * 0.75).sum())
    assert (found > 5).sum() >= 10, "the arm may hide one from both cameras"
    alone = simulator._eyes(torch.tensor([7]))
    assert torch.equal(alone["top"][0], seen.images["top"][7]) and torch.equal(alone["front"][0], seen.images["front"][7])
    moved = simulator.step(torch.ones(12, 7), torch.arange(12) % 2 == 0)
    assert not moved.observation.images["top"][1::2].any() and moved.observation.images["top"][::2].flatten(1).any(1).all()
    assert simulator.render(torch.tensor([1, 0])).shape == (2, 256, 256, 3)


def test_a_camera_shows_the_same_in_any_order_and_alone() -> None:
    """The gripper's fingers are dark, and near the wrist's camera alone."""
    orders = (("front", "wrist", "top"), ("top", "front", "wrist"), ("wrist",), ("top",), ("front",))
    seen = [Mjx(num_envs=1, device="cpu", task="reach", size=32, cameras=c).reset(torch.tensor([3])).images for c in orders]
    for camera in ("front", "wrist", "top"):
        first, *others = [shown[camera] for shown in seen if camera in shown]
        assert len(others) == 2 and all(torch.equal(first, other) for other in others), camera
    dark = {camera: int((seen[0][camera].int().sum(-1) < 150).sum()) for camera in seen[0]}
    assert dark["wrist"] > 4 * max(dark["front"], dark["top"]), dark
