"""Every check of the kit against a planted fault: the fault is found, by that check and by no other, with cause and cure."""

from __future__ import annotations

import itertools
import random
import re
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import guide
from mmrl import Case, NoGold, Overlay, Prompt, Reply, Score, Task, TaskSpec, UserError, VerifierSpec, user_message
from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.tasks.groups import PARTS
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.testing import check_id, check_plugin, check_task, check_verifier, other_process, task_subject
from mmrl.testing import tasks as task_checks
from mmrl.testing import verifiers as verifier_checks
from mmrl.testing.checks import CheckFailed
from mmrl.testing.sample import TimeIsUp, evenly, time_limit


def breaking(message: str) -> Any:
    raise UserError(message)


WORDS = ("one", "two", "three", "four")


class Count(Task):
    """How many white rows a picture has; a task without faults."""

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return LazyPrompts(range(8), lambda i: self.row(split, i, random.Random(f"{split} {seed} {i}")))

    def row(self, split: str, i: int, draw: random.Random) -> Prompt:
        pixels = np.full((12, 12, 3), draw.randrange(120), np.uint8)
        pixels[2 * np.arange(i % 4 + 1), :] = 255
        pixels[11] = [i, len(split), draw.randrange(256)]
        return Prompt(
            id=f"{split}-{i}",
            messages=[user_message("How many white rows?", Image.fromarray(pixels))],
            answer=WORDS[i % 4],
            meta={"boxes": [(0, 0, 12, 1)]},
        )


SPEC = TaskSpec(id="count/rows", target="-:-")


def change(**changes: Any) -> Callable[[Prompt, str, int], Prompt]:
    """A row with other fields; a function gets (row, split, number)."""

    def apply(row: Prompt, split: str, i: int) -> Prompt:
        fields = {name: getattr(row, name) for name in ("id", "messages", "answer", "meta")}
        return Prompt(**fields | {k: v(row, split, i) if callable(v) else v for k, v in changes.items()})

    return apply


def rows(edit: Callable[[Prompt, str, int], Prompt]) -> type[Task]:
    """The good task with every row edited."""

    class Edited(Count):
        def row(self, split: str, i: int, draw: random.Random) -> Prompt:
            return edit(super().row(split, i, draw), split, i)

    return Edited


def task(**members: Any) -> type[Task]:
    return type("Edited", (Count,), members)


def with_text(text: Callable[[Prompt, str, int], str]) -> Callable[[Prompt, str, int], list[Any]]:
    return lambda row, split, i: [user_message(text(row, split, i), row.images[0])]


calls = itertools.count()

