"""Models that look at an episode, also planted ones whose answers are known: what is asked, paid and refused."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import mmrl_robotics.looking
import mmrl_robotics.vlm_rm
import numpy as np
import pytest
import torch
from mmrl_robotics.looking import Judge, Progress, moments_of, spread
from mmrl_robotics.references import Episode
from mmrl_robotics.vlm_rm import Closeness, closeness

from mmrl import Case, Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.judge.models import contrastive, vision_language
from mmrl.registry import plugins

TINY = "tiny:qwen3_vl:hidden=32,layers=1"


def case(levels, cameras=("front", "wrist"), instruction="take the red ball.", told=()):
    """An episode of which each moment is a plain picture; the first camera shows the level as red, the second as blue. told: the
    instruction of each moment, where it changes."""
    calls = len(levels) - 1
    images = {}
    for channel, camera in zip((0, 2), cameras, strict=False):
        images[camera] = torch.zeros(calls + 1, 32, 32, 3, dtype=torch.uint8)
        images[camera][..., channel] = torch.tensor(levels, dtype=torch.uint8)[:, None, None]
    track = TrajectoryData(
        instruction=told[0] if told else instruction,
        instructions=tuple(told),
        images=images,
        state=None,
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    rollout = Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track)
    return Case(completion="", rollout=rollout)


class Planted:
    """A critic that knows: the levels of the pictures are how many percent of the task are done."""

    def __init__(self):
        self.asked = []

    def levels(self, questions):
        self.asked += questions
        return [[max(p["image"].getpixel((0, 0))) for p in q[0]["content"] if p["type"] == "image"] for q in questions]

    def numbers(self, questions):
        return [float(b - a) for a, b in self.levels(questions)]

    def answer_probabilities(self, questions, words):
        assert words == ("yes", "no")
        yes = [seen[-1] / 100 if len(seen) != 2 else 0.5 + (seen[1] - seen[0]) / 200 for seen in self.levels(questions)]
        return torch.tensor([[y, 1 - y] for y in yes], dtype=torch.float64)


@pytest.fixture
def planted(monkeypatch):
    model = Planted()
    monkeypatch.setattr(mmrl_robotics.looking, "vision_language", lambda *args, **options: model)
    return model


# -- progress ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", ["number", "word"])
def test_progress_is_paid_for_the_call_that_made_it(planted, says):
    levels, others = [0, 10, 40, 30, 100], [5, 5, 90]
    first, second = Progress(model="tiny", says=says)([case(levels), case(others)])
    assert first.steps == pytest.approx((0.1, 0.3, -0.1, 0.7)) and first.value == pytest.approx(1.0)
    assert second.steps == pytest.approx((0.0, 0.85)) and second.value == pytest.approx(0.85)
    assert len(planted.asked) == 6


def test_pairs_that_are_further_apart_end_at_the_end(planted):
    (found,) = Progress(model="tiny", every=3)([case([0, 10, 40, 30, 35, 38, 50, 90])])
    assert found.steps == pytest.approx((0, 0, 0.3, 0, 0, 0.2, 0.4)) and found.value == pytest.approx(0.9)
    (whole,) = Progress(model="tiny", every=100)([case([10, 0, 40])])
    assert whole.steps == pytest.approx((0.0, 0.3))


@pytest.mark.parametrize("calls", range(1, 9))
@pytest.mark.parametrize("every", range(1, 10))
def test_moments_are_that_far_apart_and_the_ends_are_among_them(calls, every):
    found = moments_of(calls, every)
    assert found[0] == 0 and found[-1] == calls and found == sorted(set(found))
    gaps = [b - a for a, b in pairwise(found)]
    assert all(g == every for g in gaps[:-1]) and 1 <= gaps[-1] <= every


def test_pictures_that_change_places_change_the_sign(planted):
    (there,), (back,) = (Progress(model="tiny")([case(levels)]) for levels in ([0, 60], [60, 0]))
    assert there.value == pytest.approx(0.6) == -back.value


def test_more_than_all_is_all(planted, monkeypatch):
    monkeypatch.setattr(planted, "numbers", lambda questions: [250.0, -400.0, 30.0][: len(questions)])
    (found,) = Progress(model="tiny")([case([0, 1, 2, 3])])
    assert found.steps == (1.0, -1.0, 0.3)


def test_what_is_asked(planted):
    Progress(model="tiny", camera="wrist")([case([7, 9])])
    (question,) = planted.asked
    *pictures, text = question[0]["content"]
    assert [p["image"].getpixel((3, 3)) for p in pictures] == [(0, 0, 7), (0, 0, 9)], "the older one first, of that camera"
    assert "Its instruction is: take the red ball." in text["text"] and "{" not in text["text"]
    Progress(model="tiny", question="What of {instruction}?")([case([7, 9])])
    assert planted.asked[1][0]["content"][-1]["text"] == "What of take the red ball?"


# -- the judge --------------------------------------------------------------------------------------------------------------


def test_the_judge_looks_at_the_end(planted):
    found = Judge(model="tiny")([case([0, 50, 90]), case([100, 20])])
    assert [s.value for s in found] == pytest.approx([0.9, 0.2]) and not any(s.steps for s in found)
    assert [len(q[0]["content"]) for q in planted.asked] == [2, 2]


def test_the_judge_looks_at_moments_spread_over_the_episode(planted):
    Judge(model="tiny", frames=3)([case([0, 10, 20, 30, 40]), case([5, 6])])
    shown = [[p["image"].getpixel((0, 0))[0] for p in q[0]["content"][:-1]] for q in planted.asked]
    assert shown == [[0, 20, 40], [5, 6]]


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("wanted", range(1, 8))
def test_spread(count, wanted):
    found = spread(count, wanted)
    assert found == sorted(set(found)) and len(found) == min(count, wanted) and found[-1] == count - 1
    assert wanted == 1 or found[0] == 0
    gaps = [b - a for a, b in pairwise(found)]
    assert not gaps or max(gaps) - min(gaps) <= 1


# -- an instruction that changes --------------------------------------------------------------------------------------------

OPEN, LIGHT = "open the drawer.", "turn on the light."
TOLD = [OPEN] * 3 + [LIGHT] * 2
"""Four calls, of which the last is for the light; so is what it led to."""


def said(question):
    return question[0]["content"][-1]["text"]


def test_the_judge_sees_each_part_with_its_instruction(planted):
    chained, plain = Judge(model="tiny", frames=2)([case([0, 10, 20, 80, 90], told=TOLD), case([0, 50])])
    shown = [[p["image"].getpixel((0, 0))[0] for p in q[0]["content"][:-1]] for q in planted.asked]
    assert shown == [[0, 80], [80, 90], [0, 50]], "the moment at which the instruction changes ends one part and begins the next"
    assert [text in said(q) for q, text in zip(planted.asked, (OPEN, LIGHT, "take the red ball."), strict=True)] == [True] * 3
    assert LIGHT not in said(planted.asked[0]) and OPEN not in said(planted.asked[1])
    chances = [0.5 + 80 / 200, 0.5 + 10 / 200]
    assert chained.value == pytest.approx(sum(chances) / 2) and chained.detail == "0.90, 0.55"
    assert chained.steps == pytest.approx((0, 0, chances[0] / 2, chances[1] / 2)), "paid where each part ended"
    assert not plain.steps and plain.value == pytest.approx(0.75)


@pytest.mark.parametrize("every, wanted", [(1, (0.1, 0.1, 0.6, 0.1)), (2, (0, 0.2, 0.6, 0.1)), (9, (0, 0, 0.8, 0.1))])
def test_progress_is_that_of_the_instruction_of_the_moment(planted, every, wanted):
    (found,) = Progress(model="tiny", every=every)([case([0, 10, 20, 80, 90], told=TOLD)])
    assert found.steps == pytest.approx(wanted), "no pair has the change in between"
    assert [LIGHT in said(q) for q in planted.asked] == [False] * (len(planted.asked) - 1) + [True]


def test_a_reference_is_that_of_the_part(planted):
    verifier = Progress(model="tiny", every=9)
    texts = [text.rstrip(".") for text in (OPEN, LIGHT)]
    shown = {text: Episode(text, np.full((2, 32, 32, 3), n, np.uint8)) for n, text in zip((7, 9), texts, strict=True)}
    verifier.references = SimpleNamespace(frames=2, of=shown.get)
    planted.numbers = lambda questions: planted.asked.extend(questions) or [0.0] * len(questions)
    verifier([case([0, 10, 20, 80, 90], told=TOLD)])
    reds = [[p["image"].getpixel((0, 0))[0] for p in q[0]["content"] if p["type"] == "image"] for q in planted.asked]
    assert reds == [[7, 7, 0, 0, 80], [9, 9, 80, 80, 90]], "both pictures of it, where this part began, and the pair"


def test_clip_compares_each_picture_with_the_instruction_that_led_to_it():
    levels, verifier = [0, 90, 250, 40, 30], Closeness(model="tiny", device="cpu")
    (found,) = verifier([case(levels, told=TOLD)])
    alone = {text: verifier([case(levels, instruction=text)])[0].steps for text in (OPEN, LIGHT)}
    assert found.steps == pytest.approx((*alone[OPEN][:3], alone[LIGHT][3]), abs=1e-6) and alone[OPEN][3] != alone[LIGHT][3]


# -- CLIP -------------------------------------------------------------------------------------------------------------------


def slow(s, g, b, alpha):
    """Rocamonde et al., definition 1, number by number: the projection onto the line through goal and baseline is the nearest
    of its points."""
    line = g - b
    t = sum((s[i] - b[i]) * line[i] for i in range(len(s))) / sum(x * x for x in line)
    nearest = [b[i] + t * line[i] for i in range(len(s))]
    return 1 - 0.5 * sum((alpha * nearest[i] + (1 - alpha) * s[i] - g[i]) ** 2 for i in range(len(s)))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_closeness_is_the_published_one(alpha):
    rng = np.random.default_rng(0)
    for _ in range(20):
        s, g, b = (x / np.linalg.norm(x) for x in rng.normal(size=(3, 8)))
        found = closeness(torch.tensor(s)[None], torch.tensor(g), torch.tensor(b), alpha)
        assert float(found[0]) == pytest.approx(slow(s, g, b, alpha), abs=1e-12)
        assert -1 <= float(found[0]) <= 1


def test_closeness_at_its_limits():
    rng = np.random.default_rng(1)
    s, g, b, aside = (torch.tensor(x / np.linalg.norm(x)) for x in rng.normal(size=(4, 8)))
    assert float(closeness(s[None], g, b, 0.0)[0]) == pytest.approx(float(s @ g)), "the cosine"
    assert float(closeness(s[None], g, None, 0.0)[0]) == pytest.approx(float(s @ g))
    line = g - b
    aside = aside - (aside @ line) / (line @ line) * line
    moved = closeness(torch.stack([s, s + aside]), g, b, 1.0)
    assert float(moved[0]) == pytest.approx(float(moved[1])), "what has nothing to do with the line doesn't count"
    assert float(closeness(g[None], g, b, 1.0)[0]) == pytest.approx(1.0)
    with pytest.raises(UserError, match="have the same embedding"):
        closeness(s[None], g, g, 0.5)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_clip_pays_for_what_each_call_led_to(alpha):
    """With the real code paths of a small CLIP: the embedding of each picture but the first, against the sentences'."""
    goal, baseline = ["a red {instruction}", "red"], "a table"
    verifier = Closeness(model="tiny", goal=goal, baseline=baseline, alpha=alpha, device="cpu")
    episodes = [case([0, 90, 250]), case([40, 30], instruction="push it")]
    found = verifier(episodes)
    clip = contrastive("tiny", device="cpu")
    for episode, score in zip(episodes, found, strict=True):
        said = episode.rollout.data.instruction.rstrip(".")
        g = clip.encode_texts([t.format(instruction=said) for t in goal]).mean(0).double().numpy()
        b = clip.encode_texts([baseline])[0].double().numpy()
        states = clip.encode_images(mmrl_robotics.looking.pictures(episode)[1:]).double().numpy()
        wanted = [slow(s, g, b, alpha) for s in states]
        if not alpha:
            assert wanted == pytest.approx([1 - 0.5 * float(((s - g) ** 2).sum()) for s in states])
        assert score.steps == pytest.approx(wanted, abs=1e-5) and score.value == pytest.approx(sum(wanted), abs=1e-5)
    assert len(found[0].steps) == 2 and len(found[1].steps) == 1


