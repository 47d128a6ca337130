"""The rule `judge/preferred`: the published learning, an endpoint on loopback that prefers by what only it knows, and resume."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmrl_judge.asking import Unreadable
from mmrl_judge.preferred.asking import label_of
from mmrl_judge.preferred.reward import Ensemble
from mmrl_judge.preferred.rule import Preferred
from PIL import Image

from mmrl import Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.sampling import Group
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.types import Score

golden = pytest.importorskip("golden_rl_vlm_f", reason="tests/support of mmrl's repository")
stubs = pytest.importorskip("stub_endpoint")
stub_endpoint = stubs.stub_endpoint
ROWS = [json.loads(line) for line in (Path(golden.OUT)).read_text().splitlines()]
LABELS = [json.loads(line) for line in Path(golden.OUT).with_name("rl-vlm-f-labels.jsonl").read_text().splitlines()]


class Sample:
    """What a rule is given; only the seed is used."""

    seed = 7


def episode(reds, instruction="reach it.", group=0, told=()):
    """An episode of which each moment is a plain picture of this red."""
    calls = len(reds) - 1
    pictures = torch.zeros(calls + 1, 52, 52, 3, dtype=torch.uint8)
    pictures[..., 0] = torch.tensor(reds, dtype=torch.uint8)[:, None, None]
    track = TrajectoryData(
        instruction=told[0] if told else instruction,
        instructions=tuple(told),
        images={"front": pictures, "wrist": pictures.flip(-1)},
        state=None,
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    return Trajectory(prompt=Prompt(messages=[]), group=group, status=Status.FINISHED, data=track)


def groups(*episodes):
    return [
        Group(place=("t", n), number=n, prompt=e.prompt, inputs=None, rollouts=[e], scores=[Score(1.0, {"own": 1.0})])
        for n, e in enumerate(episodes)
    ]


def reds_of(body):
    """The mean red of both pictures of a question; empty where it has none."""
    content = body["messages"][0]["content"]
    shown = [part["image_url"]["url"] for part in content if part["type"] == "image_url"] if isinstance(content, list) else []
    return [float(np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))[..., 0].mean()) for url in shown]


def prefer_redder(body):
    first, second = reds_of(body)
    return f"Picture 1 ... picture 2 ...\nBetter: {1 if first > second else 2 if second > first else 'same'}"


def test_learning_is_the_published_one():
    """First weights, pairs and orders as the released code had them: the same accuracies, and the same rewards after three
    epochs."""
    for row in ROWS:
        ensemble = Ensemble(golden.MEMBERS, golden.SIDE, golden.SIDE, learning_rate=3e-4, seed=0, device=torch.device("cpu"))
        for number, member in enumerate(ensemble.members):
            own = list(member.parameters())
            for parameter, first in zip(own, golden.weights([p.shape for p in own], 10 * row["seed"] + number), strict=True):
                parameter.data.copy_(first)
        first, second, labels = golden.pairs(row["count"], row["seed"])
        found = [
            ensemble.epoch((first, second), labels, orders, row["batch"]) for orders in golden.orders(row["count"], row["seed"])
        ]
        assert found == pytest.approx(row["accuracies"], abs=1e-9)
        assert ensemble.reward(first, batch=4).tolist() == pytest.approx(row["rewards"], abs=2e-4)


def test_a_hidden_preference_becomes_the_reward():
    """The endpoint prefers red; nothing but its answers says so. Then each call is paid for the picture that it led to."""
    draw = torch.Generator().manual_seed(0)
    with stub_endpoint(answer=prefer_redder) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=20, epochs=12, learning_rate=5e-3, goal="all is red")
        for _ in range(3):
            episodes = [episode(torch.randint(0, 256, (5,), generator=draw).tolist()) for _ in range(6)]
            paid = rule(groups(*episodes), Sample())
        figures = rule.counts(paid)
        rule.most = rule.asked
        asked = sum(len(reds_of(body)) == 2 and "all is red" in json.dumps(body) for body in stub.bodies)
    assert figures["preferred/asked"] == asked == len(stub.bodies) and figures["preferred/failed"] == 0
    assert figures["preferred/accuracy"] > 0.9
    score = rule(groups(episode([255, 10, 90, 170, 250])), Sample())[0].scores[0]
    assert list(score.steps) == sorted(score.steps) and score.steps[3] - score.steps[0] > 0.2 and len(score.steps) == 4
    assert score.value == pytest.approx(1.0 + sum(score.steps)) and score.parts["preferred"] == pytest.approx(sum(score.steps))
    assert score.parts["own"] == 1.0


def test_what_is_ambiguous_the_same_or_unreadable_is_left_out():
    said = iter(["Better: same", "I can't tell", "Better: 2", "Better: 1"] * 20)
    with stub_endpoint(answer=lambda body: next(said)) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=40, most=24, concurrency=1, epochs=1)
        paid = rule(groups(episode([0, 10, 200]), episode([0, 60, 90])), Sample())
        figures = rule.counts(paid)
        assert all(a != b for a, b in map(reds_of, stub.bodies)), "a picture isn't compared with itself"
        assert figures["preferred/asked"] == len(stub.bodies) == 24
        assert figures["preferred/taken"] == 12 and figures["preferred/failed"] == 6
        assert sorted(label for *_, label in rule.compared) == [0] * 6 + [1] * 6
        rule(groups(episode([0, 10, 200])), Sample())
        assert len(stub.bodies) == 24 and not rule.counts(paid), "the budget is used up"
    first, second, label = rule.compared[0]
    better = [int(side[0, 0, 0]) for side in (first, second)]
    assert label == 1 and better == [int(r) for r in reds_of(stub.bodies[2])], "the answer belongs to its pair"


@pytest.mark.parametrize("row", LABELS, ids=lambda row: repr(row["summary"]))
def test_a_summary_is_read_as_in_the_public_code(row):
    """That code takes -1 for what it can't read, which leaves the pair out; here it is left out and counted as failed."""
    try:
        label = label_of(row["summary"])
    except Unreadable:
        label = -1
    assert label == row["label"]


