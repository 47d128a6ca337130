"""What a completion draws is shown: to people in previews and reports, to the policy between its tries."""

import json
import time

import pytest
from mmrl_rendering.revision import successful_calls, thinks_answers_and_draws
from mmrl_rendering.task import Charts, Svg
from PIL import ImageChops

from mmrl import Case, EnvironmentFailed, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.registry import plugins
from mmrl.testing import check_task
from mmrl.testing.gold import play_gold

KINDS = {"svg": Svg(turns=3), "short": Svg(code="short", turns=3), "chart": Charts(turns=3)}


PANIC = (
    '<svg viewBox="-1 1 100 100"><path d="M0 .5S3 .5 3 1e-7zA.5 1e5 .5 1 1 1e5 1H1A-1 0 1e5 0 1 1e-7 -0Z" fill="none" '
    'stroke="red" stroke-linejoin="round" stroke-linecap="square" stroke-miterlimit="3"/></svg>'
)
"""resvg panics, which is no Exception in Python."""
WORST = '<svg viewBox="0 0 56 56"><path stroke="red" stroke-width="2" d="M0 0' + "a1e5 1e5 0 1 1 1 1" * 570 + '"/></svg>'
TINY = [{"name": "", "values": [5e-324]}]


@pytest.mark.parametrize("kind", KINDS)
def test_the_gold_completion_shows_the_picture_itself(kind):
    task = KINDS[kind]
    prompt = task.prompts("train", 0)[0]
    shown = task.draw_completion(prompt, task.gold(prompt))
    assert shown.size == prompt.images[0].size and ImageChops.difference(shown, prompt.images[0]).getbbox() is None
    assert task.draw_completion(prompt, "no code at all") is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_answer_draws_is_shown_until_the_tries_are_used_up(kind):
    task = KINDS[kind]
    prompt, other = task.prompts("train", 0)[0], task.prompts("train", 0)[1]
    environment = task.environment(prompt)
    first, second, third = (environment.step(text) for text in (task.gold(other), "nothing", task.gold(prompt)))
    picture, text = first.messages[0]["content"]
    drawn = task.draw_completion(prompt, task.gold(other))
    assert picture["image"].tobytes() == drawn.tobytes() and "closer to the picture" in text["text"] and not first.terminated
    (said,) = second.messages[0]["content"]
    assert said["text"].startswith("That draws nothing: ") and not second.terminated
    assert third.terminated and not third.messages and first.reward == second.reward == third.reward == 0.0