# -- a real vision-language model -------------------------------------------------------------------------------------------


def test_a_small_model_answers_the_same_however_many_are_asked():
    episodes = [case([0, 90, 250]), case([40, 30]), case([1, 2, 3, 4])]
    for verifier in (Judge(model=TINY, frames=2, device="cpu"), Progress(model=TINY, device="cpu", says="word")):
        together = verifier(episodes)
        alone = [verifier([e])[0] for e in episodes]
        assert [s.value for s in together] == pytest.approx([s.value for s in alone], abs=1e-5)
        for a, b in zip(together, alone, strict=True):
            assert a.steps == pytest.approx(b.steps, abs=1e-5)
    wanted = vision_language(TINY, device="cpu")
    judge = Judge(model=TINY, device="cpu")
    assert judge.model.policy is wanted.policy, "two verifiers share it"
    numbers = Progress(model=TINY, device="cpu")(episodes)
    assert all(-1 <= step <= 1 for s in numbers for step in s.steps)


# -- what is refused --------------------------------------------------------------------------------------------------------


def refused(id, options, cameras=None):
    with pytest.raises(UserError) as error:
        plugins.registry().check_verifier(
            plugins.registry().get("verifiers", id), options, cameras or {"pick": ("front", "wrist")}
        )
    assert str(error.value).startswith(f"verifier {id!r}") and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("id", ["robotics/judge", "robotics/progress", "robotics/vlm-rm"])