def test_two_questions_for_each_pair():
    """The first shows both pictures and its answer is a description; the second shows none, has the description in it, and its
    answer is the label. A pair whose description is missing isn't asked about again."""

    def answer(body):
        if reds := reds_of(body):
            return f"red is {reds[0]} and then {reds[1]} of {{goal}}"
        first, second = (float(x) for x in re.findall(r"red is ([\d.]+) and then ([\d.]+) of {goal}", told(body))[0])
        return f"{int(second > first)}\nBetter: 1" if max(first, second) > 50 else "-1"

    def told(body):
        return body["messages"][0]["content"]

    with stub_endpoint(answer=answer, faults=[stubs.status(400, "busy")]) as stub:
        options = {"questions": 2, "concurrency": 1, "retries": 0, "epochs": 1, "goal": "all {goal} red"}
        rule = Preferred(model="m", base_url=stub.url, pairs=30, **options)
        figures = rule.counts(rule(groups(episode([0, 10, 40, 200]), episode([0, 60, 90])), Sample()))
    shown, summarised = ([body for body in stub.bodies if bool(reds_of(body)) is pictures] for pictures in (True, False))
    assert len(shown) == figures["preferred/asked"] and len(summarised) == len(shown) - 1
    assert all("all {goal} red" in told(body) for body in summarised)
    assert all("all {goal} red" in told(body)[-1]["text"] for body in shown)
    dark = sum(max(reds_of(body)) <= 50 for body in shown[1:])
    assert dark and figures["preferred/taken"] == len(shown) - 1 - dark and figures["preferred/failed"] == 1
    for first, second, label in rule.compared:
        assert label == int(second[0, 0, 0] > first[0, 0, 0])


def test_only_pictures_with_one_goal_are_compared():
    with stub_endpoint(answer=prefer_redder) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=40, epochs=1)
        rule(groups(episode([0, 10, 20, 30], "reach the cube."), episode([0, 110, 120, 130], "reach the ball.")), Sample())
        for body in stub.bodies:
            assert len({red > 100 for red in reds_of(body)}) == 1
            assert ("reach the ball" in json.dumps(body)) == (reds_of(body)[0] > 100)


def test_a_picture_is_compared_by_the_instruction_of_the_call_that_led_to_it():
    cube, ball = "reach the cube.", "reach the ball."
    with stub_endpoint(answer=prefer_redder) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=40, epochs=1)
        rule(groups(episode([0, 10, 20, 30, 110, 120, 130], told=[cube] * 3 + [ball] * 4)), Sample())
        assert [(int(p[0, 0, 0]), goal) for p, goal in rule.seen] == [
            *((10, cube), (20, cube), (30, cube), (110, ball), (120, ball), (130, ball))
        ]
        told = {("reach the ball" in json.dumps(body), reds_of(body)[0] > 100) for body in stub.bodies}
        assert told == {(False, False), (True, True)}


def test_rounds_come_every_so_many_steps_and_the_newest_is_remembered():
    with stub_endpoint(answer=prefer_redder) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=4, every=2, remembered=3, camera="wrist", epochs=1)
        counts = []
        for n in range(4):
            rule(groups(episode([0, 40 * n, 40 * n + 5, 40 * n + 9, 40 * n + 13])), Sample())
            counts.append(len(stub.bodies))
        assert counts[0] == counts[1] < counts[2] == counts[3]
        assert len(rule.seen) == 3 and [int(p[0, 0, 2]) for p, _ in rule.seen] == [125, 129, 133], "blue, by the wrist's camera"
        assert len(rule.compared) <= 3


