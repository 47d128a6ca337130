"""The tools and rewards of published systems, against what their code does and against plain references."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_tools.deepeyes import AFTER, BEFORE, math_reward, reward
from mmrl_tools.environment import Budget, ToolUse
from mmrl_tools.pictures import original
from mmrl_tools.pixel_reasoner import Curiosity, Refill, bonuses
from mmrl_tools.pixel_reasoner import reward as pixel_reward
from mmrl_tools.published import pixel_reasoner_box, published_tools
from mmrl_tools.tool import Refused, Workspace
from PIL import Image

from mmrl import Case, Conversation, Prompt, Score, Status, Turn, UserError, user_message
from mmrl.api.sampling import Group

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "tools-deepeyes.jsonl"
FEW = settings(max_examples=40, deadline=None)
TOOLS = {tool.name: tool for tool in published_tools()}


def turns():
    return [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]


def test_there_are_enough_cases():
    assert len(turns()) >= 36 and sum(row["shown"] is not None for row in turns()) >= 10


@pytest.mark.parametrize("row", turns(), ids=lambda row: row["turn"][:60])
def test_deepeyes_tools_do_with_a_turn_what_the_released_ones_do(row):
    """What differs on purpose: an empty call is an error here, and of several calls the first is carried out, not the last."""
    picture = original(Image.new("RGB", (640, 480)), 0)
    kit = [TOOLS["image_zoom_in_tool"], TOOLS["image_rotate_tool"]]
    world = ToolUse(kit, Workspace(pictures=[picture]), "hermes", Budget())
    reply = world.step(row["turn"])
    if row["turn"] == "<tool_call></tool_call>":
        assert row["done"] and not reply.terminated
        return
    assert reply.terminated == row["done"]
    if row["turn"].count("</tool_call><tool_call>"):
        assert reply.outcome["calls"] == 2
        return
    assert bool(reply.outcome["failed"]) == row["failed"]
    if row["shown"] is not None:
        wide, high = row["shown"]
        seen = world.workspace.pictures[-1].image.size
        scale = max(1.0, 56 / min(wide, high))  # small ones are enlarged here
        assert seen == pytest.approx((wide * scale, high * scale), abs=1.5 * scale)


def episode(*texts, pictures=0):
    """A conversation of these turns, with pictures behind the first."""
    seen = [{"role": "user", "content": [{"type": "image", "image": Image.new("RGB", (9, 9))}] * pictures}]
    made = tuple(
        Turn(
            observed_ids=(),
            token_ids=(1,),
            logprobs=(0.0,),
            text=text,
            terminated=True,
            truncated=False,
            policy_version=0,
            messages=tuple(seen) if k == 1 else (),
        )
        for k, text in enumerate(texts)
    )
    return Conversation(prompt=Prompt(messages=[user_message("?")], answer="red"), group=0, turns=made, status=Status.FINISHED)


def case(*texts, pictures=0, outcome=None):
    rollout = episode(*texts, pictures=pictures)
    return Case(completion=texts[-1], answer="red", outcome=outcome or {}, rollout=rollout)


def test_deepeyes_pays_by_hand():
    assert reward(case("<answer>red</answer>")).value == pytest.approx(0.8)
    assert reward(case("look", "<answer>red</answer>", pictures=1)).value == pytest.approx(2.0)
    assert reward(case("look", "<answer>blue</answer>", pictures=1)).value == 0.0, "a tool pays only where the answer is right"
    assert reward(case("<think>look", "<answer>red</answer>", pictures=1)).value == pytest.approx(1.8)
    assert reward(case("<think>look", "<answer>blue</answer>")).value == pytest.approx(-0.2)


def test_boxes_that_nothing_closes_take_no_time():
    start = time.process_time()
    assert math_reward(Case(completion="\\boxed{" * 28_000, answer="3")).value == pytest.approx(-0.4)
    assert math_reward(Case(completion="\\boxed{3} " + "\\boxed{" * 27_000, answer="3")).value == pytest.approx(1.2)
    assert time.process_time() - start < 1


def test_pictures_that_a_policy_spells_out_are_none():
    assert reward(case(f"{BEFORE}{AFTER}", "<answer>red</answer>")).value == pytest.approx(0.8)


def naive(calls, threshold, most, alpha, beta):
    """The formula of section 4.2, one completion after the other, in numpy."""
    calls = np.array(calls, dtype=float)
    share = np.mean(calls > 0)
    found = [(alpha * np.maximum(threshold - share, 0) * (n > 0), beta * np.minimum(most - n, 0)) for n in calls]
    return [c for c, _ in found], [p for _, p in found]


SHARES = st.floats(0, 1)


@FEW
@given(st.lists(st.integers(0, 9), min_size=1, max_size=16), SHARES, st.integers(0, 3), SHARES, SHARES)
def test_curiosity_is_the_published_formula(calls, threshold, most, alpha, beta):
    for got, right in zip(bonuses(calls, threshold, most, alpha, beta), naive(calls, threshold, most, alpha, beta), strict=True):
        assert got == pytest.approx(right)


def released(calls):
    """What the released code adds for a picture, statement by statement as it is described in the docstring of the module."""
    rate = np.mean([n > 0.0 for n in calls])
    return [max(0.3 - rate, 0.0) / 2.0 / rate * 0.25 - 0.05 * (n - 1) if n > 0.1 else 0.0 for n in calls]


@FEW
@given(st.lists(st.integers(0, 9), min_size=1, max_size=16))
def test_the_released_form_is_that_of_the_code(calls):
    curious, penalties = bonuses(calls, form="released")
    assert [c + p for c, p in zip(curious, penalties, strict=True)] == pytest.approx(released(calls))


def group(calls):
    rollouts = [episode("<answer>red</answer>") for _ in calls]
    for rollout, n in zip(rollouts, calls, strict=True):
        object.__setattr__(rollout, "outcome", {"calls": float(n)})
    scores = [Score(1.0) for _ in calls]
    return Group(place=("a", 0), number=0, prompt=rollouts[0].prompt, inputs=None, rollouts=rollouts, scores=scores)


def test_the_rule_pays_a_group_by_hand():
    one = group([0, 0, 0, 2])  # a quarter uses a tool: 0.5 x (0.3 - 0.25) = 0.025, and 0.05 less for the second call
    Curiosity()([one], None)
    assert [score.value for score in one.scores] == pytest.approx([1, 1, 1, 1 + 0.025 - 0.05])
    assert one.scores[3].parts == pytest.approx({"curiosity": 0.025, "calls": -0.05})
    assert Curiosity().counts([one]) == {"sampling/tool_use": 0.25}
    often = group([1, 1, 0, 1])
    Curiosity()([often], None)
    assert [score.value for score in often.scores] == [1, 1, 1, 1], "beyond the threshold nothing is paid"


class Seeded:
    """A step's sampler, as far as the rule asks."""

    def __init__(self, seed):
        self.seed = seed