TASK_FAULTS = {
    "no splits": ("every_split_has_rows", task(splits=()), "names no splits"),
    "an empty split": (
        "every_split_has_rows",
        task(splits=("train", "val"), prompts=lambda self, split, seed: [] if split == "val" else Count().prompts(split, seed)),
        "split 'val' is empty",
    ),
    "a crash": ("every_split_has_rows", task(prompts=lambda self, split, seed: 1 / 0), "ZeroDivisionError"),
    "dicts for prompts": (
        "every_split_has_rows",
        task(prompts=lambda self, split, seed: [{"answer": "one"}]),
        "holds a dict: yield mmrl.Prompt",
    ),
    "no messages": ("messages_are_well_formed", rows(change(messages=())), "has no messages"),
    "a strange role": (
        "messages_are_well_formed",
        rows(change(messages=[{"role": "human", "content": "?"}])),
        "the role 'human'",
    ),
    "a bare image": (
        "messages_are_well_formed",
        rows(change(messages=[{"role": "user", "content": ["x.png"]}])),
        "the part 'x.png'",
    ),
    "a misnamed part": (
        "messages_are_well_formed",
        rows(change(messages=[{"role": "user", "content": [{"type": "image", "path": "x.png"}]}])),
        "has the part",
    ),
    "the last word": (
        "messages_are_well_formed",
        rows(change(messages=lambda r, s, i: [*r.messages, {"role": "assistant", "content": "well"}])),
        "must be the user's",
    ),
    "no id": ("ids_are_unique", rows(change(id=lambda r, s, i: r.id if i else "")), "has the id ''"),
    "an id twice": (
        "ids_are_unique",
        rows(change(id=lambda r, s, i: f"{s}-{i // 2}")),
        "two rows of 'train' have the id 'train-0'",
    ),
    "the global generator": (
        "same_seed_gives_same_rows",
        rows(change(meta=lambda r, s, i: {"lucky": random.random()})),
        'differs from a new task: draw from random.Random(f"{split} {seed}")',
    ),
    "numpy's generator": (
        "same_seed_gives_same_rows",
        rows(change(meta=lambda r, s, i: {"lucky": np.random.rand()})),
        'draw from random.Random(f"{split} {seed}")',
    ),
    "a counter": ("same_seed_gives_same_rows", rows(change(answer=lambda r, s, i: f"{r.answer}{next(calls)}")), "differs from"),
    "other pixels": (
        "same_seed_gives_same_rows",
        rows(change(messages=lambda r, s, i: [user_message("?", Image.new("RGB", (12, 12), (next(calls) % 251, i, len(s))))])),
        "differs from",
    ),
    "a global seed": (
        "global_random_state_is_untouched",
        task(prompts=lambda self, split, seed: random.seed(next(calls)) or Count().prompts(split, seed)),
        "changed the global generator of random",
    ),
    "numpy's global seed": (
        "global_random_state_is_untouched",
        task(prompts=lambda self, split, seed: np.random.seed(next(calls)) or Count().prompts(split, seed)),
        "changed the global generator of numpy.random",
    ),
    "an id in two splits": (
        "splits_do_not_overlap",
        rows(change(id=lambda r, s, i: str(i))),
        "row '0' of 'test' has the id of row '0' of 'train'",
    ),
    "a picture in two splits": (
        "splits_do_not_overlap",
        rows(change(messages=lambda r, s, i: [user_message("?", Image.new("RGB", (12, 12), (i, i, i)))])),
        "row 'test-0' of 'test' has image and text of row 'train-0' of 'train'",
    ),
    "no such image": (
        "images_decode",
        rows(change(messages=lambda r, s, i: [user_message("?" + r.id, __file__)])),
        "an image of row 'train-0' of 'train' does not load",
    ),
    "a lambda": ("prompts_pickle", rows(change(meta={"f": lambda: 1})), "can't be pickled"),
    "no gold": ("gold_is_text", task(gold=lambda self, prompt: None), "gold of row 'train-0' of 'train' is None"),
    "the answer told": (
        "answer_is_not_shown",
        rows(change(messages=with_text(lambda r, s, i: f"It is {r.answer.upper()}! How many?"))),
        "the answer 'one' is in the text",
    ),
    "gold told": (
        "answer_is_not_shown",
        type(
            "Edited",
            (rows(change(messages=with_text(lambda r, s, i: f"Say: there are {r.answer} rows in it."))),),
            {"gold": lambda self, prompt: f"there are {prompt.answer} rows in it"},
        ),
        "is in the text",
    ),
    "a box in thousandths": (
        "boxes_are_in_their_image",
        rows(change(meta={"boxes": [(100, 200, 300, 400)]})),
        "has the box (100, 200, 300, 400) in an image of 12 x 12",
    ),
    "a box of width and height": (
        "boxes_are_in_their_image",
        rows(change(meta={"box": (8, 8, 3, 3)})),
        "boxes in meta must be (x1, y1, x2, y2)",
    ),
    "a labelled box in thousandths": (
        "boxes_are_in_their_image",
        rows(change(meta={"boxes": [{"bbox_2d": (100, 200, 300, 400), "label": "row"}]})),
        "has the box (100, 200, 300, 400) in an image of 12 x 12",
    ),
    "a mark in pixels": (
        "overlays_can_be_drawn",
        task(overlays=lambda self, prompt, completion: [Overlay(kind="box", coordinates=(0, 0, 120, 10), source="true")]),
        "row 'train-0' of 'train': overlays() gives an overlay that can't be drawn: box (0, 0, 120, 10) is far off the image",
    ),
    "a mark on another picture": (
        "overlays_can_be_drawn",
        task(overlays=lambda self, prompt, completion: [Overlay(kind="point", coordinates=(0.5, 0.5), source="true", image=1)]),
        "has 1 images, and an overlay for number 1: count from 0",
    ),
    "an interval of no video": (
        "overlays_can_be_drawn",
        task(overlays=lambda self, prompt, completion: [Overlay(kind="interval", coordinates=(0, 1, 2), source="true")]),
        "has 0 videos, and an overlay for number 0",
    ),
    "a mark that nobody said": (
        "overlays_can_be_drawn",
        task(overlays=lambda self, prompt, completion: [Overlay(kind="point", coordinates=(0.5, 0.5), source="said")]),
        'overlays() gives source="said" for an empty completion',
    ),
    "a truth that depends on what is said": (
        "overlays_can_be_drawn",
        task(
            overlays=lambda self, prompt, completion: [Overlay(kind="point", coordinates=(len(completion) / 9, 0), source="true")]
        ),
        'overlays with source="true" depend on the completion',
    ),
    "a broken row": (
        "rows_can_be_used",
        rows(lambda row, split, i: breaking(f"rows.jsonl line {i} of {split} is no JSON") if i == 3 else row),
        "2 of the 16 sampled rows can't be used: rows.jsonl line 3 of train is no JSON; rows.jsonl line 3 of test is no JSON",
    ),
    "no finite summary": (
        "summary_is_numbers",
        task(summarise=lambda self, results: {"mean": float("nan")}),
        "summarise gives 'mean': nan: return a dict of finite floats",
    ),
    "no finite summary of parts": (
        "summary_is_numbers",
        task(summarise_parts=lambda self, parts: {name: float("inf") for name in parts}),
        "summarise_parts gives 'part': inf: return a dict of finite floats",
    ),
    "too few sets": (
        "summary_is_numbers",
        task(prompt_sets=lambda self, split, seed: ["a"]),
        "prompt_sets() must give a set for each of",
    ),
}


def failed(report: Any) -> dict[str, str]:
    return {r.name: r.message for r in report.results if not r.ok}


def test_a_task_without_faults_passes() -> None:
    report = check_task(SPEC, Count)
    assert failed(report) == {} and report.ok
    assert [r.name for r in report.results] == [c.__name__ for c in (*task_checks.GATES, *task_checks.CHECKS)]


