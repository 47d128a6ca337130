"""Rewards of VLM-RL: the published values, episodes that a small CLIP looks at, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import mmrl_robotics.looking
import pytest
import torch
from mmrl_robotics.vlm_rl import Contrast, allowed, driving_reward

from mmrl import Case, Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.judge.models import contrastive
from mmrl.registry import plugins

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "vlm-rl.jsonl"
ROWS = [row for line in GOLDEN.read_text().splitlines() if (row := json.loads(line))["of"] == "driving"]


def case(levels, state, instruction="turn left."):
    """An episode of plain pictures, and a state at each moment."""
    calls = len(levels) - 1
    pictures = torch.zeros(calls + 1, 32, 32, 3, dtype=torch.uint8)
    pictures[..., 0] = torch.tensor(levels, dtype=torch.uint8)[:, None, None]
    track = TrajectoryData(
        instruction=instruction,
        images={"top": pictures},
        state=None if state is None else torch.tensor(state),
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    return Case(completion="", rollout=Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track))


def test_rewards_are_the_published_ones():
    """All rows of its released code: between the bounds and beyond both, after a failure, and with a bad way of driving."""
    shares = []
    for row in ROWS:
        goals = torch.tensor([row["goal"], row["avoid"]])
        share = allowed(torch.tensor(row["embeddings"]), goals, (1.0, 1.0), (-0.03, 0.0))
        kept = torch.tensor([row[f"{name}_factors"] for name in ("centering", "angle", "distance_std")]).prod(0)
        speed, own = torch.tensor(row["speeds"]) / row["target_speed"], torch.tensor(row["base_rewards"])
        assert driving_reward(share, speed, kept, own).tolist() == pytest.approx(row["rewards"], abs=2e-5)
        shares += share.tolist()
    assert len(ROWS) == 40 and {0.0, 1.0} < set(shares) and sum(0 < s < 1 for s in shares) > 30


def test_weights_and_bounds():
    """Of a picture with similarities 0.6 and 0.8: 2 * 0.6 - 0.5 * 0.8 = 0.8, of the way from 0 to 1."""
    goals = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert allowed(torch.tensor([[6.0, 8.0]]), goals, (2.0, 0.5), (0.0, 1.0)).tolist() == pytest.approx([0.8])
    assert allowed(torch.tensor([[6.0, 8.0]]), goals, (1.0, 1.0), (-0.4, 0.4)).tolist() == pytest.approx([0.25])


def test_a_small_clip_pays_for_what_each_call_led_to():
    """The picture and the state after each call; the columns are where the options say."""
    goal, avoid = "a road to the {instruction}", "a wreck"
    states = [[9.0, 0.5, 0.0, 0.9], [0.2, 0.6, 0.1, 0.8], [-10.0, 0.7, 0.2, 0.4]]
    options = {"low": -1.0, "high": 1.0, "columns": [3, 1, 0]}
    verifier = Contrast(model="tiny", goal=goal, avoid=avoid, device="cpu", **options)
    episodes = [case([0, 90, 250], states), case([40, 30], states[:2])]
    found = verifier(episodes)
    clip = contrastive("tiny", device="cpu")
    pictures = clip.encode_images(mmrl_robotics.looking.pictures(episodes[0])[1:])
    good, bad = clip.encode_texts([goal.format(instruction="turn left"), avoid])
    share = float((pictures[0] @ good - pictures[0] @ bad + 1) / 2)
    assert found[0].steps == pytest.approx([(1 - abs(0.8 - share)) * 0.6, -10.0], abs=1e-5), "the second call ended in a failure"
    assert found[0].value == pytest.approx(sum(found[0].steps)) and len(found[1].steps) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"goal": ""}, "goal = '' must be a text: describe a picture"),
        ({"avoid": ["a", "b"]}, "must be a text"),
        ({"avoid": "{task}"}, "only {instruction} is allowed in braces"),
        ({"goal": "a", "avoid": "a"}, "goal and avoid are the same"),
        ({"alpha": -1.0}, "alpha = -1 and beta = 1 must be 0 or more"),
        ({"beta": True}, "beta = True must be a number"),
        ({"low": 0.0}, "low = 0 must be less than high = 0"),
        ({"high": float("nan")}, "high = nan must be a number"),
        ({"columns": [0, 1]}, "columns = [0, 1] must be 3 different places in the state"),
        ({"columns": [0, 1, 1]}, "columns = [0, 1, 1] must be 3 different places"),
        ({"columns": [0, 1, -1]}, "columns = [0, 1, -1] must be 3 different places"),
        ({"camera": "back"}, "camera = 'back' is not a camera of task 'drive'"),
        ({"device": "tpu"}, "device = 'tpu' is unknown"),
    ],
)
def test_options_that_cannot_be(options, said):
    registry = plugins.registry()
    with pytest.raises(UserError) as error:
        registry.check_verifier(
            registry.get("verifiers", "robotics/vlm-rl"), {"model": "tiny"} | options, {"drive": ("top", "front")}
        )
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_state_without_the_columns_is_refused():
    verifier = Contrast(model="tiny", columns=[0, 1, 4], device="cpu")
    for state, numbers in ((None, 0), ([[0.0, 0.0, 0.0]] * 2, 3)):
        with pytest.raises(UserError, match=rf"columns = \[0, 1, 4\]: the simulator's state has {numbers} numbers"):
            verifier([case([0, 1], state)])