def test_what_it_pays_by_now_is_what_it_has_paid_until_it_learns_again():
    """So that an off-policy stage can correct its memory: the same pictures, of the same camera."""
    with stub_endpoint(answer=prefer_redder) as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=8, every=2, after=1, camera="front", epochs=2, weight=3.0)
        revisions, before = [], None
        for n in range(4):
            shown = episode([0, 200, 30 * n])
            (score,) = rule(groups(shown), Sample())[0].scores
            seen = Observation(images={c: p[1:] for c, p in shown.data.images.items()}, state=None, instructions=["", ""])
            assert rule.pay_for(seen).tolist() == pytest.approx(score.steps)
            revisions.append((rule.revision, rule.asked > 0))
            changed, before = before is not None and rule.pay_for(seen)[0].item() != before, rule.pay_for(seen)[0].item()
            assert changed == (n in (1, 3))
    assert revisions == [(1, False), (2, True), (2, True), (3, True)]
    unasked = Preferred(model="tiny")
    assert unasked.pay_for(seen).tolist() == [0.0, 0.0] and unasked.revision == 0, "before it has seen an episode"


def test_failed_scores_and_lost_episodes_stay_as_they_are():
    rule = Preferred(model="tiny")
    lost = Trajectory(prompt=Prompt(messages=[]), group=1, status=Status.ENVIRONMENT_ERROR, data=None)
    made = groups(episode([0, 200]), lost, episode([3, 4]))
    made[2].scores = [Score(None, {}, "it failed")]
    paid = rule(made, Sample())
    assert paid[0].scores[0].steps and paid[1].scores[0] == Score(1.0, {"own": 1.0})
    assert paid[2].scores[0] == Score(None, {}, "it failed")
    assert Preferred(model="tiny")(groups(lost), Sample())[0].scores == [Score(1.0, {"own": 1.0})]


def test_steps_of_verifiers_are_added_to():
    rule = Preferred(model="tiny", weight=2.0)
    made = groups(episode([0, 200, 100]))
    made[0].scores = [Score(3.0, {}, "", steps=(1.0, 1.5))]
    (score,) = rule(made, Sample())[0].scores
    assert rule.ensemble is not None
    own = [2 * r for r in rule.ensemble.reward(made[0].rollouts[0].data.images["front"][1:]).tolist()]
    assert score.steps == pytest.approx([1 + own[0], 1.5 + own[1]]) and score.value == pytest.approx(3 + sum(own))


@pytest.mark.parametrize("goal", ["", "put the ball away\nand close the box"])
def test_it_goes_on_from_its_state_in_the_same_bits(goal):
    draw = torch.Generator().manual_seed(1)
    steps = [[episode(torch.randint(0, 256, (4,), generator=draw).tolist(), f"go\nto {n}.") for n in range(4)] for _ in range(4)]
    whole = Preferred(model="tiny", goal=goal, pairs=12, epochs=1, members=2)
    half = Preferred(model="tiny", goal=goal, pairs=12, epochs=1, members=2)
    assert half.state() == {}
    for n, episodes in enumerate(steps):
        first = whole(groups(*episodes), Sample())
        if n == 2:
            kept = {name: x.clone() for name, x in half.state().items()}
            half = Preferred(model="tiny", goal=goal, pairs=12, epochs=1, members=2)
            half.load_state(kept)
        second = half(groups(*episodes), Sample())
        assert [g.scores for g in first] == [g.scores for g in second]
    assert whole.counts(first) == half.counts(second) and whole.counts(first)["preferred/accuracy"] > 0
    ours, theirs = whole.state(), half.state()
    assert [g for _, g in whole.seen] == [g for _, g in half.seen]
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pairs": 0}, "pairs = 0 must be"),
        ({"every": 1.5}, "every = 1.5 must be"),
        ({"questions": 3}, "questions = 3 must be"),
        ({"after": -1}, "after = -1 must be"),
        ({"learning_rate": 0}, "learning_rate = 0 must be a number above 0"),
        ({"weight": float("nan")}, "weight = nan must be a number"),
        ({"goal": 3}, "goal = 3"),
        ({"device": "tpu"}, "device = 'tpu' must be one of 'cpu', 'cuda'"),
        ({"key_variable": "HOME"}, "a verifier gets OPENAI_API_KEY and MMRL_JUDGE_KEY alone"),
        ({"model": "m", "base_url": "nowhere"}, "base_url = 'nowhere' is no address"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(UserError) as error:
        Preferred(**{"model": "tiny"} | options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_episodes_and_endpoints_that_cannot_be_used():
    with pytest.raises(
        UserError, match=r"camera = 'top': the episode has front, wrist; the rule judge/preferred compares pictures"
    ):
        Preferred(model="tiny", camera="top")(groups(episode([0, 1])), Sample())
    small = episode([0, 1])
    small.data.images["front"] = small.data.images["front"][:, :20]
    with pytest.raises(UserError, match="a picture of 52 x 20 pixels is too small for the learned reward: give at least 49 x 49"):
        Preferred(model="tiny")(groups(small), Sample())
    with stub_endpoint(answer=lambda body: "no idea") as stub:
        rule = Preferred(model="m", base_url=stub.url, pairs=3, retries=0)
        with pytest.raises(
            UserError, match=r"none of \d comparisons has an answer: the judge's answer can't be read: its last line"
        ):
            rule(groups(episode([0, 10, 200])), Sample())