@pytest.mark.parametrize("fault", TASK_FAULTS)
def test_a_planted_fault_in_a_task_is_found(fault: str) -> None:
    name, faulty, message = TASK_FAULTS[fault]
    random.seed(7)  # a state that the kit itself sets would look like that of a task with its own generator
    found = failed(check_task(SPEC, faulty))
    assert message in found.get(name, f"nothing by {name} but {found}")
    also = {
        "same_seed_gives_same_rows": {"global_random_state_is_untouched"},
        "prompts_pickle": {"same_seed_gives_same_rows"},
        "boxes_are_in_their_image": {"overlays_can_be_drawn"},
    }
    assert set(found) - also.get(name, set()) == {name}, found


def test_every_check_of_tasks_has_a_planted_fault() -> None:
    planted = {name for name, _, _ in TASK_FAULTS.values()} | {"same_in_another_process", "verifiers_score_gold_highest"}  # below
    assert planted == {c.__name__ for c in (*task_checks.GATES, *task_checks.CHECKS)}


def test_parts_of_sets_are_no_warning() -> None:
    """A sample of rows is no evaluation, and evaluations draw whole sets; other warnings of a summary are shown."""

    def summarise(self: Task, results: object) -> dict[str, float]:
        for why in (f"sets: 1 of the 2 sets are whole, {PARTS}", "nothing is right"):
            warnings.warn(why, stacklevel=1)
        return {}

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert check_task(SPEC, task(summarise=summarise)).ok
    assert {str(one.message) for one in shown} == {"nothing is right"}


def only_some(of: int) -> type[Task]:
    """The good task, whose gold is known of one row in so many; of none where it is 0."""

    def gold(self: Task, prompt: Prompt) -> str:
        if not of or int(prompt.id.rpartition("-")[2]) % of:
            raise NoGold("nobody knows")
        return str(prompt.answer)

    return task(gold=gold)


def test_rows_without_gold_are_counted_and_are_no_fault() -> None:
    spec = TaskSpec(id="count/rows", target="-:-", verifiers={"classification/exact": 1.0})
    for of, left in ((2, 8), (0, 16)):
        report = check_task(spec, only_some(of))
        assert report.ok, str(report)
        notes = {r.name: r.note for r in report.results}
        said = f"{left} of 16 rows have no gold completion: gold() raises NoGold"
        assert notes["gold_is_text"] == notes["verifiers_score_gold_highest"] == said
    wrong = task(gold=lambda self, prompt: "one" if prompt.id.endswith("0") else only_some(0)().gold(prompt))
    assert check_task(spec, wrong).ok
    wrong = task(gold=lambda self, prompt: "two" if prompt.id.endswith("0") else only_some(0)().gold(prompt))
    assert set(failed(check_task(spec, wrong))) == {"verifiers_score_gold_highest"}, "those that have one are scored"


def test_a_verifier_is_checked_on_the_rows_that_have_gold() -> None:
    found = VerifierSpec(id="count/found", target="-:-")

    def verify(case: Case) -> float:
        return float(case.completion == case.answer)

    some, none = (only_some(of)() for of in (2, 0))
    report = check_verifier(found, [(some, p) for p in some.prompts("train", 0)], verify)
    assert report.ok and len(report.results) > 5, str(report)
    (only,) = check_verifier(found, [(none, p) for p in none.prompts("train", 0)], verify).results
    assert only.ok and only.note == "nothing was checked: no row of the sample has a gold completion"


class Countdown(Task):
    """Says one number less each turn, until there is none; what came of it is in the outcome alone."""

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return [
            Prompt(id=f"{split}-{i}", messages=[user_message(f"From {i} in {split}?")], meta={"from": i}) for i in range(1, 9)
        ]

    def gold(self, prompt: Prompt) -> str:
        return f"down from {prompt.meta['from']}"

    def environment(self, prompt: Prompt) -> Any:
        left = [prompt.meta["from"]]

        def step(completion: str) -> Reply:
            right = completion == f"down from {left[0]}"
            left[0] -= 1
            return Reply(
                terminated=not (left[0] and right),
                messages=[user_message("on")],
                outcome={"success": float(right and not left[0])},
            )

        return SimpleNamespace(step=step, gold_turn=lambda: f"down from {left[0]}", close=lambda: closed.append(left[0]))


closed: list[int] = []


def test_gold_is_played_to_its_end_where_an_answer_is_not_the_end() -> None:
    """A verifier of outcomes sees what came of the episode, and is held to that."""
    spec = VerifierSpec(id="count/won", target="-:-", outcome=True)
    closed.clear()
    asked = [(Countdown(), p) for p in Countdown().prompts("train", 0)]
    cases = verifier_checks.check_gold(spec, lambda case: case.outcome["success"], asked)
    assert [gold for _, gold in cases] == ["down from 1"] * 8 and closed == [0] * 8
    report = check_verifier(spec, asked, lambda case: case.outcome["success"])
    assert report.ok and report.results[0].name == "success_at_once_scores_highest"
    assert not check_verifier(spec, asked, lambda case: 0.5 * case.outcome["success"]).ok
    told = failed(check_verifier(replace(spec, outcome=False), asked, lambda case: case.outcome["success"]))
    assert list(told) == ["its_spec_says_that_it_judges_outcomes"] and "write outcome=True in its spec" in str(told)
    with pytest.raises(verifier_checks.CheckFailed, match="gives 0 to the gold completion 'down from 1'"):
        verifier_checks.check_gold(spec, lambda case: 1 - case.outcome["success"], asked)


