"""Our verifiers by the rules of `mmrl check`, on rows of their own; and faults that those rules must find."""

import pytest
from mmrl_video import reading, spans, verifiers

from mmrl import Prompt, Task, user_message
from mmrl.registry import plugins
from mmrl.testing import check_verifier

TIMES = [[i / 2, i / 2 + 1 + i % 3] for i in range(12)]
ORDERS = ["312", "123", "231", "213", "132", "321"]
BOXES = [[[5 * i + t, 4, 5 * i + t + 9, 30] for t in range(4)] for i in range(8)]
SAYINGS = ["the ball bounces", "a red square enters", "stop ahead", "exit 24B to Main Street", "two things touch"]
ROWS = {
    "tiou": [(t, f"{t[0]} to {t[1]}") for t in TIMES],
    "anomaly": [(t, f"{t[0]}-{t[1]}") for t in TIMES],
    "count": [([i % 4, i % 3, i], f"{i % 4}, {i % 3}, {i}") for i in range(12)],
    "order": [(one, one) for one in ORDERS],
    "tracking": [(one, str(one)) for one in BOXES],
    "grounded-choice": [
        ({"answer": "ABCD"[i % 4], "span": t}, f"{'ABCD'[i % 4]}, {t[0]} to {t[1]}") for i, t in enumerate(TIMES)
    ],
    "choice": [(one, one) for one in "ABCD"],
    "number": [(i, str(i)) for i in range(8)],
    "regression": [(i + 1, str(i + 1)) for i in range(8)],
    "text": [(one, one) for one in SAYINGS],
    "open": [(one, one) for one in SAYINGS],
    "answer": [(one, one) for one in "DCBA"],
}


class Rows(Task):
    """Rows of a verifier: (answer, gold)."""

    splits = ("test",)

    def __init__(self, rows, style):
        self.rows, self.style = rows, style

    def prompts(self, split, seed):
        meta = {"style": self.style, "duration": 40.0, "options": ["left", "right", "up", "down"]}
        ask = "When, or which of A, B, C, D? Such as: 1, 2, 3."
        return [Prompt(id=str(i), messages=[user_message(ask)], answer=row[0], meta=meta) for i, row in enumerate(self.rows)]

    def gold(self, prompt):
        said = self.rows[int(prompt.id)][1]
        return f"<think>I look.</think>\n<answer>{said}</answer>" if self.style == "tags" else said


def report_on(id, style="short", verify=None):
    task = Rows(ROWS[id], style)
    spec = plugins.registry().get("verifiers", f"video/{id}")
    return check_verifier(spec, [(task, prompt) for prompt in task.prompts("test", 0)], verify=verify)


@pytest.mark.parametrize("style", ["short", "tags"])
@pytest.mark.parametrize("id", ROWS)
def test_it_keeps_the_rules(id, style):
    report = report_on(id, style)
    assert report.ok, str(report)


def first_of_several(case):
    found = reading.spans(case.completion.partition("\n")[0])
    return spans.iou(found[:1], verifiers.true_spans(case.answer)) if found else 0.0


def any_option(case):
    return float(case.answer in case.completion)


def raises(case):
    start, _, end = case.completion.partition(" to ")
    return spans.iou([(float(start), float(end))], verifiers.true_spans(case.answer))


@pytest.mark.parametrize("id, fault", [("tiou", first_of_several), ("choice", any_option), ("tiou", raises)])
def test_the_rules_find_planted_faults(id, fault):
    assert not report_on(id, verify=fault).ok


def test_every_verifier_of_ours_is_checked_here_or_pays_for_form():
    ours = {id.partition("/")[2] for id in plugins.registry().specs("verifiers") if id.startswith("video/") and "@" not in id}
    assert ours - set(ROWS) == {"format"}
