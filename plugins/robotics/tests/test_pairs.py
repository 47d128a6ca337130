"""Pairs of moments: the answer is what the pictures are, both halves of an episode's way add up, the splits are apart."""

from __future__ import annotations

from itertools import pairwise

import mmrl_robotics.looking
import numpy as np
import pytest
from mmrl_robotics.looking import moments_of
from mmrl_robotics.pairs import ProgressPairs
from mmrl_robotics.verifiers import percent

from mmrl import Case, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.services import expert_episodes

SMALL = {"dims": 4, "size": 32, "episodes": 6, "held_out": 3, "pairs": 40}


@pytest.fixture(scope="module")
def task():
    return ProgressPairs(**SMALL)


def moment(picture, frames):
    """Which of the frames a picture is; several may look the same."""
    return [t for t, frame in enumerate(frames) if np.array_equal(np.asarray(picture), frame)]


def test_the_answer_is_how_far_the_pictures_are_apart(task):
    """Against the episodes as the expert plays them."""
    played = expert_episodes("robotics/pick", {"dims": 4, "size": 32}, 6)
    shown = [track for track, outcome in played.trajectories() if outcome["success"]]
    played.close()
    prompts = task.prompts("train", 0)
    assert len(prompts) == 40 * len(shown)
    for number, prompt in enumerate(prompts):
        frames = shown[number // 40].images["front"].numpy()
        first, second = (moment(p, frames) for p in prompt.images)
        differences = {round(100 * (b - a) / (len(frames) - 1)) for a in first for b in second}
        assert prompt.answer in differences and prompt.answer != 0
        assert shown[number // 40].instruction.rstrip(". ") in prompt.text
    assert {np.sign(p.answer) for p in prompts} == {-1, 1} and min(p.answer for p in prompts) < -80
    assert any(
        len(shown[n // 40].images["front"]) - 1 in moment(p.images[1], shown[n // 40].images["front"].numpy())
        for n, p in enumerate(prompts)
    ), "the state in which it was left is among them"


def test_the_same_pairs_every_time_and_none_in_two_splits(task):
    again = ProgressPairs(**SMALL)
    for split in ("train", "test"):
        one, two = task.prompts(split, 0), again.prompts(split, 5)
        assert [(p.id, p.answer, p.text) for p in one] == [(p.id, p.answer, p.text) for p in two]
    texts = {split: {np.asarray(p.images[0]).tobytes() for p in task.prompts(split, 0)} for split in ("train", "test")}
    assert not texts["train"] & texts["test"]


def test_a_critic_that_learned_the_answers_pays_an_experts_way_one_in_all(task, monkeypatch):
    """It is asked the very same by the verifier: it looks the answer up."""
    (first, *_), played = task.prompts("train", 0), expert_episodes("robotics/pick", {"dims": 4, "size": 32}, 1)
    ((track, _),) = played.trajectories()
    played.close()
    frames = track.images["front"].numpy()

    class Learned:
        def numbers(self, questions):
            found = []
            for (question,), (a, b) in zip(questions, pairwise(moments_of(len(frames) - 1, 2)), strict=True):
                *pictures, text = question["content"]
                assert text["text"] == first.text and a in moment(pictures[0]["image"], frames)
                found.append(round(100 * (b - a) / (len(frames) - 1)))
            return found

    monkeypatch.setattr(mmrl_robotics.looking, "vision_language", lambda *args, **options: Learned())
    rollout = Trajectory(prompt=first, group=0, status=Status.FINISHED, data=track)
    (score,) = mmrl_robotics.looking.Progress(model="tiny", every=2)([Case(completion="", rollout=rollout)])
    assert score.value == pytest.approx(1.0, abs=0.03) and len(score.steps) == len(frames) - 1


@pytest.mark.parametrize(
    ("completion", "answer", "wanted"),
    [("-30", -30, 1.0), (" +45 %\n", 45, 1.0), ("40.5%", 40, 0.995), ("0", -30, 0.7), ("-100", 100, 0.0), ("999", -99, 0.0)]
    + [(text, 30, 0.0) for text in ("", "about 30", "30 30", "three", "1e1", "30" * 1000, "٣٠", "--30", "%")],
)
def test_what_a_percentage_is_worth(completion, answer, wanted):
    assert percent(Case(completion=completion, answer=answer)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"episodes": 0}, "episodes = 0 must be a whole number from 1"),
        ({"pairs": "many"}, "pairs = 'many' must be a whole number"),
        ({"task": 3}, "task = 3 must be a text"),
        ({"task": "robotics/pikc"}, "no task 'robotics/pikc'. Did you mean 'robotics/pick'?"),
        ({"camera": "behind", "episodes": 2}, "camera = 'behind' is not a camera of the simulator: choose one of front"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(UserError) as error:
        ProgressPairs(**{**SMALL, **options}).prompts("train", 0)
    assert said in str(error.value) and "\n" not in str(error.value)