def test_broken_rows_are_counted_and_five_are_told() -> None:
    assert evenly(100, 4) == [0, 33, 66, 99], "the rows that are looked at include the last"

    def edit(row: Prompt, split: str, i: int) -> Prompt:
        return row if i in (0, 7) else breaking(f"line {i} of {split}")

    (message,) = failed(check_task(SPEC, rows(edit))).values()
    assert message.startswith("12 of the 16 sampled rows can't be used: line 1 of train; ")
    assert message.count(" of train") == 5 and message.endswith(" ... and 7 more")
    none = failed(check_task(SPEC, rows(lambda row, split, i: breaking(f"line {i}"))))
    assert none == {
        "every_split_has_rows": "none of the 8 sampled rows of split 'train' can be used: correct them; the first: line 0"
    }

    def first_broken(self: Task, split: str, seed: int) -> Any:
        yield Count().prompts(split, seed)[0]
        breaking("the third line")

    assert failed(check_task(SPEC, task(prompts=first_broken))) == {
        "rows_can_be_used": "2 of the 4 sampled rows can't be used: the third line; the third line"
    }


@pytest.mark.parametrize("apart", [True, False])
def test_episodes_may_begin_alike_if_their_seeds_differ(apart: bool) -> None:
    """Such as those of a page whose list of elements doesn't show what a seed has drawn on it."""

    class Episodes(Count):
        def row(self, split: str, i: int, draw: random.Random) -> Prompt:
            seed = i + 1 + 1000 * (apart and split == "test")
            return Prompt(id=f"{split}-{i}", messages=[user_message("Draw.")], seed=seed)

        def environment(self, prompt: Prompt) -> None:
            return None

    failed = {r.name for r in check_task(SPEC, Episodes, n=3).results if not r.ok}
    assert ("splits_do_not_overlap" in failed) != apart, failed


def test_rows_that_take_long_are_compared_as_far_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a second each must not be made a thousand times for every split."""
    made = []

    class Slow(Count):
        def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
            return LazyPrompts(range(500), lambda i: made.append(i) or time.sleep(0.01) or self.row(split, i, random.Random(i)))

        def row(self, split: str, i: int, draw: random.Random) -> Prompt:
            return change(id=f"{split}-{i}")(super().row(split, i % 60, random.Random(f"{split} {i}")), split, i)

    monkeypatch.setattr(task_subject, "OVERLAP_S", 0.6)
    report = check_task(SPEC, Slow, n=3)
    notes = {r.name: r.note for r in report.results}
    assert re.fullmatch("[0-9]+ rows of each split are compared, since making one takes .* s", notes["splits_do_not_overlap"])
    assert notes["splits_do_not_overlap"] == notes["ids_are_unique"] and len(made) < 120
    monkeypatch.setattr(task_subject, "OVERLAP_S", 60.0)
    assert {r.name: r.note for r in check_task(SPEC, Count).results}["ids_are_unique"] == ""


def test_what_looks_like_a_leak_and_is_none() -> None:
    everything = rows(change(messages=with_text(lambda r, s, i: "one, two, three or four?")))
    assert check_task(SPEC, everything).ok, "a closed set of labels is no leak"
    choices = rows(
        change(
            answer=lambda r, s, i: f"cat {i}",
            meta=lambda r, s, i: {"choices": [f"cat {i}", f"dog {i}"]},
            messages=with_text(lambda r, s, i: f"cat {i} or dog {i}?"),
        )
    )
    assert check_task(SPEC, choices).ok, "choices that are offered are no leak"
    once = rows(change(messages=with_text(lambda r, s, i: "one?" if i == 0 else "?")))
    note = {r.name: r.note for r in check_task(SPEC, once).results}["answer_is_not_shown"]
    assert note.startswith("the text of 2 rows contains their answer"), "by chance in one row of each split"


HASH_ORDER = """
    from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="sets/letters", target="mmrl_sets:Letters", verifiers={"sets/exact": 1.0, "sets/none": 0.5}),
                TaskSpec(id="sets/drawn", target="mmrl_sets:Drawn", verifiers={}),
                TaskSpec(id="sets/sorted", target="mmrl_sets:Sorted", verifiers={"sets/exact": 1.0})]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="sets/exact", target="mmrl_sets:exact"), VerifierSpec(id="sets/lost", target="mmrl_sets:exact")]

    class Letters(Task):
        order = staticmethod(list)
        def prompts(self, split, seed):
            letters = self.order({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
            return [Prompt(id=f"{split}-{i}", messages=[user_message(f"{split} {i}?")], answer=a) for i, a in enumerate(letters)]

    class Sorted(Letters):
        order = staticmethod(sorted)

    class Drawn(Letters):
        order = staticmethod(lambda letters: __import__("random").sample(sorted(letters), 10))

    def exact(case):
        return float(case.completion == case.answer)
"""


def test_one_other_process_makes_the_rows_of_all_tasks(site) -> None:
    site("mmrl-sets", {"mmrl_sets.py": HASH_ORDER}, {"sets": "mmrl_sets"})
    first = other_process.rows_in_subprocess("sets/sorted", {}, ["train"], 3)
    kept = other_process._process
    assert len(first["train"]) == 3 and len(set(first["train"])) == 3
    with pytest.raises(CheckFailed, match=r"another process can't make the rows: .*no task 'sets/none'"):
        other_process.rows_in_subprocess("sets/none", {}, ["train"], 3)
    assert other_process.rows_in_subprocess("sets/sorted", {}, ["train"], 3) == first and other_process._process is kept


DIES = """
    import os, sys
    from mmrl import Prompt, Task, TaskSpec, hookimpl, user_message

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id=f"dies/{name.lower()}", target=f"mmrl_dies:{name}", verifiers={"dies/none": 1.0})
                for name in ("Here", "Talks")]

    class Talks(Task):
        def prompts(self, split, seed):
            print("so to speak")
            return [Prompt(id=split, messages=[user_message(f"what? {sys.stdin.read()}")])]

    class Here(Task):
        def prompts(self, split, seed):
            print("it is over here", file=sys.stderr, flush=True)
            os._exit(3)
