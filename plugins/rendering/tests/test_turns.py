"""What a completion draws is shown: to people in previews and reports, to the policy between its tries."""

import json
import time

import pytest
from mmrl_rendering.task import Charts, Svg
from PIL import ImageChops

from mmrl import UserError
from mmrl.registry import plugins
from mmrl.testing import check_task

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
