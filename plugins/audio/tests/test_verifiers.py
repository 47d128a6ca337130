"""Our verifier and the published rewards: what is right, what is not, and what hostile completions cost."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_audio import r1_aqa
from mmrl_audio.made import Sounds
from mmrl_audio.verifiers import choice, right_option

from mmrl import Case, Task
from mmrl.registry import plugins
from mmrl.testing import check_verifier

OPTIONS = ["a dog", "a cat", "3"]


def value(completion, answer="a dog", **meta):
    return choice(Case(completion=completion, answer=answer, meta={"options": OPTIONS, "style": "short", **meta})).value


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("<answer>a dog</answer>", 1.0),
        ("<answer> A  Dog. </answer>", 1.0),
        ("<think>a cat?</think><answer>a dog</answer>", 1.0),
        ("<answer>a cat</answer>", 0.0),
        ("<answer>dog</answer>", 0.0),
        ("<answer>a dog, a cat</answer>", 0.0),
        ("<answer>a dog</answer><answer>a cat</answer>", 0.0),
        ("<think><answer>a dog</answer></think>", 0.0),
        ("a dog", 0.0),
        ("<answer></answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_right_option_in_the_tag(completion, right):
    assert value(completion) == right


def test_without_a_tag_the_completion_is_the_answer():
    assert value("A dog.", style="plain") == 1.0 and value("it is a dog", style="plain") == 0.0
    assert value("<answer>a dog</answer>", style="plain") == 1.0


def test_a_solution_of_r1_aqa_is_read_by_ours_too():
    assert right_option("<answer>a dog</answer>") == "a dog" and value("<answer>a dog</answer>", "<answer>a dog</answer>") == 1.0


@pytest.mark.parametrize("style", ["short", "plain", "r1-aqa", "r1-aqa-think"])
def test_ours_keeps_the_rules(style):
    task = Sounds(style=style, items=20)
    spec = plugins.registry().get("verifiers", "audio/choice")
    report = check_verifier(spec, [(task, prompt) for prompt in task.prompts("test", 0)][:12])
    assert report.ok, str(report)


def any_option(case):
    return float(case.answer in case.completion)


def test_the_rules_find_a_planted_fault():
    task: Task = Sounds(items=20)
    spec = plugins.registry().get("verifiers", "audio/choice")
    assert not check_verifier(spec, [(task, p) for p in task.prompts("test", 0)][:12], verify=any_option).ok


def form(text, think=False):
    return r1_aqa.form(Case(completion=text, answer=None), think=think)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", "\n", " "]), max_size=9).map("".join))
def test_forms_equal_the_published_patterns(text):
    assert form(text) == bool(re.fullmatch(r"<answer>.*?</answer>", text, re.DOTALL))
    assert form(text, think=True) == bool(re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL))


def test_the_faults_of_the_published_accuracy_are_there():
    def right(said, truth):
        return r1_aqa.accuracy(Case(completion=said, answer=f"<answer>{truth}</answer>"))

    assert right("<answer>dog</answer>", "dog") == right("dog", "dog") == 1.0
    assert right("<answer>Dog</answer>", "dog") == right("<answer>3.0</answer>", "3") == 0.0
    assert right("<answer>dog</answer><answer>cat</answer>", "dog") == 1.0


@pytest.mark.parametrize(
    "text", ["<answer>" * 100_000, "<think></think>" * 50_000 + "</answer>", "a dog " * 200_000, "\u0345" * 50_000]
)
def test_hostile_completions_cost_no_time(text):
    start = time.thread_time()
    for verify in (choice, r1_aqa.accuracy, r1_aqa.form, lambda case: r1_aqa.form(case, think=True)):
        found = verify(Case(completion=text, answer="<answer>a dog</answer>", meta={"options": OPTIONS}))
        assert getattr(found, "value", found) in (0.0, 1.0)
    assert time.thread_time() - start < 2
