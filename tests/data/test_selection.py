"""Which prompts a stage trains on: by hand, against slow references, and what is refused."""

import json
import math
import random
from collections import Counter

import pytest

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.config.sections import SelectConfig
from mmrl.data.selection import Subset, apply_rule, read_scores, select_ids, selected


def rule(kind="variance", **keys):
    return SelectConfig(path="x.jsonl", rule=kind, **keys)


def write(path, scores, task="films", split="train"):
    """An evaluation's file: id -> the scores of its answers."""
    rows = ({"step": 0, "task": task, "split": split, "id": id, "value": 0.5, "values": v} for id, v in scores.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# -- rules ------------------------------------------------------------------------------------------------------------------


def test_prompts_whose_scores_vary_most():
    """By hand: variances 1/4, 3/16, 1/400 and 0; a score that failed is neither here nor there."""
    scores = {"b": [0, 1, 0, 0], "c": [0.5, 0.6, 0.6, 0.5], "same": [0.3] * 4, "a": [0, 1, 1, 0], "lost": [], "one": [1]}
    assert apply_rule(scores, rule(), 0) == ["a", "b", "c"] == apply_rule(scores, rule(max_prompts=99), 0)
    assert apply_rule(scores, rule(max_prompts=2), 0) == ["a", "b"]
    assert apply_rule(scores, rule(max_prompts=2, above=0.25), 0) == ["a", "c"], "a mean of 0.25 is not above it"
    assert apply_rule(scores, rule(up_to=0.25), 0) == ["b"], "and is up to it"
    assert apply_rule({"a": [0.1] * 3, "b": [1, 1]}, rule(max_prompts=1), 0) == [] == apply_rule({}, rule(), 0)


def test_variance_as_a_slow_reference_has_it():
    draw = random.Random(3)
    for seed in range(50):
        scores = {str(i): [draw.choice([0.0, 0.5, 1.0]) for _ in range(draw.randint(0, 4))] for i in range(12)}
        n = draw.randint(1, 14)
        spread = {}
        for id, values in scores.items():
            mean = sum(values) / len(values) if values else 0.0
            spread[id] = sum((v - mean) ** 2 for v in values) / len(values) if values else 0.0
        found = apply_rule(scores, rule(max_prompts=n), seed)
        varied = [id for id in scores if spread[id] > 1e-12]
        assert len(found) == len(set(found)) == min(n, len(varied)) and set(found) <= set(varied)
        left = [spread[id] for id in varied if id not in found]
        assert not left or not found or min(spread[id] for id in found) >= max(left) - 1e-12
        assert apply_rule(dict(reversed(scores.items())), rule(max_prompts=n), seed) == found, "the order of the rows is nothing"


def test_of_equals_it_is_drawn_who_is_taken():
    scores = {str(i): [0, 1] for i in range(10)}
    seen = Counter(id for seed in range(600) for id in apply_rule(scores, rule(max_prompts=2), seed))
    assert len(seen) == 10 and all(80 < count < 160 for count in seen.values())


def test_a_bell_curve_is_drawn_from_without_replacement():
    """Means 0.3, 0.5 and 0.9 around 0.3 with a width of 0.2: densities 1, exp(-1/2) and exp(-9/2)."""
    scores = {"at": [0.3], "near": [0.4, 0.6], "far": [0.9, 0.9]}
    p = {"at": 1.0, "near": math.exp(-0.5), "far": math.exp(-4.5)}
    total, seeds = sum(p.values()), range(4000)
    orders = Counter(tuple(apply_rule(scores, rule("bell", max_prompts=3), seed)) for seed in seeds)
    for (first, second, third), count in orders.items():
        assert {first, second, third} == set(p)
        expected = p[first] / total * p[second] / (total - p[first])
        assert count / len(seeds) == pytest.approx(expected, abs=0.025)
    assert len(orders) == 6
    assert apply_rule(scores, rule("bell", max_prompts=1), 7) == apply_rule(scores, rule("bell", max_prompts=3), 7)[:1]


def test_a_bell_curve_far_from_all_means_draws_the_nearest():
    scores = {str(i): [i / 10] for i in range(10)}
    assert apply_rule(scores, rule("bell", max_prompts=3, center=5.0, width=1e-3), 0) == ["9", "8", "7"]
    assert sorted(apply_rule(scores, rule("bell", max_prompts=99), 0)) == sorted(scores), "fewer than are asked for are all"
    flat = Counter(id for seed in range(1000) for id in apply_rule(scores, rule("bell", max_prompts=1, width=1e9), seed))
    even = Counter(id for seed in range(1000) for id in apply_rule(scores, rule("all", max_prompts=1), seed))
    for counts in (flat, even):
        assert len(counts) == 10 and all(60 < count < 145 for count in counts.values())


def test_time_r1_keeps_what_is_neither_hopeless_nor_easy():
    scores = {"never": [0, 0], "some": [0, 0.2], "edge": [0.7, 0.7], "easy": [0.8, 0.8], "failed": []}
    assert sorted(apply_rule(scores, rule("all", above=0.0, up_to=0.7), 0)) == ["edge", "some"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"rule": "bell"}, 'select.rule = "bell" needs a number of prompts to draw: set select.max_prompts'),
        ({"rule": "all"}, "selects everything: set select.max_prompts, above or up_to, or drop select"),
        ({"above": 0.5, "up_to": 0.5}, "no mean is above 0.5 and up to 0.5"),
        ({"max_prompts": 0}, "greater than or equal to 1"),
        ({"width": 0}, "greater than 0"),
        ({"center": math.nan}, "finite"),
        ({"rule": "hardest"}, "variance"),
    ],
)
def test_rules_that_can_not_be_meant(keys, why):
    with pytest.raises(ValueError, match=why):
        SelectConfig(path="x.jsonl", **keys)