"""


def test_another_process_that_died_is_started_again_and_so_is_one_of_other_surroundings(site, monkeypatch) -> None:
    site("mmrl-dies", {"mmrl_dies.py": DIES}, {"dies": "mmrl_dies"})
    with pytest.raises(CheckFailed, match="another process can't make the rows: it is over here"):
        other_process.rows_in_subprocess("dies/here", {}, ["train"], 3)
    with pytest.raises(CheckFailed, match="no task 'dies/none'"):
        other_process.rows_in_subprocess("dies/none", {}, ["train"], 3)
    kept = other_process._process
    monkeypatch.setenv("SOMETHING", "else")
    with pytest.raises(CheckFailed, match="no task 'dies/none'"):
        other_process.rows_in_subprocess("dies/none", {}, ["train"], 3)
    assert other_process._process is not kept and kept.popen.poll() == 0, "which has ended"


def test_tasks_may_print_and_read_in_another_process(site) -> None:
    site("mmrl-dies", {"mmrl_dies.py": DIES}, {"dies": "mmrl_dies"})
    for _ in range(2):  # what is printed after an answer is no answer to the next request
        assert len(other_process.rows_in_subprocess("dies/talks", {}, ["train", "test"], 3)["test"]) == 1


def test_an_answer_nobody_waited_for_is_not_taken_for_another(monkeypatch) -> None:
    monkeypatch.setattr(other_process, "PROGRAM", "signal:pause")
    slow = other_process.RowProcess()
    with pytest.raises(TimeIsUp), time_limit(0.2):
        slow.ask({"id": "toy/colour"})
    assert not slow.is_current()
    slow.close()


def test_another_process_that_is_busy_ends_too(monkeypatch) -> None:
    monkeypatch.setattr(other_process, "PROGRAM", "signal:pause")
    monkeypatch.setattr(other_process, "PATIENCE_S", 0.1)
    busy = other_process.RowProcess()
    busy.close()
    assert busy.popen.returncode == -signal.SIGKILL


def test_what_depends_on_the_process_is_found(site) -> None:
    site("mmrl-sets", {"mmrl_sets.py": HASH_ORDER}, {"sets": "mmrl_sets"})
    (report,) = check_id("sets/letters")
    assert "differs from another process: the order of a set" in failed(report)["same_in_another_process"]
    assert failed(report)["verifiers_score_gold_highest"].startswith("no verifier 'sets/none'")
    (report,) = check_id("sets/drawn")
    assert failed(report)["same_in_another_process"].endswith(": they differ in one process already: correct that first")
    (report,) = check_id("sets/sorted")
    assert report.ok, str(report)


PUBLISHED = """
    import json
    from PIL import Image
    from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message
    from mmrl.api.coordinates import CoordinateFormat, convert_coordinates

    @hookimpl
    def mmrl_tasks():
        rewards = {"paper/box@peer": 1.0, "paper/never": 0.5}
        return [TaskSpec(id="paper/where", target="mmrl_paper:Where", verifiers=rewards, metric="paper/box@peer")]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id=f"paper/{name}", target=f"mmrl_paper:{name[:3]}") for name in ("box@peer", "never")]

    class Where(Task):
        def prompts(self, split, seed):
            shown = Image.new("RGB", (100, 80), (9, 9, len(split)))
            return [Prompt(id=split, messages=[user_message("Where?", shown)], answer=[1, 2, 30, 40])]

        def gold(self, prompt):
            seen, size = self.image_processing, (100, 80)
            format, there = seen.coordinate_format, seen.model_size(size)
            return json.dumps(list(convert_coordinates(prompt.answer, CoordinateFormat.PIXELS, format, size, there)))

    def box(case):
        return float(json.loads(case.completion or "[]") == case.answer)

    def nev(case):
        return 0.0
"""


def test_a_remark_on_a_published_verifier_hides_no_fault_of_the_next(site) -> None:
    """The published one reads pixels only, which is told and no fault; the other one never pays."""
    site("mmrl-paper", {"mmrl_paper.py": PUBLISHED}, {"paper": "mmrl_paper"})
    (report,) = check_id("paper/where")
    assert failed(report)["verifiers_score_gold_highest"].startswith("paper/never gives 0 to the gold completion")


NEEDS_OPTIONS = """
    from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="opt/upto", target="mmrl_opt:UpTo", verifiers={"opt/exact": 1.0})]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="opt/exact", target="mmrl_opt:exact")]

    class UpTo(Task):
        def __init__(self, last):
            self.last = last

        def prompts(self, split, seed):
            return [Prompt(id=f"{split}{i}", messages=[user_message(f"{split}: {i} + 100?")], answer=i + 100)
                    for i in range(self.last)]

    def exact(case):
        return float(case.completion == str(case.answer))
