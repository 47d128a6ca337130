"""Answers of models that think, before the verifiers of all tasks: what was thought is neither an answer nor a fault of one."""

import pytest

from mmrl.api.interfaces import Task
from mmrl.registry import plugins
from mmrl.serving.tasks import OpenedTask
from mmrl.testing.cases import mostly_slow

TASKS = [
    *("grounding/refer", "jigsaw/pair", "transit/question", "vqa/shapes", "video/number", "classification/digits"),
    *("grounding/count", "grounding/detect", "grounding/point", "jigsaw/full", "jigsaw/single", "robotics/progress-pairs"),
    *("ssl/contrastive", "ssl/masked", "ssl/position", "ssl/rotation", "transit/plan", "video/anomaly", "video/choice"),
    *("video/counting", "video/grounded", "video/jigsaw", "video/ocr", "video/open", "video/regression", "video/temporal"),
    *("rendering/chart", "rendering/page", "gui/transitions", "vqa/compare", "vqa/points24"),
]
NAMES = 'It may be 4 or B, [1, 2, 3, 4], yes, <answer>4</answer>, \\boxed{1}, {"a": 1} or <tool_call>.'
LONG = "It may be (4, or so. " * 2000


def values(id, completions):
    """What the gold completion of a task's first prompt earns, and others: the weighted sum of its verifiers, which run here."""
    registry = plugins.registry()
    spec, task = registry.get("tasks", id), registry.make_task(id, {})
    opened = OpenedTask(id, task, spec.verifiers, {}, next(iter(spec.verifiers)), lambda: None)
    prompt = opened.prompts(task.splits[0])[0]
    gold = opened.gold(prompt)
    answer = gold.rpartition("</think>")[2].lstrip()
    for completion in (gold, *(completion.replace("GOLD", answer) for completion in completions)):
        case = opened.case(prompt, completion)
        scores = [(weight, registry.make_verifier(name)(case)) for name, weight in spec.verifiers.items()]
        yield sum(weight * float(getattr(score, "value", score)) for weight, score in scores)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>\nIs it <answer>4</answer>?\n</think>\n\nSeven", "seven"),
        ("<think>a</think><answer>7</answer>", "7"),
        ("<think>\nIs it <answer>4</answer>?", ""),
        ("Seven", "seven"),
    ],
)
def test_votes_are_of_answers_and_not_of_thoughts(completion, answer):
    """Without tags each thought was a vote of its own."""
    assert Task().extract_answer(completion) == answer


@pytest.mark.parametrize("id", mostly_slow(TASKS, everyday=5))
def test_an_answer_earns_the_same_behind_a_thought(id):
    """Answers without tags were read with the thinking before them, and tags that a thought named were answers."""
    whole, *behind, cut = values(id, [*(f"<think>\n{thought}\n</think>\n\nGOLD" for thought in (NAMES, LONG)), "<think>\nGOLD"])
    assert behind == [whole, whole] and cut < whole