def test_before_a_run_starts(id, tmp_path):
    assert "needs the option 'model': give model = ... under [verifiers." in refused(id, {})
    assert "is not a folder: give" in refused(id, {"model": str(tmp_path / "nowhere")})
    assert "is a folder without config.json" in refused(id, {"model": str(tmp_path)})
    assert "camera = 'top' is not a camera of task 'pick': choose one of front, wrist" in refused(
        id, {"model": "tiny", "camera": "top"}
    )
    assert "the simulator of task 'pick' has no cameras" in refused(id, {"model": "tiny"}, {"pick": ()})
    assert "device = 'tpu' is unknown" in refused(id, {"model": "tiny", "device": "tpu"})
    assert "batch_size = 0 must be a whole number" in refused(id, {"model": "tiny", "batch_size": 0})
    said = refused(id, {"model": "tiny", "dtype": "half"})
    assert "dtype = 'half' must be one of 'auto', 'float32', 'bfloat16', 'float16'" in said
    plugins.registry().check_verifier(
        plugins.registry().get("verifiers", id), {"model": "tiny", "camera": "wrist"}, {"pick": ("front", "wrist")}
    )


@pytest.mark.parametrize(
    ("id", "options", "said"),
    [
        ("judge", {"frames": 0}, "frames = 0 must be a whole number from 1 to 64"),
        ("judge", {"question": "Done?"}, "question must contain {instruction}"),
        ("judge", {"question": "{instruction} {when}"}, "only {instruction} is allowed in braces"),
        ("progress", {"every": 0}, "every = 0 must be a whole number from 1"),
        ("progress", {"says": "song"}, "says = 'song' is not one of 'number', 'word'"),
        ("vlm-rm", {"alpha": 1.5, "baseline": "x"}, "alpha = 1.5 must be a number from 0 to 1"),
        ("vlm-rm", {"alpha": -0.1}, "alpha = -0.1 must be a number from 0 to 1"),
        ("vlm-rm", {"alpha": True}, "alpha = True must be a number from 0 to 1"),
        ("vlm-rm", {"goal": " "}, "goal is empty: describe a picture at the goal"),
        ("vlm-rm", {"goal": 3}, "3 must be a text or a list of texts"),
        ("vlm-rm", {"goal": "{task}"}, "goal = '{task}': only {instruction} is allowed in braces"),
        ("vlm-rm", {"alpha": 0.5}, "alpha = 0.5 needs a baseline"),
        ("vlm-rm", {"alpha": 0.5, "goal": "a", "baseline": "a"}, "goal and baseline are the same"),
    ],
)
def test_options_that_cannot_be(id, options, said):
    assert said in refused(f"robotics/{id}", {"model": "tiny", **options})


@pytest.mark.parametrize("make", [lambda: Judge(model=TINY), lambda: Progress(model=TINY), lambda: Closeness(model="tiny")])
def test_episodes_that_cannot_be_looked_at(make):
    verifier = make()
    with pytest.raises(UserError, match="the episode has no pictures: it needs a simulator that renders"):
        verifier([case([0, 1], cameras=())])
    lost = Case(
        completion="", rollout=Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.ENVIRONMENT_ERROR, data=None)
    )
    with pytest.raises(UserError, match="the episode has no pictures"):
        verifier([lost])
    verifier.camera = "top"
    with pytest.raises(UserError, match="camera 'top' is not in the episode: choose one of front, wrist"):
        verifier([case([0, 1])])