"""


def test_tasks_that_need_options_get_them(site) -> None:
    site("mmrl-opt", {"mmrl_opt.py": NEEDS_OPTIONS}, {"opt": "mmrl_opt"})
    needs = "task 'opt/upto' needs the option 'last'"
    for id in ("opt/upto", "opt/exact"):
        with pytest.raises(UserError, match=needs):
            check_id(id)
        assert check_id(id, options={"last": 5})[0].ok
    _, verifier = check_plugin("opt", options={"opt/upto": {"last": 5}})
    assert {"gold_scores_highest", "empty_scores_low"} < {r.name for r in verifier.results}
    with pytest.raises(AssertionError, match=f"task 'opt/upto' can't be built: {needs}: .*: give check_plugin options="):
        check_plugin("opt")
    (skipped,) = check_plugin("opt", skip=["opt/upto"])
    assert [(r.name, r.ok) for r in skipped.results] == [("rows_to_score_are_found", True)]
    assert "nothing to score" in skipped.results[0].note


def test_ids_lead_to_their_checks(site) -> None:
    site("mmrl-sets", {"mmrl_sets.py": HASH_ORDER}, {"sets": "mmrl_sets"})
    (report,) = check_id("sets/exact", n=4)
    assert (report.id, report.kind, report.ok) == ("sets/exact", "verifier", True), str(report)
    with pytest.raises(UserError, match="no installed task names verifier 'sets/lost': give the task to check it on with"):
        check_id("sets/lost")
    assert check_id("sets/lost", task="sets/sorted")[0].ok
    with pytest.raises(UserError, match=r"no verifier 'sets/exat'\. Did you mean 'sets/exact'"):
        check_id("sets/exat")
    with pytest.raises(AssertionError) as raised:
        check_plugin("sets", n=10, skip=["sets/drawn"])
    assert raised.traceback[-1].frame.f_locals["__tracebackhide__"] is True, "pytest would show the kit's code, not the rules"
    assert "task 'sets/letters' fails same_in_another_process: " in str(raised.value) and "sets/sorted" not in str(raised.value)
    assert [r.id for r in check_plugin("sets", skip=["sets/letters", "sets/drawn"])] == ["sets/sorted", "sets/exact", "sets/lost"]
    with pytest.raises(AssertionError, match="plugin 'gone' is not installed"):
        check_plugin("gone")


def exact(case: Case) -> float:
    return float(case.completion.strip() == case.answer)


state = {"n": 0}
AS_EXACT = VerifierSpec(id="count/exact", target="-:-", timeout_s=0.5)


def backtrack(case: Case) -> float:
    return float(bool(re.fullmatch(r"(a|a)*b", case.completion))) or exact(case)


def unstable(case: Case) -> float:
    state["n"] += 1
    return 1.0 if case.completion == case.answer else 0.1 * (state["n"] % 2)


def poking(case: Case) -> float:
    case.meta.setdefault("seen", []).append(case.completion)
    return exact(case)


def printing(case: Case) -> float:
    print("scoring")
    return exact(case)


def drawing(case: Case) -> float:
    return exact(case) * (random.random() < 2)


def raising_on(trouble: Callable[[str], bool]) -> Callable[[Case], float]:
    return lambda case: {}[case.completion] if trouble(case.completion) else exact(case)


def accepting(loose: Callable[[str, str], bool]) -> Callable[[Case], float]:
    return lambda case: float(loose(case.completion, case.answer))


VERIFIER_FAULTS = {
    "gold unknown": (
        "gold_scores_highest",
        lambda case: 0.0,
        "count/exact gives 0 to the gold completion 'one' of row 'train-0' and not high=1",
    ),
    "over the top": ("gold_scores_highest", lambda case: 2 * exact(case), "scores 2, outside of the spec's low=0 and high=1"),
    "not a number": ("gold_scores_highest", lambda case: float("nan"), "gives nan as its value: return a finite float"),
    "nothing": ("gold_scores_highest", lambda case: None, "gives None as its value"),
    "text": ("gold_scores_highest", lambda case: "1.0", "gives '1.0' as its value"),
    "a bad part": (
        "gold_scores_highest",
        lambda case: Score(exact(case), {"format": float("inf")}),
        "gives inf as its part 'format'",
    ),
    "a crash on gold": ("gold_scores_highest", lambda case: case.completion.index("x"), "raised ValueError"),
    "too slow": ("gold_scores_highest", lambda case: time.sleep(9), "took longer than timeout_s=0.5"),
    "below the floor": (
        "empty_scores_low",
        lambda case: exact(case) or -1.0,
        "an empty completion scores -1, outside of the spec's low=0",
    ),
    "half right": (
        "wrong_answer_scores_low",
        lambda case: exact(case) or 0.5 * (case.completion in WORDS),
        "scores 0.5, between low=0 and high=1: write graded=True in its spec",
    ),
    "empty is in everything": (
        "empty_scores_low",
        accepting(lambda c, a: c.strip() in a),
        "an empty completion scores 1, as much as gold",
    ),
    "empty crashes": (
        "empty_scores_low",
        lambda case: float(case.completion.split()[0] == case.answer and exact(case)),
        "raised IndexError",
    ),
    "all is right": (
        "wrong_answer_scores_low",
        accepting(lambda c, a: c in WORDS),
        "wrong answers score highest, such as row 'train-0', whose answer is 'one', accepts",
    ),
    "the label in the question": (
        "prompt_echo_scores_low",
        accepting(lambda c, a: c == a or c.startswith("How many")),
        "the prompt's text repeated scores 1",
    ),
    "the label anywhere": (
        "repeated_gold_scores_low",
        accepting(lambda c, a: set(c.split()) == {a}),
        "the gold completion 200 times scores 1",
    ),
    "any of many": (
        "listing_every_answer_scores_low",
        accepting(lambda c, a: c == a or (a in c.split() and len(c) < 40)),
        "a list of every row's gold scores 1",
    ),
    "slow on long": (
        "huge_scores_low",
        lambda case: exact(case) if len(case.completion) < 9999 else time.sleep(9),
        "a megabyte of garbage took longer than timeout_s=0.5",
    ),
    "a recursive parser": (
        "huge_scores_low",
        raising_on(lambda c: c.startswith("((((")),
        "a megabyte of garbage raised KeyError",
    ),
    "NUL crashes": ("nul_scores_low", raising_on(lambda c: "\0" in c), "gold between NUL characters raised KeyError"),
    "digits that are none": (
        "non_ascii_scores_low",
        lambda case: (
            exact(case)
            if not any(map(str.isdigit, case.completion.replace("1", "")))
            else next(int(c) for c in case.completion if c.isdigit())
        ),
        "non-ASCII text raised ValueError",
    ),
    "a counter": ("same_case_gives_same_score", unstable, "in three calls: use no random numbers"),
    "the global generator": ("global_random_state_is_untouched", drawing, "changed the global generator of random"),
    "a note in meta": ("input_is_not_changed", poking, "scoring a gold completion changed the case's answer or meta"),
    "a print": ("prints_nothing", printing, "it printed 'scoring"),
}


def sample(cls: type[Task] = Count, n: int = 8) -> list[tuple[Task, Prompt]]:
    made = cls()
    return [(made, p) for p in made.prompts("train", 0)[:n]]


def test_a_verifier_without_faults_passes() -> None:
    report = check_verifier(AS_EXACT, sample(), exact)
    assert failed(report) == {} and len(report.results) == len(verifier_checks.CHECKS) + 1


@pytest.mark.parametrize("fault", VERIFIER_FAULTS)
def test_a_planted_fault_in_a_verifier_is_found(fault: str) -> None:
    name, verify, message = VERIFIER_FAULTS[fault]
    spec = replace(AS_EXACT, graded=verify is unstable)
    found = failed(check_verifier(spec, sample(), verify))
    assert message in found.get(name, f"nothing by {name} but {found}")
    if name != "empty_scores_low" and fault != "half right":  # nothing, and wrong answers, are said in several of the checks
        assert set(found) == {name}, found


def test_every_check_of_verifiers_has_a_planted_fault() -> None:
    planted = {name for name, _, _ in VERIFIER_FAULTS.values()}
    planted |= {"gold_scores_highest_in_every_coordinate_format"}  # below
    assert planted == {c.__name__ for c in (verifier_checks.gold_scores_highest, *verifier_checks.CHECKS)}


def test_a_catastrophic_pattern_is_stopped() -> None:
    start = time.monotonic()
    found = failed(check_verifier(AS_EXACT, sample(), backtrack))
    assert "took longer than timeout_s=0.5" in found["huge_scores_low"] and time.monotonic() - start < 20


def test_published_verifiers_may_be_lenient_but_not_crash() -> None:
    published = VerifierSpec(id="count/contains@peer", target="-:-", timeout_s=0.5)
    report = check_verifier(published, sample(), accepting(lambda c, a: a in c))
    assert report.ok
    notes = {r.name: r.note for r in report.results}
    assert notes["listing_every_answer_scores_low"].startswith("as published: a list of every row's gold scores 1")
    assert not check_verifier(published, sample(), raising_on(lambda c: "\0" in c)).ok


def test_a_format_reward_need_not_know_the_answer() -> None:
    report = check_verifier(AS_EXACT, sample(), accepting(lambda c, a: c in WORDS), is_metric=False)
    assert report.ok and "fine for a format reward" in {r.name: r.note for r in report.results}["wrong_answer_scores_low"]


def boxes() -> tuple[type[Task], Callable[[Case], float]]:
    """The guide's task with boxes, with rows, and its verifier."""
    found: dict[str, Any] = {}
    (code,) = [block for block in re.findall("```python\n(.*?)```", guide.TEXT, re.DOTALL) if "def box_iou" in block]
    exec(code, found)

    class Where(found["Where"]):
        def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
            return LazyPrompts(range(8), lambda i: self.row(split, i))

        def row(self, split: str, i: int) -> Prompt:
            picture = Image.new("RGB", (90, 60), (i, len(split), 9))
            box = [10 * i, 3 + i, 10 * i + 9, 50]
            return Prompt(id=f"{split}-{i}", messages=[user_message("Where?", picture)], answer=box, meta={"boxes": [box]})

    return Where, found["box_iou"]