def valued(name, *values):
    return Group(
        place=("t", name), number=name, prompt=Prompt(messages=[]), inputs=None, rollouts=[], scores=[Score(v) for v in values]
    )


@pytest.mark.parametrize(("differing", "same"), [(3, 5), (1, 4), (4, 0), (5, 2)])
def test_what_differs_takes_the_place_of_what_does_not(differing, same):
    """The released `active_sampling`: passes over all that differs, and in the last as many as are missing, none twice."""
    groups = [valued(n, 0.0, 1.0) for n in range(differing)] + [valued(9 + n, 1.0, 1.0) for n in range(same)]
    for group in groups:
        group.rollouts = [Conversation(prompt=group.prompt, group=0, turns=(), status=Status.FINISHED)] * 2
    found = Refill()(groups, Seeded(3))
    names = [group.place[1] for group in found]
    assert len(names) == len(groups) and {*names} == {*range(differing)}
    passes = [names[i : i + differing] for i in range(0, len(names), differing)]
    assert all(len({*one}) == len(one) for one in passes), "each once a pass"
    assert len({id(group) for group in found}) == len(found), "copies, which are numbered one by one"
    assert names == [g.place[1] for g in Refill()(groups, Seeded(3))], "the same in all processes"
    assert Refill().counts(groups) == {"sampling/uniform_share": same / len(groups)}


def test_nothing_changes_where_nothing_differs():
    groups = [valued(n) for n in range(3)]
    assert Refill()(groups, Seeded(0)) is groups and Refill().counts([]) == {}


@pytest.mark.parametrize("options", [{"threshold": -1}, {"alpha": float("nan")}, {"beta": True}, {"form": "mine"}, {"most": "1"}])
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(UserError):
        Curiosity(**options)


def test_a_last_call_that_failed_costs_the_answer():
    right = "<answer>red</answer>"
    assert pixel_reward(Case(completion=right, answer="red", outcome={"last_failed": 0.0})).value == 1.0
    assert pixel_reward(Case(completion=right, answer="red", outcome={"last_failed": 1.0})).value == 0.0
    assert pixel_reward(Case(completion="<answer>blue</answer>", answer="red")).value == 0.0


def test_pixel_reasoner_crops_with_a_margin_by_hand():
    assert pixel_reasoner_box([0.2, 0.3, 0.5, 0.6], 1000, 500) == pytest.approx((100, 100, 600, 350))
    assert pixel_reasoner_box([200, 150, 500, 300], 1000, 500) == pytest.approx((100, 100, 600, 350)), (
        "pixels, where one is 1 or more"
    )
    assert pixel_reasoner_box([0, 0, 0.9, 0.9], 1000, 500) == pytest.approx((0, 0, 1000, 500))
    with pytest.raises(Refused, match="too small"):
        pixel_reasoner_box([0.5, 0.5, 0.5, 0.5], 100, 100)
    frames = [Image.new("RGB", (64, 64), (n, n, n)) for n in range(10)]
    work = Workspace(pictures=[], frames=frames)
    got = TOOLS["select_frames"].call({"target_frames": [10, 1]}, work)
    assert [p.image.getpixel((0, 0))[0] for p in got.pictures] == [9, 0]
    for wrong in ([], [0], [11], list(range(1, 10))):
        with pytest.raises(Refused):
            TOOLS["select_frames"].call({"target_frames": wrong}, work)
