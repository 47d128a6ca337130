"""V-IRL's navigation: its rewards, its directions, its walks, and what the drawn views show."""

import json
import random
from pathlib import Path

import pytest
from mmrl_vqa import streets, virl
from mmrl_vqa.navigation import Navigation, view
from mmrl_vqa.scenes import COLOURS

from mmrl import Case, UserError
from mmrl.registry import plugins
from mmrl.testing import check_task


def said(action, seen="No landmarks nearby"):
    return json.dumps({"current observation": seen, "current instruction": "", "action": action})


def test_rewards_and_words_equal_the_released_code():
    path = Path(__file__).parents[3] / "tests" / "golden" / "rewards-virl.jsonl"
    if not path.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 244 and {row["reward"] for row in rows} == {1.0, -1.0, -1.5}
    for row in rows:
        score = virl.reward(Case(completion=row["completion"], meta=row["meta"]))
        assert (score.value, score.detail) == (row["reward"], row["detail"]), row


def walk(**options):
    task = Navigation(fewest=2, most=2, **options)
    prompt = task.prompts("train", 0)[1]
    return task, prompt, task.environment(prompt), [action for action, _ in prompt.meta["spots"]]


def test_a_walk_of_right_actions_arrives_and_is_paid_one_for_each():
    _, prompt, world, actions = walk()
    assert actions[0].startswith("turn_direction(") and actions[-1] == "stop()" and actions.count("stop()") == 1
    replies = [world.step(said(action)) for action in actions]
    assert [reply.terminated for reply in replies] == [False] * (len(actions) - 1) + [True]
    assert sum(reply.reward for reply in replies) == len(actions) - 1, "the verifier pays the last one"
    assert replies[-1].outcome == {"spot": len(actions) - 1.0, "success": 1.0} and not replies[-1].messages
    text, picture = (replies[0].messages[0]["content"][i] for i in (1, 0))
    if picture["type"] == "text":
        text, picture = picture, text
    assert f"O_1: No landmarks nearby; \nA_1: {actions[0]}\nO_2: You observe an image of 4 views; " in text["text"]
    assert prompt.meta["difficulty"] == len(actions)


def test_a_wrong_action_is_told_and_a_second_one_ends_the_walk():
    _, _, world, actions = walk()
    first = world.step(said("stop()"))
    assert (first.reward, first.terminated) == (-1.0, False)
    (told,) = [part["text"] for message in first.messages for part in message["content"]]
    assert told.startswith("You failed this trial because you make incorrect action. Please avoid this action")
    assert world.step(said(actions[0])).reward == 1.0, "the tries begin anew at the next spot"
    assert world.step(said("fly()", "at an intersection")).reward == -1.5
    last = world.step(said("fly()"))
    assert last.terminated and last.reward == -1.0 and last.outcome == {"spot": 1.0, "success": 0.0}, (
        "and the verifier's -1 comes on top"
    )


def test_the_verifier_judges_the_last_answer_where_it_was_given():
    _, prompt, world, actions = walk()
    for texts, rewards in (([said(actions[0])], [1.0]), ([said("fly()"), said("fly()")], [-1.0, -1.0])):
        world.at, world.left = 0, virl.TRIES
        outcomes = [world.step(text).outcome for text in texts]
        judged = [Case(completion=t, meta=prompt.meta, outcome=o) for t, o in zip(texts, outcomes, strict=True)]
        assert [virl.reward(case).value for case in judged] == rewards
    last = Case(completion=said("stop()"), meta=prompt.meta, outcome={"spot": len(actions) - 1.0})
    assert virl.reward(last).value == 1.0 and virl.reward(Case(completion=said("stop()"), meta=prompt.meta)).value == -1.0


def test_directions_follow_the_route_and_turns_have_the_published_side():
    assert [virl._side(d) for d in (90, 45, 0, -45, -90, 270, -270)] == [
        *("right", "slightly right", "slightly left", "slightly left", "left", "right", "left")
    ]
    for number in range(200):
        draw = random.Random(number)
        way = virl.route(draw, draw.randint(1, 5), absolute=True)
        heading, before = way.spots[0].heading, way.spots[0]
        for spot in way.spots[1:]:
            if before.action.startswith("turn"):
                heading = virl.HEADINGS.index(before.action[15:-1])
            assert spot.heading == heading == before.onward
            before = spot
        assert way.spots[-1].instruction == way.instruction.splitlines()[-1].partition(". ")[2]
        assert all((spot.sign is None) == (spot.observation == virl.NOTHING) for spot in way.spots)


def test_relative_turns_are_those_of_the_split_ood():
    task = Navigation()
    actions = {split: {a for p in task.prompts(split, 0) for a, _ in p.meta["spots"] if "turn" in a} for split in ("test", "ood")}
    assert {a[15:-1] for a in actions["ood"]} == {"left", "right", "slightly left", "slightly right"}
    assert {a[15:-1] for a in actions["test"]} == set(virl.HEADINGS)


def test_the_sign_of_a_landmark_is_in_the_view_of_its_side_and_in_no_other():
    size = 224
    for side, corner in ((2, (112, 0)), (6, (112, 112)), (0, (0, 0)), (4, (0, 112))):
        picture = streets.grid(size, "a", {0, 4}, ("purple", "star"), side)
        for turn, (x, y) in streets.VIEWS:
            part = picture.crop((x * 112, y * 112, x * 112 + 112, y * 112 + 112))
            assert (COLOURS["purple"] in set(part.get_flattened_data())) == (turn == side), (side, corner)
    way = virl.route(random.Random(1), 2, True)
    spot = next(i for i, s in enumerate(way.spots) if s.sign)
    assert view(way, spot, "a", 112).size == (112, 112)


def test_gold_completions_are_right_at_every_spot_and_the_task_keeps_the_rules():
    _, _, world, actions = walk()
    for action in actions:
        text = world.gold_turn()
        assert virl._field(text, "action") == action
        reply = world.step(text)
    assert reply.outcome["success"] == 1.0
    report = check_task(plugins.registry().get("tasks", "vqa/navigation@v-irl"), lambda: Navigation(size=112), n=6)
    assert report.ok, str(report)
    with pytest.raises(UserError, match="most = 13 must be a whole number from 1 to 12"):
        Navigation(most=13)