def test_the_guides_box_verifier_passes() -> None:
    where, box_iou = boxes()
    report = check_verifier(replace(AS_EXACT, graded=True), sample(where), box_iou)
    assert failed(report) == {} and failed(check_task(SPEC, where)) == {}


@pytest.mark.parametrize(
    "blind",
    [
        lambda case: replace(case, coordinate_format=CoordinateFormat.PIXELS),
        lambda case: replace(case, model_sizes=case.image_sizes),
        lambda case: replace(case, coordinate_format=CoordinateFormat.MODEL_PIXELS),
    ],
    ids=["the frame", "the size as the model sees it", "all frames but one"],
)
def test_a_box_verifier_that_ignores_how_a_model_writes_is_found(blind: Callable[[Case], Case]) -> None:
    where, box_iou = boxes()
    found = failed(check_verifier(replace(AS_EXACT, graded=True), sample(where), lambda case: box_iou(blind(case))))
    assert set(found) == {"gold_scores_highest_in_every_coordinate_format"}
    message = found["gold_scores_highest_in_every_coordinate_format"]
    assert re.search(
        "gives 0[.0-9]* to the gold completion '.*' of row 'train-0' and not high=1, for a model that writes", message
    )
    assert message.endswith(
        "convert between case.coordinate_format and the pixels of the answer with mmrl.api.coordinates.convert_coordinates"
    )
    published = VerifierSpec(id="count/box@peer", target="-:-", timeout_s=0.5, graded=True)
    lenient = check_verifier(published, sample(where), lambda case: box_iou(blind(case)))
    assert lenient.ok and any(r.note.startswith("as published: count/box@peer gives 0") for r in lenient.results)