# -- what an evaluation wrote -----------------------------------------------------------------------------------------------


def test_scores_of_one_task_and_split_are_read(tmp_path):
    path = tmp_path / "e.jsonl"
    one = write(path, {"a": [1, None, 0.5], "b": [None, None]})
    text = path.read_text()
    write(path, {"a": [0]}, split="test")
    path.write_text(text + path.read_text() + '{"task": "others", "split": "train", "id": "a", "values": [0]}\n')
    assert read_scores(one, "films", "train") == {"a": [1.0, 0.5], "b": []} and read_scores(one, "films", "test") == {"a": [0.0]}
    with pytest.raises(UserError, match=r"has no prompt of task 'films' on split 'warm', only films on test, films on"):
        read_scores(one, "films", "warm")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"id": "a", "values": [1]}\n{"id": "a"}\n', "line 2 has no id and values of an evaluation"),
        ('{"id": 5, "values": [1]}\n', "line 1 has no id and values"),
        ('{"id": "a", "values": ["1"]}\n', "line 1 has no id and values"),
        ('{"id": "a", "values": [true]}\n', "line 1 has no id and values"),
        ('{"id": "a", "values": [NaN]}\n', "line 1 has no id and values|NaN"),
        ('{"id": "a", "values": 1}\n', "line 1 has no id and values"),
        (
            '{"task": "films", "split": "train", "id": "a", "values": [1]}\n' * 2,
            "line 2 has the prompt 'a' of task 'films' again",
        ),
        ("{", "line 1|is no JSON"),
        ("", "no prompt of task 'films' on split 'train', only none|no rows"),
    ],
)
def test_what_is_no_evaluation_is_told_in_a_line(tmp_path, text, why):
    path = tmp_path / "e.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=why) as error:
        read_scores(str(path), "films", "train")
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_other_files_are_refused(tmp_path):
    for path, why in (("runs/pilot", "is no .jsonl: give a file of a run"), (str(tmp_path / "no.jsonl"), "does not exist")):
        with pytest.raises(UserError, match=why):
            read_scores(path, "films", "train")


# -- the prompts of a stage -------------------------------------------------------------------------------------------------


class Films(Task):
    """Ten prompts, of which some can't be opened."""

    def __init__(self, broken=()):
        self.broken, self.read = broken, []

    def prompts(self, split, seed):
        return LazyPrompts(range(10), lambda i: self.make(split, i))

    def make(self, split, i):
        self.read.append(i)
        if i in self.broken:
            raise UserError("its clip is missing")
        return Prompt(id=f"{split}-{i}", messages=[user_message("?")], answer="1")


def left(rule, task):
    """What a rule leaves of the training prompts."""
    items = task.prompts("train", 0)
    return Subset(items, selected(items, rule, "films", "train", 0))


def test_a_stage_draws_from_the_prompts_that_are_selected(tmp_path):
    path = write(tmp_path / "e.jsonl", {"train-7": [0, 1], "train-2": [0, 1, 1], "train-5": [1, 1], "train-3": [0.4, 0.6]})
    task = Films()
    found = left(SelectConfig(path=path, max_prompts=2), task)
    assert [found[i].id for i in range(len(found))] == ["train-2", "train-7"]
    assert task.read[:8] == list(range(8)), "nothing is read behind the last that is taken"
    with pytest.raises(
        UserError, match=f"select leaves none of the 4 prompts of task 'films' in {display_path(path)}: widen it, or give"
    ):
        left(SelectConfig(path=path, above=0.9), task)
    assert select_ids(SelectConfig(path=path, rule="all", above=0.9), "films", "train", 0) == ["train-5"]


def test_prompts_of_other_options_are_refused_and_broken_ones_passed_over(tmp_path):
    path = write(tmp_path / "e.jsonl", {"train-1": [0, 1], "train-2": [0, 1], "train-40": [0, 1]})
    with pytest.raises(
        UserError,
        match=r"has 1 prompts that task 'films' doesn't have, such as 'train-40': evaluate the task with its present options",
    ):
        left(SelectConfig(path=path), Films())
    path = write(tmp_path / "e.jsonl", {"train-1": [0, 1], "train-2": [0, 1]})
    found = left(SelectConfig(path=path), Films(broken=(2, 6)))
    assert [found[i].id for i in range(len(found))] == ["train-1"]
    with pytest.raises(UserError, match="none of the prompts of task 'films' that select takes can be opened"):
        left(SelectConfig(path=path), Films(broken=(1, 2)))
