"""The samples in every form: what is right earns all that each system pays, and the tasks keep the rules of `mmrl check`."""

import importlib
from pathlib import Path

import pytest

from mmrl import Case, UserError
from mmrl.registry import plugins
from mmrl.testing.kit import check_task

SAMPLES = Path(__file__).parents[3] / "assets" / "samples" / "video"
TABLES = {
    "temporal-data": ("charades_sta.txt", "activitynet.json", "time_r1.json"),
    "qa-data": ("video_r1.json", "next_qa.csv", "seed_bench_r1.jsonl", "video_rts.jsonl"),
    "qa-data@video-rts": ("video_rts.jsonl", "next_qa.csv", "seed_bench_r1.jsonl"),
    "qa-data@seed-bench-r1": ("seed_bench_r1.jsonl",),
    "grounded-data": ("next_gqa.json",),
    "tracking-data": ("got_10k.json", "tracking.jsonl"),
}
COUNTS = {"video_r1.json": 9, "next_gqa.json": 3, "got_10k.json": 3, "tracking.jsonl": 3}
IDS = sorted(id for id in plugins.registry().specs("tasks") if id.startswith("video/") and "-data" in id)


def tables(id):
    name = id.removeprefix("video/")
    return TABLES.get(name) or TABLES[name.partition("@")[0]]


def options(file, **more):
    return {"path": str(SAMPLES / file), "videos": str(SAMPLES), "shares": {"test": 1}, **more}


def paid(id, case):
    spec = plugins.registry().get("verifiers", id)
    module, name = spec.target.split(":")
    found = getattr(importlib.import_module(module), name)(case, **spec.options)
    return getattr(found, "value", found), spec.high


def test_every_table_serves_a_task_and_every_task_has_one():
    assert len(IDS) == 13
    named = {file for id in IDS for file in tables(id)}
    assert named | {"temporal_r1_scores.jsonl"} == {p.name for p in SAMPLES.iterdir() if p.is_file()}  # what a pilot saw of one


@pytest.mark.parametrize("id", IDS)
def test_what_is_right_earns_all_and_nothing_is_left_out(id):
    spec = plugins.registry().get("tasks", id)
    for file in tables(id):
        for style in ("short", "tags") if "@" not in id else (spec.options["style"],):
            task = plugins.registry().make_task(id, options(file, style=style))
            prompts = list(task.prompts("test", 0))
            assert len(prompts) == COUNTS.get(file, 4)
            for prompt in prompts:
                gold = task.gold(prompt)
                for verifier in {*spec.verifiers, spec.metric}:
                    value, high = paid(verifier, Case(completion=gold, answer=prompt.answer, meta=prompt.meta))
                    assert value == pytest.approx(high, abs=1e-6), (verifier, gold)


def test_forms_of_the_same_samples_agree():
    def answers(id, file):
        task = plugins.registry().make_task(id, options(file))
        return {str(p.videos[0].path).rsplit("/", 1)[1]: p for p in task.prompts("test", 0)}

    first, *others = [answers("video/temporal-data", file) for file in TABLES["temporal-data"]]
    assert all({k: p.answer for k, p in one.items()} == {k: p.answer for k, p in first.items()} for one in others)
    chosen = [answers("video/qa-data", file) for file in ("next_qa.csv", "seed_bench_r1.jsonl", "video_rts.jsonl")]
    said = [{k: p.meta["options"]["ABCD".index(p.answer)] for k, p in one.items()} for one in chosen]
    assert said[0] == said[1] == said[2] and len(said[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_the_tasks_keep_the_rules(id):
    shares = {"train": 0.5, "test": 0.5}
    for seed in range(20):  # few clips: with most seeds each split has some
        try:
            report = check_task(
                plugins.registry().get("tasks", id), n=8, options=options(tables(id)[0], shares=shares, seed=seed)
            )
        except UserError as error:
            assert "is empty" in str(error)
            continue
        assert report.ok, str(report)
        return
    raise AssertionError("no seed gives each split a clip")