def test_a_task_keeps_its_image_processing() -> None:
    where, box_iou = boxes()
    made = where()
    made.image_processing = ImageProcessing(CoordinateFormat.THOUSANDTHS)
    check_verifier(AS_EXACT, [(made, p) for p in made.prompts("train", 0)], box_iou)
    assert made.image_processing == ImageProcessing(CoordinateFormat.THOUSANDTHS)


class Dots(Task):
    """Answers of several parts, of which one is the same in all rows."""

    form: Any = dict

    def prompts(self, split: str, seed: int) -> list[Prompt]:
        answers = [(("n", i % 4), ("side", "right" if i & 4 else "left"), ("unit", "dots")) for i in range(16)]
        made = [dict(pairs) if self.form is dict else [value for _, value in pairs] for pairs in answers]
        return [Prompt(id=str(i), messages=[user_message(f"Row {i}?")], answer=answer) for i, answer in enumerate(made)]

    def gold(self, prompt: Prompt) -> str:
        n, side, _ = prompt.answer.values() if self.form is dict else prompt.answer
        return f"{n} {side}"


@pytest.mark.parametrize(("form", "place", "name"), [(dict, "n", "'n'"), (list, 1, "item 1")])
def test_a_verifier_of_a_part_of_the_answer_is_called_so(form: Any, place: Any, name: str) -> None:
    """It does compare with the answer, and is no format reward: the cure is another metric."""
    graded = VerifierSpec(id="dots/part", target="-:-", timeout_s=0.5, graded=True)
    rows = sample(type("Formed", (Dots,), {"form": form}), 16)

    def part(case: Case) -> float:
        said = re.fullmatch("([0-9]) (left|right)", case.completion)
        return float(said is not None and str(case.answer[place]) in said.groups())

    told = failed(check_verifier(graded, rows, part))["wrong_answer_scores_low"]
    cure = f"it reads only {name} of the answer: let a verifier of the whole answer be the task's metric"
    assert re.search(rf"such as row .*, accepts '\d \w+': {cure}$", told)
    notes = {r.name: r.note for r in check_verifier(graded, rows, part, is_metric=False).results}
    said = f"fine for a reward of a part of the answer ({name}), which is no task's metric"
    assert notes["wrong_answer_scores_low"].endswith(said)
    form_alone = accepting(lambda c, a: re.fullmatch("[0-9] (left|right)", c) is not None)
    told = failed(check_verifier(graded, rows, form_alone))["wrong_answer_scores_low"]
    assert told.endswith("compare the completion with case.answer")


def test_the_guides_answers_of_several_parts_pass_as_its_specs_say() -> None:
    found: dict[str, Any] = {}
    (code,) = re.findall("```python\n(.*?)```", guide.section("Answers of several parts"), re.DOTALL)
    exec(code, found)
    count, answer, task = found["SPECS"]
    for spec in (count, answer):
        verify = found[spec.target.partition(":")[2]]
        assert failed(check_verifier(spec, sample(Dots, 16), verify, is_metric=spec.id == task.metric)) == {}
    assert "wrong_answer_scores_low" in failed(check_verifier(count, sample(Dots, 16), found["count"]))


def test_a_lenient_tolerance_is_a_note() -> None:
    class Numbers(Task):
        def prompts(self, split: str, seed: int) -> list[Prompt]:
            return [Prompt(id=str(i), messages=[user_message(f"Row {i}?")], answer=str(100 * i + 1000)) for i in range(30)]

    near = accepting(lambda c, a: c.isdigit() and c.isascii() and len(c) < 9 and abs(int(c) - int(a)) <= 100)
    notes = {r.name: r.note for r in check_verifier(AS_EXACT, sample(Numbers, 30), near).results}
    assert "wrong answers score highest: row" in notes["wrong_answer_scores_low"]


def test_no_rows_is_bad_input() -> None:
    with pytest.raises(UserError, match="no rows to check verifier 'count/exact' on"):
        check_verifier(AS_EXACT, [], exact)


def test_the_fixtures(check_plugin: Callable[..., Any], mmrl_registry: Any) -> None:
    assert check_plugin("mmrl") == [], "the core brings no tasks and no verifiers"
    assert mmrl_registry.plugins[0].name == "mmrl"
