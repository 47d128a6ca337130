"""Counter-examples and references of a progress critic: which pictures it is shown, and whose; compared with VLAC's code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mmrl_robotics.looking
import mmrl_robotics.references
import numpy as np
import pytest
import torch
from mmrl_robotics.looking import Progress
from mmrl_robotics.pairs import ProgressPairs
from mmrl_robotics.references import Episode, Expert, References, about_progress

from mmrl import Case, Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.judge.models import vision_language
from mmrl.registry import plugins

golden = pytest.importorskip("golden_vlac", reason="tests/support of mmrl's repository")
ROWS = [json.loads(line) for line in Path(golden.OUT).read_text().splitlines()]
TABLE = {"dims": 4, "size": 32, "distractors": 0, "shapes": ["cube", "ball"], "colours": ["red"]}
PATTERN = r"red \w+"
SMALL = TABLE | {"episodes": 12, "held_out": 3, "pairs": 30, "goal_pattern": PATTERN}


def case(moments, instruction="take the red ball."):
    """An episode whose pictures have their moment as red."""
    images = torch.zeros(moments, 32, 32, 3, dtype=torch.uint8)
    images[..., 0] = torch.arange(moments, dtype=torch.uint8)[:, None, None]
    calls = moments - 1
    track = TrajectoryData(
        instruction=instruction,
        images={"front": images},
        state=None,
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    return Case(completion="", rollout=Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track))


def reference(moments):
    """The same with 1 more as blue."""
    images = np.zeros((moments, 32, 32, 3), np.uint8)
    images[..., 2] = np.arange(1, moments + 1)[:, None, None]
    return Episode("take the red ball", images)


@pytest.fixture(scope="module")
def episodes():
    """Those of the expert, with both goals."""
    return Expert("robotics/pick", TABLE).episodes(12, "demo")


def pairs(episodes, **options):
    task = ProgressPairs(**{**SMALL, **options})
    task._episodes["train"] = episodes
    return task


@pytest.fixture
def asked(monkeypatch):
    found = []

    def numbers(questions):
        found.extend(question[0] for (question) in questions)
        return [0.0] * len(questions)

    monkeypatch.setattr(mmrl_robotics.looking, "vision_language", lambda *args, **options: SimpleNamespace(numbers=numbers))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['frames']} of {row['length']}")
def test_the_pictures_and_their_order_are_the_published_ones(asked, row):
    verifier = Progress(model="tiny", every=row["skip"])
    verifier.references = SimpleNamespace(frames=row["frames"], of=lambda instruction: reference(row["length"]))
    verifier([case(row["count"])])
    for message, shown in zip(asked, row["shown"], strict=False):
        pixels = [part["image"].getpixel((0, 0)) for part in message["content"] if part["type"] == "image"]
        assert [["reference", blue - 1] if blue else ["own", red] for red, _, blue in pixels] == shown
        texts = [part["text"] for part in message["content"] if part["type"] == "text"]
        assert [text[:-1] for text in texts if text.endswith("%:")] == row["shares"]
    assert len(asked) >= len(row["shown"])


def test_each_picture_stands_after_what_it_is():
    own = case(4).rollout.data.images["front"]
    message = about_progress("By how much?", reference(3), 3, own[0], (own[2], own[1]))
    kinds = [part["text"] if part["type"] == "text" else "*" for part in message["content"]]
    told = kinds[0]
    assert "did this: take the red ball. " in told and kinds[1:] == [
        *("0%:", "*", "50%:", "*", "100%:", "*", "The other episode began here:", "*"),
        *("The first picture:", "*", "The second picture:", "*", "By how much?"),
    ]
    plain = about_progress("By how much?", None, 3, own[0], (own[2], own[1]))
    assert [part["type"] for part in plain["content"]] == ["image", "image", "text"]


def test_a_case_gets_the_experts_episode_with_its_goal(asked, episodes):
    verifier = Progress(
        model="tiny", every=100, reference={"task": "robotics/pick", "episodes": 12, "frames": 2, "goal_pattern": PATTERN} | TABLE
    )
    found = verifier([case(3, "grab the red cube."), case(3, "take the red ball."), case(3, "take the red bowl.")])
    assert [s.detail for s in found] == ["", "", "the expert has no episode with this goal: take the red bowl"]
    assert [len(message["content"]) for message in asked] == [12, 12, 3]
    for message, thing in zip(asked, ("red cube", "red ball"), strict=False):
        wanted = next(e for e in episodes if thing in e.instruction)
        assert wanted.instruction in message["content"][0]["text"]
        assert all(
            np.array_equal(np.asarray(message["content"][place]["image"]), wanted.images[moment])
            for place, moment in ((2, 0), (4, -1))
        )


def test_each_part_of_an_experts_episode_is_a_reference_of_its_own(monkeypatch):
    track = case(5, "open the drawer.").rollout.data
    track = replace(track, instructions=("open the drawer.",) * 2 + ("turn on the light.",) * 3)
    played = SimpleNamespace(trajectories=lambda: [(track, {"success": 1.0})], close=lambda: None)
    monkeypatch.setattr(mmrl_robotics.references, "expert_episodes", lambda *args, **options: played)
    found = Expert("robotics/pick", {}).episodes(1, "demo")
    assert [(e.instruction, e.images[:, 0, 0, 0].tolist()) for e in found] == [
        ("open the drawer", [0, 1, 2]),
        ("turn on the light", [2, 3, 4]),
    ]


def test_a_small_model_reads_references_in_between():
    tiny = "tiny:qwen3_vl:hidden=32,layers=1"
    own = case(4).rollout.data.images["front"]
    from PIL import Image

    shown = [Image.fromarray(picture.numpy()) for picture in own]
    both = [[about_progress("Nearer?", reference(n), 2, shown[0], shown[1:3])] for n in (3, 30)]
    model = vision_language(tiny, device="cpu")
    chances = model.answer_probabilities(both, ("yes", "no"))
    assert chances.shape == (2, 2) and not torch.equal(chances[0], chances[1])
    assert all(-100 <= number <= 999 for number in model.numbers(both, max_tokens=2))


# -- training data ----------------------------------------------------------------------------------------------------------


def places(picture, episodes):
    return [(n, t) for n, e in enumerate(episodes) for t, f in enumerate(e.images) if np.array_equal(np.asarray(picture), f)]


def test_counter_examples_have_no_progress(episodes):
    before = pairs(episodes).prompts("train", 0)
    after = pairs(episodes, mismatched=0.3, still=0.2).prompts("train", 0)
    kinds = {"same": 0, "mismatched": 0, "still": 0}
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        own = "red cube" if "red cube" in episodes[number // 30].instruction else "red ball"
        first, second = two.images
        if np.array_equal(np.asarray(first), np.asarray(second)) and own in two.text:
            kinds["still"] += two.answer == 0
        elif own not in two.text:
            kinds["mismatched"] += 1
            assert two.answer == 0 and all(np.array_equal(a, b) for a, b in zip(one.images, two.images, strict=True))
        else:
            kinds["same"] += 1
            assert (one.text, one.answer) == (two.text, two.answer), "the other pairs stay as they were"
    assert sum(kinds.values()) == len(after)
    assert kinds["mismatched"] / len(after) == pytest.approx(0.3, abs=0.08)
    assert kinds["still"] / len(after) == pytest.approx(0.2, abs=0.08)


def test_a_reference_is_another_episode_with_the_goal_that_is_told(episodes):
    prompts, shown = pairs(episodes, mismatched=0.5, referenced=0.6, frames=3).prompts("train", 0), 0
    for number, prompt in enumerate(prompts):
        if len(prompt.images) == 2:
            continue
        shown += 1
        thing = "red cube" if "red cube" in prompt.text else "red ball"
        assert len(prompt.images) == 6 and ("red cube" in prompt.text) != ("red ball" in prompt.text)
        *example, began, first, second = prompt.images
        sources = {n for n, t in places(example[2], episodes) if t == len(episodes[n].images) - 1}
        assert any(n != number // 30 and thing in episodes[n].instruction for n in sources)
        assert (number // 30, 0) in places(began, episodes)
        assert all(number // 30 in {n for n, _ in places(picture, episodes)} for picture in (first, second))
    assert shown / len(prompts) == pytest.approx(0.6, abs=0.08)
    again = pairs(episodes, mismatched=0.5, referenced=0.6, frames=3).prompts("train", 3)
    assert [(p.text, p.answer) for p in again] == [(p.text, p.answer) for p in prompts]


def test_the_only_episode_with_its_goal_has_no_reference():
    task = ProgressPairs(**SMALL, referenced=1.0)
    task._episodes["train"] = [
        Episode("lift the red cube", reference(4).images),
        Episode("lift the red ball", reference(5).images),
    ]
    assert {len(p.images) for p in task.prompts("train", 0)} == {2}


# -- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mismatched": 1.5}, "mismatched = 1.5 must be a number from 0 to 1"),
        ({"still": -1}, "still = -1 must be a number from 0 to 1"),
        ({"referenced": "all"}, "referenced = 'all' must be a number from 0 to 1"),
        ({"mismatched": 0.75, "still": 0.5}, "mismatched + still = 1.25 is more than all pairs"),
        ({"frames": 1}, "frames = 1 must be a whole number from 2 to 64"),
        ({"goal_pattern": "red ("}, "goal_pattern = 'red (' is no regular expression"),
        ({"goal_pattern": "blue", "referenced": 0.5}, "goal_pattern = 'blue' finds nothing in '"),
        (
            {"goal_pattern": "red", "mismatched": 0.5},
            "mismatched = 0.5 needs two goals, and all 12 episodes have 'red': play more",
        ),
    ],
)
def test_options_that_cannot_be(options, said, episodes):
    with pytest.raises(UserError) as error:
        pairs(episodes, **options).prompts("train", 0)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("robotics/pick", "reference = 'robotics/pick' must be"),
        ({}, 'reference needs a task whose expert is shown, such as { task = "robotics/pick" }'),
        ({"task": "robotics/pikc"}, "no task 'robotics/pikc'. Did you mean 'robotics/pick'?"),
        ({"task": "robotics/pick", "frames": 1}, "reference.frames = 1 must be a whole number from 2 to 64"),
        ({"task": "robotics/pick", "episodes": 0}, "reference.episodes = 0 must be a whole number from 1"),
        ({"task": "robotics/pick", "goal_pattern": "["}, "goal_pattern = '[' is no regular expression"),
    ],
)
def test_references_that_cannot_be(option, said):
    with pytest.raises(UserError) as error:
        plugins.registry().check_verifier(
            plugins.registry().get("verifiers", "robotics/progress"), {"model": "tiny", "reference": option}, {"pick": ("front",)}
        )
    assert said in str(error.value) and "\n" not in str(error.value)


def test_the_expert_plays_on_first_use():
    made = References({"task": "robotics/pick", "episodes": 2, "goal_pattern": PATTERN} | TABLE)
    assert made._of is None and made.of("take the red bowl") is None and made._of