BROKEN = {
    "svg": (PANIC, WORST, "<svg>" + "<g>" * 99),
    "short": ("rect 1 2 3", "\ud800", "rect 1 2 3 4 mauve"),
    "chart": (json.dumps({**dict.fromkeys(("title", "x", "y"), ""), "type": "bar", "labels": ["a"], "series": TINY}), "{}"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_code_that_breaks_the_renderer_is_told_to_draw_nothing_and_the_episode_goes_on(kind):
    task = KINDS[kind]
    prompt = task.prompts("train", 0)[0]
    for completion in BROKEN[kind]:
        start, environment = time.process_time(), task.environment(prompt)
        assert task.draw_completion(prompt, completion) is None
        (said,) = environment.step(completion).messages[0]["content"]
        assert said["text"].startswith("That draws nothing: ") and len(said["text"]) < 400 and time.process_time() - start < 1


def test_one_answer_is_the_end_unless_there_are_turns():
    task = Svg()
    assert task.environment(task.prompts("train", 0)[0]) is None
    with pytest.raises(UserError, match="turns"):
        Svg(turns=0)


@pytest.mark.slow
def test_episodes_keep_the_rules():
    report = check_task(plugins.registry().get("tasks", "rendering/svg"), lambda: Svg(turns=2), n=4)
    assert report.ok, str(report)


class Endpoint:
    """Answers each question with the next text."""

    def __init__(self, *texts):
        self.texts, self.asked = list(texts), []

    def ask(self, questions):
        self.asked += questions
        found = [self.texts.pop(0) for _ in questions]
        return [t if isinstance(t, NoAnswer) else Answer(text=t, finished=True, num_tokens=1) for t in found]


def taught(*texts, **options):
    task = Svg(turns=3, teacher={"model": "tiny"}, **options)
    task._teacher.endpoint = Endpoint(*texts)
    return task, task.prompts("train", 0)[0], task.prompts("train", 0)[1]


def test_a_teacher_sees_both_pictures_and_its_words_take_the_place_of_the_rendering():
    task, prompt, other = taught("The square is too small.", NoAnswer("host: status 500"))
    environment = task.environment(prompt)
    assert environment.waits, "episodes wait for it side by side"
    reply = environment.step(task.gold(other))
    (part,) = reply.messages[0]["content"]
    assert part["type"] == "text" and part["text"].endswith("\nThe square is too small.") and not reply.terminated
    ((message,),) = (question.messages for question in task._teacher.endpoint.asked)
    assert [p["type"] for p in message["content"]] == ["image_url", "image_url", "text"]
    assert message["content"][0] != message["content"][1] and "<svg" not in message["content"][2]["text"]
    (said,) = environment.step("no code").messages[0]["content"]
    assert said["text"].startswith("That draws nothing: "), "it isn't asked about nothing"
    with pytest.raises(EnvironmentFailed, match="the teacher: host: status 500"):
        task.environment(prompt).step(task.gold(other))


def test_a_smoke_run_asks_no_teacher():
    task = Svg(turns=2, teacher={"model": "tiny"})
    prompt = task.prompts("train", 0)[0]
    (part,) = task.environment(prompt).step(task.gold(prompt)).messages[0]["content"]
    assert part["text"].endswith("Of the target's pixels 100% are reached.")


def test_calls_are_tried_and_an_answer_ends_the_episode():
    task = Svg(turns=4, calls=True, think=True)
    prompt, other = task.prompts("train", 0)[0], task.prompts("train", 0)[1]
    assert "at most 3 times" in prompt.text and "nothing else" not in prompt.text
    environment = task.environment(prompt)
    call = "<think>a <answer> tag in a thought ends nothing</think><tool_call>{}</tool_call>"
    drawn = environment.step(call.format(other.answer))
    assert [p["type"] for p in drawn.messages[0]["content"]] == ["image", "text"] and drawn.outcome == {"calls": 1, "drawn": 1}
    empty = environment.step(call.format("nothing"))
    assert empty.messages[0]["content"][0]["text"].startswith("That draws nothing") and empty.outcome == {"calls": 2, "drawn": 1}
    cut = task.environment(prompt).step("<think>I call <tool_call></tool_call> and then <answer>")
    assert not cut.terminated and cut.outcome == {"calls": 0, "drawn": 0}, "thinking that doesn't end has no call"
    neither = environment.step("I am thinking")
    assert "<tool_call>" in neither.messages[0]["content"][0]["text"] and neither.outcome == {"calls": 2, "drawn": 1}
    answer = environment.gold_turn()
    assert "<answer>" in answer, "the last turn is left"
    final = environment.step(answer)
    assert final.terminated and final.outcome == {"calls": 2, "drawn": 1}
    early = task.environment(prompt).step(answer)
    assert early.terminated and early.outcome == {"calls": 0, "drawn": 0}, "an answer is the end at once"


@pytest.mark.parametrize(("turns", "calls"), [(2, 1), (3, 2), (9, 2)])
def test_gold_turns_call_the_tool_and_answer(turns, calls):
    task = Svg(turns=turns, calls=True, think=True)
    prompt = task.prompts("train", 0)[0]
    assert task.draw_completion(prompt, task.gold(prompt)) is not None, "a call is shown to people"
    last, outcome = play_gold(task, prompt, task.gold(prompt))
    assert outcome == {"calls": calls, "drawn": calls} and thinks_answers_and_draws(case(prompt, last)).value == 1.0
    assert successful_calls(Case(completion=last, outcome=outcome)).value == calls / 2


def test_the_tool_pays_calls_that_drew_and_the_format_pays_what_can_be_drawn():
    task = Svg(turns=3, calls=True, think=True)
    prompt = task.prompts("train", 0)[0]
    paid = [successful_calls(Case(completion="", outcome={"calls": 3.0, "drawn": float(n)})).value for n in range(4)]
    assert paid == [0.0, 0.5, 1.0, 1.0] and successful_calls(Case(completion="")).value == 0.0
    for said in (prompt.answer, "<think>a</think><answer>nothing</answer>"):
        assert thinks_answers_and_draws(case(prompt, said)).value == 0.0


def case(prompt, completion):
    return Case(completion=completion, meta=prompt.meta, media=prompt.images)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"calls": True}, "calls has no effect with turns = 1"),
        ({"teacher": {"model": "tiny"}}, "teacher has no effect with turns = 1"),
        ({"turns": 2, "teacher": {"base_url": "http://localhost/v1"}}, "has a key too many, or no model"),
        ({"turns": 2, "teacher": {"model": "m", "modle": 1}}, "has a key too many, or no model"),
        ({"turns": 2, "teacher": {"model": "m", "base_url": "nowhere"}}, "is no address"),
        ({"turns": 2, "teacher": "m"}, "teacher"),
        ({"turns": 2, "calls": 1}, "calls"),
    ],
)
def test_a_teacher_or_calls_that_can_t_work_are_refused_in_one_line(options, wanted):
    with pytest.raises(UserError, match=wanted) as error:
        Svg(**options)
    assert "\n" not in str(error.value)
