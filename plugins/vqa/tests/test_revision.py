"""The game of 24 in several turns, and how often answers reflect."""

import pytest
from mmrl_vqa.drawn import Points24
from mmrl_vqa.maye import WORDS, reflection
from mmrl_vqa.points24 import verdict

from mmrl import Case, UserError
from mmrl.registry import plugins
from mmrl.testing import check_task


def game(**options):
    task = Points24(turns=3, **options)
    prompt = task.prompts("train", 0)[0]
    return task, prompt, task.environment(prompt)


def test_one_answer_ends_the_game_unless_there_are_turns():
    task = Points24()
    assert task.environment(task.prompts("train", 0)[0]) is None
    with pytest.raises(UserError, match="turns"):
        Points24(turns=0)


def test_a_right_answer_ends_it_and_earns_nothing_of_the_world():
    task, prompt, environment = game()
    reply = environment.step(task.gold(prompt))
    assert reply.terminated and reply.reward == 0.0 and not reply.messages


def test_the_verdict_on_a_wrong_answer_is_said_back_until_the_tries_are_used_up():
    _, prompt, environment = game()
    said = []
    for n in range(3):
        reply = environment.step("<answer>1+1</answer>")
        said.append([part["text"] for m in reply.messages for part in m["content"]])
        assert reply.terminated == (n == 2) and reply.reward == 0.0
    why = verdict(prompt.meta["cards"], "1+1", prompt.meta["faces"]).message.strip(". ")
    assert said == [[f"Not yet: {why}. Try again."]] * 2 + [[]]
    assert "Use each card exactly once" in why


def test_in_the_published_game_each_wrong_answer_costs_what_the_released_code_says():
    task, prompt, environment = game(style="generalpoints")
    first = environment.step("nothing at all")
    assert first.reward == -1.5, "no cards"
    said = [part["text"] for message in first.messages for part in message["content"]]
    assert said == ["You failed this trial because you recognized wrong cards"]
    cards = list(prompt.meta["cards"])
    assert environment.step(f'"cards": {cards}, "formula": "1+"').reward in (-2.0, -4.0), "numbers are left out"
    last = environment.step(f'"cards": {cards}, "formula": ""')
    assert last.terminated and last.reward == -1.0, "the judge's score of this answer comes on top"
    _, _, again = game(style="generalpoints")
    assert again.step(task.gold(prompt)).terminated


def test_episodes_of_the_game_keep_the_rules():
    spec = plugins.registry().get("tasks", "vqa/points24")
    report = check_task(spec, lambda: Points24(turns=3), n=8)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wait, let me check again: 7.", 2),
        ("await the verified waiter", 0),
        ("", 0),
        ("RE-CHECK", 1),
        ("think again " * 3, 3),
        *((word, 1) for word in WORDS),
    ],
)
def test_what_reflects(text, words):
    score = reflection(Case(completion=text, answer="7", meta={"kind": "number"}))
    assert score.value == float(words > 0) and score.parts["words"] == words and score.parts["right"] == 0.0


def test_whether_an_answer_that_reflects_is_right():
    case = Case(completion="<think>Wait.</think><answer>7</answer>", answer="7", meta={"kind": "number", "style": "think"})
    assert reflection(case).parts["right"] == 1.0
    assert reflection(Case(completion="<answer>7</answer>", answer="7", meta=case.meta)).parts["right"] == 0.0
