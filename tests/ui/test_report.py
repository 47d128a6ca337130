"""The static report. `python tests/ui/test_report.py runs/fake` writes a realistic run to look at."""

from __future__ import annotations

import base64
import fnmatch
import io
import json
import math
import random
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mmrl import UserError, user_message
from mmrl.run_folder import files, metrics
from mmrl.run_folder.writer import ENDED, RunFolder
from mmrl.ui.board import pages as board_pages
from mmrl.ui.board.state import state
from mmrl.ui.cli import main
from mmrl.ui.report import cards, charts, gallery, svg, text
from mmrl.ui.report.media_sources import EmbeddedMedia
from mmrl.ui.report.report import write_report
from pages import Page, assert_self_contained, page_of
from runs import figure

CONFIG = {
    "seed": 1,
    "tasks": [{"id": "classification/digits"}],
    "policy": {"model": "tiny:qwen2_5_vl"},
    "stages": [{"kind": "sft", "steps": 60}, {"kind": "rl", "steps": 250, "group_size": 8}],
}


def wilson(right: int, n: int) -> tuple[float, float]:
    p, z = right / n, 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def fake_run(path: Path, sft: int = 60, rl: int = 250, seed: int = 1) -> RunFolder:
    """A run that looks like digits trained by GRPO, with images, spikes and failures, written by RunFolder."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits, draw = load_digits(), random.Random(seed)
    pictures = [
        Image.fromarray((255 - image * 15.9).astype("uint8")).resize((112, 112), Image.Resampling.NEAREST)
        for image in digits.images[:200]
    ]
    run = RunFolder.create(path, CONFIG, seed)
    results = {}

    def evaluate(step: int, stage: str, accuracy: float) -> dict[str, Any]:
        low, high = wilson(right := round(accuracy * 397), 397)
        result = {"metric": "accuracy", "value": right / 397, "low": low, "high": high, "n": 397}
        run.evaluation(step, stage, {"task": "classification/digits", "split": "test", **result, "extra": {}})
        results[step] = result
        return {"classification/digits": result}

    for step in range(1, sft + 1):
        run.metrics(
            step,
            "sft",
            {
                "loss": 2.3 * math.exp(-step / 18) + 0.35 + draw.gauss(0, 0.05),
                "learning_rate": 1e-3 * min(step / 10, 1),
                "grad_norm": 1.5 + draw.random(),
                "time/process": 0.02,
                "time/update": 0.11,
                "time/step": 0.13,
            },
        )
    before = evaluate(sft, "sft", 0.766)
    for i in range(1, rl + 1):
        step, done = sft + i, 1 - math.exp(-i / 70)
        skill = 0.70 + 0.25 * done
        noise = draw.gauss(0, 0.035)
        run.metrics(
            step,
            "rl",
            {
                "reward/mean": min(skill * 1.1 + noise, 1.1),
                "reward/std": 0.42 - 0.25 * done + draw.gauss(0, 0.02),
                "reward/classification/exact": min(skill + noise, 1.0),
                "reward/classification/answer": min(0.8 + 0.2 * done + noise / 3, 1.0),
                "length/mean": 4.4 - 1.8 * done + draw.gauss(0, 0.1),
                "length/max": 12 - 5 * done + draw.choice([0, 1, 2]),
                "length/truncated_share": max(0.04 * (1 - done) + draw.gauss(0, 0.004), 0),
                "entropy": 0.9 * math.exp(-i / 110) + 0.08 + abs(noise) / 4,
                "kl": 0.03 * done + abs(draw.gauss(0, 0.002)),
                "clip_share": abs(draw.gauss(0.01, 0.006)),
                "zero_std_share": (idle := min(0.3 + 0.45 * done + draw.gauss(0, 0.06), 1)),
                "answers/most_common_share": 0.3 - 0.1 * done + draw.choice([0.0, 0.05]),
                "task/classification/digits/reward": min(skill * 1.1 + noise, 1.1),
                "task/classification/digits/zero_std_share": idle,
                "loss": draw.gauss(0, 0.02),
                "grad_norm": 0.8 + draw.random() * 0.5 + (25 if i == 140 else 0),
                "learning_rate": 3e-4,
                "logprob_gap": abs(draw.gauss(0, 3e-7)),
                "judge/failed_share": 0.0078 if i in (33, 90, 91) else 0.0,
                "time/process": 0.012,
                "time/generate": 0.12 + draw.random() * 0.02,
                "time/judge": 0.012,
                "time/update": 0.21 + draw.random() * 0.03,
                "time/other": 0.01,
                "time/step": 0.38,
            },
        )
        if i in (33, 90, 91):
            run.error(step, "classification/answer", "TimeoutError: no verdict within 5 s")
        if i % 50 == 0:
            evaluate(step, "rl", skill + 0.015 + draw.gauss(0, 0.006))
        if i % 10 == 0 or i == 1:
            run.rollouts(step, fake_rollouts(draw, pictures, digits.target, skill))
    best = max((r for s, r in results.items()), key=lambda r: r["value"])
    run.summary(
        {
            "status": "finished",
            "before": before,
            "best": {"classification/digits": best},
            "last": {"classification/digits": results[max(results)]},
            "peak_memory_mb": 1312,
            "seconds": {"total": 128.4, "generate": 32.1, "judge": 3.2, "update": 61.5, "process": 4.9, "other": 26.7},
        }
    )
    return run


def fake_rollouts(draw: random.Random, pictures: list[Any], targets: Any, skill: float) -> list[dict[str, Any]]:
    rows = []
    for group in range(8):
        item = draw.randrange(len(pictures))
        truth = str(targets[item])
        prompt = user_message("Which digit is shown? Answer with <answer>digit</answer>.", pictures[item])
        wrong = draw.sample([d for d in "0123456789" if d != truth], 2)
        values = []
        for _ in range(8):
            digit = truth if draw.random() < skill else draw.choice(wrong)
            text = draw.choice([f"<answer>{digit}</answer>"] * 5 + [f"The digit is {digit}"])
            parts = {"classification/exact": float(digit == truth), "classification/answer": float("<answer>" in text)}
            values.append((text, parts["classification/exact"] + 0.1 * parts["classification/answer"], parts))
        mean = sum(v for _, v, _ in values) / 8
        std = math.sqrt(sum((v - mean) ** 2 for _, v, _ in values) / 8)
        for text, value, parts in values:
            rows.append(
                {
                    "task": "classification/digits",
                    "prompt_id": f"digits-{item}",
                    "group": group,
                    "messages": [prompt],
                    "answer": truth,
                    "completion": text,
                    "tokens": len(text) // 4,
                    "status": "finished",
                    "advantage": (value - mean) / (std + 1e-4),
                    "score": {"value": value, "parts": parts, "detail": "", "status": "ok"},
                }
            )
    return rows


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG, 1)


def rollout(completion: str = "7", value: float | None = 1.0, group: int = 0, **more: Any) -> dict[str, Any]:
    score = {"value": value, "parts": {}, "detail": "", "status": "ok"}
    return {
        "task": "t/a",
        "prompt_id": "p",
        "group": group,
        "messages": [user_message("which?")],
        "answer": "7",
        "completion": completion,
        "tokens": 1,
        "status": "finished",
        "advantage": 0.0,
        "score": score,
    } | more


# -- whole reports ------------------------------------------------------------------------------------------------------


def test_a_whole_run(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "digits run", sft=30, rl=60)
    page = page_of(run)
    assert_self_contained(page)
    assert (run.path / "report.html").stat().st_size < 1_000_000
    titles = page.texts("h3")
    assert titles[:4] == ["classification/digits", "Evaluation", "Where the time went", "Reward"]
    expected = [
        "Spread of rewards",
        "Reward by part",
        "Completion length",
        "Cut off",
        "Entropy",
        "Same answer to different prompts",
        "KL",
        "Clipped tokens",
        "Groups without spread",
        "Loss (sft)",
        "Loss (rl)",
        "Gradient norm (sft)",
        "Gradient norm (rl)",
        "Learning rate (sft)",
        "Learning rate (rl)",
        "Sampler and learner disagree by",
        "Failed scores",
        "Seconds per step",
    ]
    assert titles[4:22] == expected
    assert [t for t in titles if t.startswith("Step ")] == [f"Step {s}" for s in (31, 40, 50, 60, 70, 80, 90)]
    assert "76.6%" in page.texts("b")  # 304 of 397 before
    assert page.count("svg") - page.count("svg", "gauge") == 1 + 1 + len(expected)
    assert page.count("button", "picture") == 7 * 8
    assert page.texts("td") == ["1", "63", "classification/answer"]  # 30 + 33; the failures at 90 and 91 lie after the end
    assert "finished" in page.texts("span")


def test_a_run_that_failed_or_goes_says_so_and_what_lay_between_its_steps(run: RunFolder) -> None:
    row = {"step": 1, "stage": "rl", "time": 100.0, "metrics": {"time/generate": 30.0, "time/update": 20.0}}
    (run.path / "metrics.jsonl").write_bytes(files.line(row))
    page = page_of(run)
    assert "not finished" in page.texts("span") and "50 s" in page.texts("b") and "between steps" in page.texts("span")
    run.error(1, ENDED, "out of memory")
    assert "failed" in page_of(run).texts("span")
    run.summary({})
    assert "finished" in page_of(run).texts("span")


def test_answers_have_no_more_digits_than_one_sees() -> None:
    answer = {"box": [278.203125, 1313.109375, 380, -0.00012345, True, "1.23456"], "x": (math.inf, None)}
    assert text.rounded(answer) == {"box": [278.2, 1313, 380, -0.0001234, True, "1.23456"], "x": [math.inf, None]}


def test_before_best_and_last_are_drawn_where_they_belong(run: RunFolder) -> None:
    run.metrics(1, "rl", {"reward/mean": 0.5})
    result = {"metric": "accuracy", "n": 100}
    extra = {"harmonic_mean": 0.625, "worst": None, "episode/intervened": 1.0}
    run.summary(
        {
            "status": "stopped",
            "before": {"t/a": {**result, "value": 0.5, "low": 0.4, "high": 0.6}},
            "best": {"t/a": {**result, "value": 0.9, "low": 0.8, "high": 0.95}},
            "last": {"t/a": {**result, "value": 0.8, "low": 0.7, "high": 0.9, "extra": extra}},
            "seconds": {"total": 125.0, "generate": 75.0, "update": 25.0},
            "peak_memory_mb": 2048,
        }
    )
    html = write_report(run.path).read_text()
    page = Page(html)
    assert '<span class="up">+30.0 points</span>' in html
    assert "stopped" in page.texts("span")
    assert "80.0% " in page.texts("p")
    # the axis of a share goes from 0 to 1 on every card
    left = [style for tag, a in page.elements if tag == "u" and (style := a.get("style"))]
    assert left[:3] == [f"left:{100 * v:.1f}%" for v in (0.5, 0.9, 0.8)]
    bars = [style for tag, a in page.elements if tag == "i" and (style := a.get("style")) and "left" in style]
    assert bars[0] == "left:40.0%;width:20.0%"
    assert '<li class="ends"><span>0.0%</span><span>100.0%</span></li>' in html
    grow = [style for tag, a in page.elements if tag == "i" and (style := a.get("style")) and "grow" in style]
    assert grow == ["flex-grow:0.7500", "flex-grow:0.2500"]
    assert {"2 min 05 s", "2.0 GB"} <= set(page.texts("dd"))
    assert "harmonic mean " in page.texts("span")
    assert (
        "another took over in 100% of the episodes, whose success is not the policy's alone: there are no others"
        in page.texts("p")
    )
    assert "0.625" in page.texts("b")
    assert "worst" not in html.split("Where the time went")[0].split("</style>")[-1]


def test_the_list_sorts_by_what_is_shown_and_what_is_unknown_has_nothing_to_sort_by(run: RunFolder) -> None:
    """A text among numbers, such as None, would make the board sort the column as text."""

    def values() -> dict[str, str]:
        row = board_pages.row(state("a", run.path))
        return dict(re.findall('data-field="(eval|reward|left)"[^>]* data-value="(.*?)"', row))

    unknown = dict.fromkeys(("value", "low", "high"))
    run.evaluation(0, "rl", {"task": "t/a", "split": "test", "metric": "accuracy", **unknown, "n": 0})
    assert values() == {"eval": "", "reward": "", "left": ""}
    run.metrics(1, "rl", {"reward/mean": 0.5})
    assert values()["reward"] == "0.5" and float(values()["left"]) == state("a", run.path).seconds


@pytest.mark.parametrize(("metric", "axis"), [("accuracy", "100.0%"), ("success", "100.0%"), ("toy/sum", "0.612")])
def test_a_share_is_shown_as_one_on_cards_charts_and_in_the_list(run: RunFolder, metric: str, axis: str) -> None:
    figure_ = {"task": "t/a", "split": "test", "metric": metric, "value": 0.5, "low": 0.4, "high": 0.6, "n": 100}
    run.evaluation(1, "rl", figure_ | {"extra": {}})
    run.summary({"status": "finished", "last": {"t/a": figure_}})
    html, row = write_report(run.path).read_text(), board_pages.row(state("a", run.path))
    card = html.split('<article class="card result">')[1].split("</article>")[0]
    assert f"<span>{axis}</span></li>" in card and f'<p class="hint">{metric}, 100 prompts' in card
    shown = "50.0%" if axis == "100.0%" else "0.5"
    assert f'<p class="figure">{shown} ' in card and f'<output title="latest value">{shown}</output>' in html
    assert f"<b>{shown}</b> {metric}<small>" in row


@pytest.mark.parametrize(
    ("first", "last", "css"),
    [
        ((0.40, 0.50, 0.60), (0.403, 0.503, 0.603), ""),
        ((0.40, 0.50, 0.60), (0.6, 0.7, 0.8), ""),  # they touch
        ((0.40, 0.50, 0.60), (0.61, 0.7, 0.8), "up"),
        ((0.40, 0.50, 0.60), (0.2, 0.3, 0.39), "down"),
        ((0.40, 0.50, 0.60), (0.2, 0.3, 0.5), ""),
        ((None, 0.50, None), (None, 0.503, None), "up"),
    ],
)
def test_a_change_has_a_colour_only_where_the_intervals_are_apart(run: RunFolder, first: Any, last: Any, css: str) -> None:
    figures = [dict(zip(("low", "value", "high"), each, strict=True)) | {"metric": "accuracy", "n": 9} for each in (first, last)]
    run.summary({"status": "finished", "before": {"t/a": figures[0]}, "last": {"t/a": figures[1]}})
    (found,) = re.findall(r'<span class="(\w*)">[+-][0-9.]+ points</span>', write_report(run.path).read_text())
    assert found == css


@pytest.mark.parametrize(
    ("metric", "value", "ends", "left"),
    [
        ("grounding/giou", 0.0, ("-1", "1"), "50.0%"),  # from -1, as its spec says
        ("accuracy@vision-reasoner", 1.5, None, "50.0%"),
        ("grounding/accuracy@vision-reasoner", 1.5, ("0", "3"), "50.0%"),
        ("grounding/iou", 1.5, None, "50.0%"),  # outside its own bounds
        ("interop/trl", 0.5, None, "50.0%"),  # its bounds are no axis
        ("nobody/knows", 0.5, None, "50.0%"),
    ],
)
def test_bars_go_from_end_to_end_of_the_metric(run: RunFolder, metric: str, value: float, ends: Any, left: str) -> None:
    figure_ = {"metric": metric, "value": value, "low": value - 0.1, "high": value + 0.1, "n": 9}
    run.summary({"status": "finished", "last": {"t/a": figure_}})
    html = write_report(run.path).read_text()
    (found,) = re.findall('<li class="ends"><span>(.*?)</span><span>(.*?)</span></li>', html)
    assert found == (ends or (svg.number(value - 0.112, ""), svg.number(value + 0.112, "")))
    assert f'<u style="left:{left}"></u>' in html


def test_a_run_that_is_still_going_takes_its_figures_from_the_rows(run: RunFolder) -> None:
    run.evaluation(0, "rl", figure("t/a", 0.5, 100))
    for step, value in ((1, 0.9), (2, 0.7)):
        run.metrics(step, "rl", {"reward/mean": value, "time/generate": 1.0, "time/update": 3.0, "time/step": 4.0})
        run.evaluation(step, "rl", figure("t/a", value, 100))
    page = page_of(run)
    assert "not finished" in page.texts("span")
    assert [b for b in page.texts("b") if b.endswith("%")][:3] == ["50.0%", "90.0%", "70.0%"]
    assert "+20.0 points" in page.texts("span")
    assert [a["style"] for tag, a in page.elements if tag == "i" and "grow" in (a.get("style") or "")] == [
        "flex-grow:0.2500",
        "flex-grow:0.7500",
    ]


def test_reports_of_runs_with_little_in_them(run: RunFolder) -> None:
    page = page_of(run)
    assert "No step is recorded yet." in page.texts("p")
    assert page.count("svg") == 0
    run.metrics(1, "sft", {"loss": 2.0, "learning_rate": 0.0})
    page = page_of(run)
    assert page.texts("h3")[:2] == ["Loss", "Learning rate"]  # no evaluation, no rollouts, no summary
    assert "Rollouts" not in page.texts("h2")
    assert page.count("svg") == 2
    for _, attrs in page.elements:
        assert "nan" not in (attrs.get("d") or "").lower()


def test_parts_of_episodes_have_intervals_in_the_card_and_in_the_table(run: RunFolder) -> None:
    extra = {"episode/chain_1": 0.8, "episode/return": 1.25, "episode/success": 0.5}
    bounds = {"episode/chain_1": [0.71, 0.87], "episode/return": [None, None], "episode/success": [0.4, 0.6]}
    figure = {"task": "t/a", "split": "test", "metric": "success", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    run.evaluation(4, "rl", {**figure, "extra": extra, "intervals": bounds})
    html = write_report(run.path).read_text()
    assert "<span>chain 1 <b>0.8</b> <small>0.71 to 0.87</small></span>" in html
    assert "<span>return <b>1.25</b></span>" in html, "its interval is unknown"
    assert "<th>Return</th><th>n</th>" in html and "<td><b>1.25</b></td><td>9</td>" in html
    row = html.partition('<tr class="part">')[2].partition("</tr>")[0]
    assert row.startswith("<th scope='row'>chain 1</th>") and 'style="left:71.0%;width:16.0%"' in row
    assert "<td><b>0.8</b><small>0.71 to 0.87</small></td><td></td><td></td>" in row and html.count('class="part"') == 1


def test_several_tasks_and_metrics_of_plugins(run: RunFolder) -> None:
    for step in (1, 2):
        run.metrics(
            step,
            "rl",
            {
                "reward/mean": 1,
                "reward/std": 0,
                "reward/story/plot": 1,
                "reward/t/exact": 1,
                "task/t/a/reward": 1,
                "task/t/b/reward": 0.5,
                "gripper/<force>": 3.0,
            },
        )
        for task in ("t/a", "t/b"):
            run.evaluation(step, "rl", figure(task, 0.5))
    page = page_of(run)
    assert page.texts("h3") == [
        "t/a",
        "t/b",
        "Evaluation",
        "Reward",
        "Spread of rewards",
        "Reward by part",
        "Reward by task",
        "gripper/<force>",
    ]
    legend = [name for name in page.texts("span") if "/" in name]
    assert legend[:6] == ["t/a accuracy (test)", "t/b accuracy (test)", "story/plot", "t/exact", "t/a", "t/b"]


def test_one_part_and_one_task_are_not_drawn_twice(run: RunFolder) -> None:
    run.metrics(1, "rl", {"reward/mean": 1.0, "reward/t/exact": 1.0, "task/t/a/reward": 1.0})
    assert page_of(run).texts("h3") == ["Reward"]


def test_what_is_said_of_the_only_task_is_said_of_all(run: RunFolder) -> None:
    own = {"reward": 1.0, "length": 5.0, "zero_std_share": 0.5, "reward/t/exact": 1.0, "reward/t/length": 0.5}
    whole = {"reward/mean": 1.0, "length/mean": 5.0, "zero_std_share": 0.5, "reward/t/exact": 1.0, "reward/t/length": 0.5}
    one = {f"task/t/a/{key}": value for key, value in own.items()}
    run.metrics(1, "rl", whole | one)
    drawn = ["Reward", "Reward by part", "Completion length", "Groups without spread"]
    assert page_of(run).texts("h3") == drawn
    run.metrics(2, "rl", whole | one | {key.replace("t/a", "t/b"): value for key, value in one.items()})
    page = page_of(run)
    assert [title for title in page.texts("h3") if title not in drawn] == [
        "Reward by part, of each task",
        "Reward by task",
        "Completion length by task",
        "Groups without spread, by task",
    ]
    names = ["t/a: t/exact", "t/a: t/length", "t/b: t/exact", "t/b: t/length", *["t/a", "t/b"] * 3]
    assert [name for name in page.texts("span") if name in names] == names


def test_what_no_chart_of_all_tasks_shows_is_drawn_of_the_only_task(run: RunFolder) -> None:
    weights = {f"task/t/a/weight/t/{part}": 1.0 for part in ("exact", "format")}
    own = {"task/t/a/curriculum": 0.2, "task/t/a/prompts": 90.0, **weights, "task/t/a/share": 1.0, "task/t/a/length": 5.0}
    run.metrics(1, "rl", {"length/mean": 5.0, "zero_std_share": 0.5, "task/t/a/zero_std_share": 0.5, **own})
    page = page_of(run)
    assert page.texts("h3") == [
        "Completion length",
        "Groups without spread",
        "Place of the curriculum",
        "Prompts of the epoch",
        "Factors of the verifiers' weights",
    ]
    assert [name for name in page.texts("span") if "t/a" in name] == ["t/a: t/exact", "t/a: t/format"]


def test_every_metric_of_the_run_folder_has_a_chart_with_words_of_its_own(run: RunFolder) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `([^`]+)` \|", docs.partition("### Metrics")[2].partition("\n## ")[0], re.MULTILINE)
    assert {"reward/mean", "divergence", "grad_norm/critic"} < set(keys)
    named = [k.replace("<verifier id>", v).replace("<task>", t) for k in keys for v in ("t/x", "t/y") for t in ("t/a", "t/b")]
    run.metrics(1, "rl", dict.fromkeys(named, 0.5))
    page = page_of(run)
    assert "Other metrics" not in page.texts("h2") and len(page.texts("h3")) > 25
    assert page.texts("h2")[:13] == [
        "Learning", "Behaviour", "Optimisation", "Critic", "Off-policy learning", "Critics of turns", "HG-DAgger", "RECAP",
        "Preferences", "Teacher and gold completions", "Images seen, masked and noisy", "Experts", "Health and speed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Held-out prompts, greedy."),
        ({"temperature": 0.0, "num_samples": 1}, "Held-out prompts, greedy."),
        ({"temperature": 0.5}, "Held-out prompts, 1 answer each at temperature 0.5."),
        ({"temperature": 1.0, "num_samples": 8}, "Held-out prompts, 8 answers each at temperature 1."),
    ],
)
def test_the_evaluation_says_how_it_was_answered(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    run = RunFolder.create(tmp_path / "run", {**CONFIG, "evaluate": settings}, 1)
    run.evaluation(0, "rl", figure("t/a", 0.5))
    (text,) = [p for p in page_of(run).texts("p") if p.startswith("Held-out")]
    assert text == f"{said} Bands are 95% intervals; overlapping ones do not show progress."


def test_values_that_are_not_numbers_are_gaps_with_a_note(run: RunFolder) -> None:
    for step in range(1, 6):
        run.metrics(step, "rl", {"loss": math.nan if step in (2, 3) else float(step), "kl": math.nan})
    page = page_of(run)
    assert page.texts("p").count("2 values are not a number") == 1
    assert page.texts("p").count("5 values are not a number") == 1
    paths = [a["d"] for tag, a in page.elements if tag == "path"]
    assert [path.count("M") for path in paths if path] == [2]  # 1, then 4 to 5


def test_thousands_of_steps_stay_small(run: RunFolder) -> None:
    rows = (
        files.line({"step": s, "stage": "rl", "time": s, "metrics": {"reward/mean": s % 7, "time/update": 1.0}})
        for s in range(1, 20_001)
    )
    (run.path / "metrics.jsonl").write_bytes(b"".join(rows))
    page = page_of(run)
    assert (run.path / "report.html").stat().st_size < 150_000
    for tag, attrs in page.elements:
        if tag == "path":
            assert 100 < (attrs["d"] or "").count("L") <= svg.MAX_POINTS


# -- hostile rollouts ---------------------------------------------------------------------------------------------------


HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></li></ol><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onclick='x",
    "<!--",
    "]]>",
    "</style><style>*{display:none}",
    "<base href=//evil.example>",
    "javascript:alert(1)",
    "&lt;b&gt; &amp;",
    "\x00\x1b[31m\u202egnp.exe",
    "\ud800 lone",
    "{{7*7}} ${7*7}",
    "<a href=http://evil.example>x</a>",
    "Z" + "\u0300" * 500,
    "</script><script src=//evil.example></script>",
]


def test_hostile_text_stays_text_wherever_it_comes_from(run: RunFolder) -> None:
    for i, evil in enumerate(HOSTILE, 1):
        run.metrics(
            i,
            evil,
            {
                evil: 1.0,
                f"reward/{evil}": 1.0,
                f"task/{evil}/reward": 1.0,
                "reward/x": 1.0,
                "task/x/reward": 1,
                f"time/{evil}": 1,
            },
        )
        run.evaluation(i, evil, {**figure(evil, 0.5), "split": evil, "metric": evil, "extra": {evil: 1.0}})
        run.error(i, evil, evil)
        score = {"value": None, "parts": {evil: 1.0}, "detail": evil, "status": evil}
        run.rollouts(
            i,
            [
                rollout(
                    evil,
                    answer={evil: evil},
                    task=evil,
                    prompt_id=evil,
                    status=evil,
                    score=score,
                    messages=[{"role": evil, "content": evil}, user_message(evil)],
                )
            ],
        )
    result = {"value": 1.0, "metric": HOSTILE[1], "n": 1}
    run.summary({"status": HOSTILE[0], "last": {HOSTILE[0]: result}, "seconds": {HOSTILE[1]: 1.0}})
    config = run.path / "config.toml"
    config.write_text(config.read_text() + "\nevil = '</pre><script>alert(2)</script>'\n")
    page = page_of(run)
    assert_self_contained(page)
    shown = gallery._spread(HOSTILE, gallery.STEPS)
    codes = {"\x00": "\\u0000", "\x1b": "\\u001b", "\u202e": "\\u202e"}
    assert page.texts("pre")[:-1] == ["".join(codes.get(c, c) for c in evil) for evil in shown]  # the last is the settings


def test_hostile_text_survives_every_escape() -> None:
    for evil in HOSTILE:
        safe = text.esc(evil)
        assert not set(safe) & set("<>\"'")
        safe.encode()
    assert text.esc("a\x00b\u202ec\ud800\n\t") == "a\\u0000b\\u202ec\\ud800\n\t"
    assert text.esc({"k": ["é", 1]}) == "{&quot;k&quot;: [&quot;é&quot;, 1]}"
    cut = text.esc("a" * 20 + "b" * 20 + "c" * 20, limit=8)
    assert cut == "aaaa<em> ... 52 characters left out ... </em>cccc"


def test_huge_completions_are_cut_and_the_page_stays_within_its_budget(run: RunFolder) -> None:
    from PIL import Image

    noise = random.Random(0)
    for step in range(1, 9):
        pictures = [Image.frombytes("RGB", (512, 512), noise.randbytes(512 * 512 * 3)) for _ in range(3)]
        run.rollouts(
            step,
            [
                rollout(f"{i}" * 200_000, group=g, messages=[user_message("which?", picture, picture)])
                for g, picture in enumerate(pictures)
                for i in range(2)
            ],
        )
    path = write_report(run.path)
    assert 2_000_000 < path.stat().st_size < gallery.BUDGET + 1_000_000
    page = Page(path.read_text())
    assert max(map(len, page.texts("pre"))) == cards.LONGEST // 2
    assert any("194,000 characters left out" in words for words in page.texts("em"))
    assert "all 200,000 characters" in page.texts("summary")
    sizes = {len(a["src"] or "") for tag, a in page.elements if tag == "img"}
    assert page.count("img") > 15 and max(sizes) > 3 * min(sizes), "where there is little room they are small"


@pytest.mark.slow
def test_a_report_of_the_longest_texts_can_be_mailed(run: RunFolder) -> None:
    """Texts that become six times as long in HTML, in every field, and noise as images."""
    from PIL import Image

    draw, noise = random.Random(0), Image.frombytes("RGB", (256, 256), random.Random(0).randbytes(256 * 256 * 3))
    for step in range(1, 8):
        said = ["<think>" + '"&' * 4000 + "</think>" + "".join(draw.choices("\"'<\u4e00", k=8000)) for _ in range(64)]
        asked = [user_message('"' * 9000, noise.rotate(90 * step), noise)]
        run.rollouts(step, [rollout(text, group=i // 8, messages=asked) for i, text in enumerate(said)])
    for step in range(1, 60):
        run.error(step, f"stage {step}", '"' * 4000, alarm="blind")
        run.error(step, f"p{step}", "<" * step + '"' * 4000)
    path = write_report(run.path)
    assert path.stat().st_size < 10_000_000
    page = page_of(run)
    assert page.count("article", "group") > 7 * 4 and page.count("img") > 7 * 4


@pytest.mark.parametrize("status", ["failed", "lost"])
def test_what_has_no_score_says_whether_its_score_failed_or_its_episode_was_lost(run: RunFolder, status: str) -> None:
    row = rollout("broken", value=None, advantage=None)
    shown = cards.group_card([{**row, "score": {**row["score"], "status": status}}], EmbeddedMedia(run.path, 1000))
    assert f'<div class="reward failed"><b>{status}</b></div>' in shown


def test_a_group_shows_its_best_and_worst_and_counts_equals(run: RunFolder) -> None:
    rows = [rollout(f"answer {i}", value=i / 10, advantage=i - 4.5) for i in range(10)]
    rows += [rollout("answer 9", value=0.9, advantage=4.5)] * 2 + [rollout("broken", value=None, advantage=None)]
    run.rollouts(1, rows)
    run.rollouts(2, [rollout("same", value=1.0), rollout("same too", value=1.0)])
    page = page_of(run)
    assert page.texts("pre")[:8] == [f"answer {i}" for i in (9, 8, 7, 6, 2, 1, 0)] + ["broken"]
    assert "3 others between these" in page.texts("li")
    assert "\u00d73" in page.texts("span")
    assert "failed" in page.texts("b")
    assert page.texts("p").count("Equal scores, zero advantages: this group adds nothing to the update.") == 1
    assert [b for b in page.texts("b") if b[0] in "+-"][:7] == ["+4.50", "+3.50", "+2.50", "+1.50", "-2.50", "-3.50", "-4.50"]


def episode(turns: list[str], picture: Any = None, **more: Any) -> dict[str, Any]:
    """A row of an episode with these turns; the environment replies to all but the last."""
    messages = [user_message("Draw it. " * 9, picture) if picture else user_message("Draw it. " * 9)]
    for i, turn in enumerate(turns[:-1], 1):
        reply = user_message(f"That was turn {i}.", picture) if picture else user_message(f"That was turn {i}.")
        messages += [{"role": "assistant", "content": turn}, reply]
    return rollout(turns[-1], **more) | {"messages": messages}


def test_each_episode_has_its_own_turns_under_its_answer(run: RunFolder) -> None:
    from PIL import Image

    picture = Image.new("RGB", (30, 30), (200, 30, 40))
    run.rollouts(
        1,
        [
            episode(["a1", "a2", "end"], picture, value=0.9),
            episode(["b1", "end"], picture, value=0.4),
            episode(["end"], picture, value=0.1),
        ],
    )
    html = write_report(run.path).read_text()
    page = Page(html)
    assert page.texts("pre")[:9] == [
        "a1",
        "That was turn 1.",
        "a2",
        "That was turn 2.",
        "end",
        "b1",
        "That was turn 1.",
        "end",
        "end",
    ]
    assert [s for s in page.texts("summary") if "turn" in s] == ["2 turns before this one", "1 turn before this one"]
    assert page.texts("small").count("prompt") == 1, "the prompt's picture stands beside all"
    assert [s for s in page.texts("small") if "turn" in s] == ["after turn 1", "after turn 2", "after turn 1"]
    asked = html.split('<div class="prompt">')[1].split('<div class="answers">')[0]
    assert "Draw it." in asked and "That was turn" not in asked and "a1" not in asked


def test_equal_last_turns_of_other_episodes_are_not_counted_together(run: RunFolder) -> None:
    run.rollouts(1, [episode(["a1", "end"]), episode(["b1", "end"]), episode(["b1", "end"])])
    page = page_of(run)
    assert page.texts("pre")[:6] == ["b1", "That was turn 1.", "end", "a1", "That was turn 1.", "end"]
    assert "\u00d72" in page.texts("span") and "\u00d73" not in page.texts("span")


def test_examples_in_a_prompt_are_no_turns(run: RunFolder) -> None:
    shots = [user_message("1 + 1?"), {"role": "assistant", "content": "2"}, user_message("2 + 2?")]
    run.rollouts(1, [rollout("4") | {"messages": shots}, rollout("5", value=0.0) | {"messages": shots}])
    page = page_of(run)
    assert page.texts("pre")[:2] == ["4", "5"] and not [s for s in page.texts("summary") if "turn" in s]


@pytest.mark.parametrize(
    ("detail", "names", "said"),
    [
        ("a/x: IoU 0.3; a/y: IoU 0.3; a/z: IoU 0.3", ["a/x", "a/y", "a/z"], "IoU 0.3"),
        ("a/x: IoU 0.3; a/y: none; a/z: IoU 0.3", ["a/x", "a/y", "a/z"], "a/x, a/z: IoU 0.3; a/y: none"),
        ("a/x: 1; 2; a/x/part: 1; 2", ["a/x", "a/x/part"], "1; 2"),
        ("a/x: IoU 0.3", ["a/x"], "a/x: IoU 0.3"),
        ("told by itself; a/x: so", ["a/x"], "told by itself; a/x: so"),
        ("a/x: so", [], "a/x: so"),
        ("", ["a/x"], ""),
    ],
)
def test_what_verifiers_say_alike_is_told_once(detail: str, names: list[str], said: str) -> None:
    assert cards._merged(detail, names) == said


@pytest.mark.parametrize(
    ("values", "advantages", "said"),
    [
        ([1.0, 1.0], [0.0, 0.0], "Equal scores, zero advantages: this group adds nothing to the update."),
        ([1.0, 1.0], [0.3, -0.3], "Equal scores, but nonzero advantages: the baseline includes other groups."),
        ([1.0, 0.0], [1.0, -1.0], None),
        ([1.0], [0.5], None),
        ([1.0, 0.0], [0.0, 0.0], "Zero advantages in spite of different scores: this group adds nothing to the update."),
        ([1.0, None], [0.0, None], "Zero advantages: this group adds nothing to the update."),
        ([1.0, 0.0], [None, None], "This group was left out of the update."),
        ([1.0, 1.0], [None, None], "Equal scores: this group was left out of the update."),
        ([None, None], [None, None], "No scores: this group adds nothing to the update."),
    ],
)
def test_what_a_group_taught_is_told_by_its_advantages(
    run: RunFolder, values: list[float | None], advantages: list[float | None], said: str | None
) -> None:
    run.rollouts(1, [rollout(str(i), v, advantage=a) for i, (v, a) in enumerate(zip(values, advantages, strict=True))])
    html = write_report(run.path).read_text()
    assert re.findall('<p class="flat">(.*?)</p>', html) == ([said] if said else [])


def test_rows_without_advantages_teach_what_nobody_knows() -> None:
    rows = [{key: value for key, value in rollout().items() if key != "advantage"}] * 2
    assert cards._lesson(rows) == ""


def test_completions_that_the_policy_did_not_write_alone_say_so(run: RunFolder) -> None:
    sources: list[Any] = ["policy", "gold", "hint", "<b>", ["gold"]]
    run.rollouts(1, [rollout("7", source=source) for source in sources[:3]])  # one text, but three sources
    run.rollouts(2, [rollout(str(i), source=source) for i, source in enumerate(sources[3:])] + [rollout("old")])
    page = page_of(run)
    assert page.texts("pre")[:3] == ["7"] * 3 and page.texts("b").count("gold completion") == 1
    assert page.texts("b").count("sampled with a hint") == 1


def test_pictures_outside_of_the_run_are_not_read(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"secret" * 9)
    (run.path / "rollouts" / "media" / "fake.png").write_bytes(b"GIF89a")
    names = ("../../secret.png", "media/../../../secret.png", "/etc/passwd", "media/gone.png", "media/fake.png")
    for step, path in enumerate(names, 1):
        run.rollouts(step, [rollout(messages=[{"role": "user", "content": [{"type": "image", "path": path}]}])])
    page = page_of(run)
    assert page.count("img") == 0
    assert page.texts("span").count("image is missing") == 4
    assert page.texts("span").count("not a PNG") == 1


def test_clips_of_a_prompt_stand_beside_it_and_those_of_episodes_beside_what_came_of_them(run: RunFolder) -> None:
    import numpy as np
    from PIL import Image

    from mmrl.api.media.clips import VideoFrames

    def clip(grey: int) -> VideoFrames:
        frames = np.full((2, 8, 8, 3), grey, np.uint8)
        frames[1] += 40
        return VideoFrames(frames_THWC=frames, times_s=(0.0, 1.0), duration_s=2.0)

    def page(*rows: dict[str, Any]) -> Page:
        run.rollouts(1, rows)
        return page_of(run)

    asked = user_message("in which order?", clip(0), clip(100))
    seen = page(*(rollout(say, messages=[asked], drawing=Image.new("RGB", (9, 9), say)) for say in ("red", "blue")))
    assert seen.count("button", "film") == 2  # both clips, once for the group
    assert sum((text or "").startswith("drawn") for text in seen.texts("small")) == 2  # and the image that each completion draws
    played = page(*(rollout(f"return {k}", messages=[user_message("pick", clip(k))]) for k in (10, 20, 30)))
    assert played.count("button", "film") == 3


def test_a_drawn_picture_is_as_large_as_there_is_room_for(tmp_path: Path) -> None:
    """All screens of an episode, unreadable at 448 pixels, are large; beyond the budget they shrink instead of vanishing."""
    from PIL import Image, ImageFilter

    noise = Image.effect_noise((1600, 1200), 90).filter(ImageFilter.GaussianBlur(2)).convert("RGB")
    (tmp_path / "media").mkdir()
    noise.save(tmp_path / "media" / "a.png")

    def shown(room: int) -> tuple[int, int]:
        html = cards._drawn({"drawing": "media/a.png"}, EmbeddedMedia(tmp_path, 8 * room), 4)
        (data,) = re.findall('base64,([^"]+)', html)
        assert len(data) <= room and 'width="448"' in html
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            return image.size

    assert [shown(room)[0] for room in (2_000_000, 200_000, 100_000, 30_000)] == [1600, 1120, 448, 224]
    assert cards._drawn({"drawing": "media/a.png"}, EmbeddedMedia(tmp_path, 1000), 1).count("left out for size: media/a.png") == 1


@pytest.mark.parametrize("chart", [c for _, listed in metrics.SECTIONS for c in listed if len(c.keys) > 1], ids=lambda c: c.title)
def test_a_legend_is_in_words(chart) -> None:
    labels = [charts.name_of(chart, key, True) for key in chart.keys]
    assert len({*labels}) == len(labels) and not any(set("_/*") & set(label) for label in labels)


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("preference/reward_chosen", "reward chosen"),
        ("reward/vqa/my_rule", "vqa/my_rule"),
        ("episode/lid_open", "lid_open"),
        ("task/t/a/reward/vqa/my_rule", "t/a: vqa/my_rule"),
        ("zero_std_share", "equal scores"),
    ],
)
def test_a_legend_keeps_names_that_people_gave(key, label) -> None:
    listed = (chart for _, section in metrics.SECTIONS for chart in section)
    chart = next(chart for chart in listed if any(fnmatch.fnmatchcase(key, pattern) for pattern in chart.keys))
    assert charts.name_of(chart, key, True) == label and charts.name_of(chart, key, False) == key


def test_what_came_of_episodes_has_charts_of_its_own() -> None:
    names = ("episode/success", "episode/refused", "episode/raw_reward", "episode/reward", "environment/lost", "episode/grasped")
    of = {}
    for _, listed in metrics.SECTIONS:
        for chart in listed:
            of |= {n: chart.title for n in names if n not in of and any(fnmatch.fnmatchcase(n, key) for key in chart.keys)}
    assert of == {
        "episode/success": "Success of episodes",
        "episode/refused": "Turns that were refused",
        "episode/raw_reward": "Return",
        "episode/reward": "Return",
        "environment/lost": "Episodes lost",
        "episode/grasped": "Parts of the task",
    }


# -- numbers and lines --------------------------------------------------------------------------------------------------


def test_numbers_for_people() -> None:
    assert [svg.number(v) for v in (0, 1, 0.123456, 99.96, 12345.6, 2.5e7, 0.00034, -0.5, None)] == [
        "0",
        "1",
        "0.123",
        "100",
        "12,346",
        "2.5e7",
        "3.4e-4",
        "-0.5",
        "no number",
    ]
    assert [svg.number(v, "%") for v in (0.0, 0.1234, 1.0)] == ["0.0%", "12.3%", "100.0%"]
    assert [text.duration(s) for s in (0.04, 59.4, 61, 3599, 7265)] == [
        "0.0 s",
        "59 s",
        "1 min 01 s",
        "59 min 59 s",
        "2 h 01 min",
    ]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (0.72, 0.97, (0.75, 0.8, 0.85, 0.9, 0.95)),
        (0, 26.2, (0, 10, 20)),
        (-0.06, 0.05, (-0.05, -0.025, 0, 0.025, 0.05)),
        (1e-7, 9e-7, (2e-7, 4e-7, 6e-7, 8e-7)),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert svg.nice_ticks(low, high) == pytest.approx(ticks)


def test_the_smallest_numbers_have_ticks_too() -> None:
    assert svg.nice_ticks(1e-16, 9e-16) == (2e-16, 4e-16, 6e-16, 8e-16)  # the KL of weights that have not moved
    assert svg.nice_ticks(0.0, 5e-324) == (0.0,)
    assert "no number" not in svg.line_chart([svg.Series(name="a", xs=[0, 1], ys=[0.0, 5e-324])])


@pytest.mark.parametrize("count", [2, 60])  # 60: with a running mean
def test_the_largest_numbers_are_drawn_at_the_edge(count: int) -> None:
    drawn = svg.line_chart([svg.Series(name="a", xs=range(count), ys=[1.7e308, -1.7e308] * (count // 2))])
    assert "10.0L" in drawn and "154.0" in drawn and not re.search("inf|nan", drawn)


def test_steps_have_whole_ticks() -> None:
    assert svg.nice_ticks(1, 4, whole=True) == (1, 2, 3, 4)
    assert svg.nice_ticks(61, 310, whole=True) == (100, 150, 200, 250, 300)


def test_a_line_goes_where_its_values_are() -> None:
    drawn = svg.line_chart([svg.Series(name="a", xs=[0, 5, 10], ys=[0.0, 0.5, 1.0])], zero=True)
    # x: 42..352 over 0..10; y: 154..10 over 0..1, because shares end at 1
    assert '<path class="line s1" d="M42.0 154.0L197.0 82.0L352.0 10.0"/>' in drawn
    assert 'aria-label="a: 0 at step 0, 1 at step 10"' in drawn
    band = svg.line_chart([svg.Series(name="a", xs=[0, 10], ys=[0.5, 0.5], low=[0.0, 0.25], high=[1.0, 0.75])])
    assert 'points="42.0,10.0 352.0,46.0 352.0,118.0 42.0,154.0"' in band
    alone = svg.line_chart([svg.Series(name="a", xs=[3], ys=[0.5])], zero=True)
    assert 'd="M197.0 ' in alone
    assert "h0" in alone


def test_stacked_areas_add_up() -> None:
    drawn = svg.stacked_chart(
        [svg.Series(name="a", xs=[0, 1], ys=[1.0, None]), svg.Series(name="b", xs=[0, 1], ys=[1.0, 2.0], color=2)]
    )
    floor, top = 154.0, round(154 - 144 * 2 / 2.1, 1)  # two units, and 5% room
    middle = round(154 - 144 / 2.1, 1)
    assert f'class="area s1" points="42.0,{middle} 352.0,{floor} 352.0,{floor} 42.0,{floor}"' in drawn
    assert f'class="area s2" points="42.0,{top} 352.0,{top} 352.0,{floor} 42.0,{middle}"' in drawn


def test_thinning_keeps_the_extremes() -> None:
    ys: list[float | None] = [0.0] * 10_000
    ys[1234], ys[5678], ys[9999] = 9.0, -9.0, None
    xs, kept = svg.thin(range(10_000), ys, 400)
    assert len(xs) <= 400
    assert (xs[kept.index(9.0)], xs[kept.index(-9.0)]) == (1234, 5678)
    assert list(xs) == sorted(xs)
    assert svg.thin([1, 2], [3.0, None], 400) == ([1, 2], [3.0, None])


def test_smoothing_keeps_means_and_gaps() -> None:
    assert svg.smooth([3.0] * 30) == pytest.approx([3.0] * 30)
    smoothed = svg.smooth([0.0, 0.0, 9.0, 0.0, 0.0, None, 4.0])  # three times a third of a third
    assert smoothed[5] is None
    assert smoothed[2] == pytest.approx(3.0)
    assert smoothed[1] == pytest.approx((0 + 3 + 3) / 3)
    assert smoothed[4:] == [pytest.approx((3 + 0) / 2), None, 4.0], "a gap is no zero"


def test_spikes_leave_the_picture_with_a_note(run: RunFolder) -> None:
    for step in range(1, 101):
        wild, calm = step == 50, step % 3 / 10
        run.metrics(step, "rl", {"grad_norm": 500.0 if wild else 1 + calm, "reward/mean": 5.0 if wild else calm})
    page = page_of(run)
    assert page.texts("p").count("reaches 500, off the chart") == 1  # the reward is drawn whole
    assert svg.limits([1.0] * 50 + [2.0] * 49 + [500.0], spiky=True) == (1.0, 2.25)
    assert svg.limits([1.0] * 50 + [2.0] * 49 + [6.0], spiky=True) == (1.0, 2.25)
    assert svg.limits([1.0] * 50 + [2.0] * 49 + [5.0], spiky=True) == (1.0, 5.0)
    assert svg.limits([1.0] * 50 + [2.0] * 49 + [500.0]) == (1.0, 500.0)


def test_hover_data_are_the_raw_values() -> None:
    first, second = svg.Series(name="a<", xs=[1, 2], ys=[0.5, None]), svg.Series(name="b", xs=[2, 3], ys=[1, 2], color=2)
    page = Page(svg.line_chart([first, second], unit="s"))
    data = json.loads(page.elements[0][1]["data-chart"] or "")
    assert data["steps"] == [1, 2, 3]
    assert [(s["name"], s["values"]) for s in data["series"]] == [("a<", [0.5, None, None]), ("b", [None, 1, 2])]
    assert data["unit"] == "s"


def test_stage_boundaries() -> None:
    steps = [{"step": i, "stage": s, "metrics": {}} for i, s in ((1, "sft"), (2, "sft"), (3, "rl"), (4, "sft"))]
    assert charts.boundaries(steps) == [(2.5, "rl"), (3.5, "sft")]
    planned = [{"kind": "rl", "steps": n} for n in (2, 3, 1)]
    alike = [{"step": step, "stage": "rl"} for step in range(1, 9)]  # as of a run file that was changed: two more than planned
    assert charts.boundaries(alike, planned) == [(2.5, "rl"), (5.5, "rl")]
    assert charts.boundaries(alike, [planned[0], {"kind": "rl", "steps": None}, planned[2]]) == [(2.5, "rl")]
    assert charts.stages(steps) == [("sft", "", 2), ("rl", "", 1), ("sft", "", 1)]


@pytest.mark.parametrize("ys", [[0.0, 0.001], [0.002442, 0.002461], [0.0, 9_000.0], [-1e-7, 1e-7]])
def test_the_labels_of_an_axis_have_room(ys: list[float]) -> None:
    series = [svg.Series(name="a", xs=[1, 2], ys=ys)]
    for page in (svg.line_chart(series), svg.stacked_chart(series)):
        labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]+)<', page)
        assert labels and all(float(x) + 0.1 >= svg.LETTER_WIDTH * len(label) for x, label in labels)
        begins, ends = re.search(r'class="grid" x1="([\d.]+)" x2="([\d.]+)"', page).groups()
        assert float(begins) >= svg.LEFT and float(ends) == svg.WIDTH - svg.RIGHT


def test_labels_of_stages_that_follow_quickly_stand_in_rows() -> None:
    series = [svg.Series(name="a", xs=list(range(100)), ys=[0.0] * 100)]
    page = svg.line_chart(series, boundaries=[(3.0, "rl"), (4.0, "sft"), (50.0, "rl"), (97.0, "sft"), (98.0, "rl")])
    labels = re.findall(r'class="stage" x="([\d.]+)" y="([\d.]+)"( text-anchor="end")?>(\w+)<', page)
    rows: dict[str, list[tuple[float, float]]] = {}
    for x, y, end, label in labels:
        wide = svg.LETTER_WIDTH * len(label)
        rows.setdefault(y, []).append((float(x) - wide, float(x)) if end else (float(x), float(x) + wide))
    assert len(labels) == 5 and len(rows) == 2
    assert all(a[1] < b[0] for row in rows.values() for a, b in pairwise(sorted(row)))
    assert all(low >= svg.LEFT and high <= svg.WIDTH for row in rows.values() for low, high in row)


def test_stages_of_one_kind_are_told_apart_by_the_plan() -> None:
    planned = [
        {"kind": "sft", "steps": 1},
        {"kind": "rl", "steps": 2, "algorithm": "grpo"},
        {"kind": "rl", "steps": 3, "algorithm": "ppo"},
    ]
    steps = [{"step": i, "stage": "rl" if i > 1 else "sft", "metrics": {}} for i in range(1, 6)]
    assert charts.stages(steps, planned) == [("sft", "", 1), ("rl", "grpo", 2), ("rl", "ppo", 2)]
    assert charts.stages(steps, planned[:2]) == [("sft", "", 1), ("rl", "grpo", 4)], "more than planned stays with the last"
    assert charts.stages(steps, planned[2:]) == [("sft", "", 1), ("rl", "", 4)], "a plan that doesn't fit names nothing"


def test_the_header_names_the_algorithm(tmp_path: Path) -> None:
    stages = [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 12, "algorithm": "<ppo>"}]
    run = RunFolder.create(tmp_path / "run", {**CONFIG, "stages": stages}, 1)
    for step in range(1, 14):
        run.metrics(step, "rl" if step > 1 else "sft", {"loss": 1.0})
    html = write_report(run.path).read_text()
    assert '<ol class="chain"><li>sft, <b>1 step</b></li><li>rl, &lt;ppo&gt;, <b>12 steps</b></li></ol>' in html


def test_the_headings_of_the_errors_stay_whole(run: RunFolder) -> None:
    run.error(1, "w", "long" * 200)
    page = page_of(run)
    assert page.texts("th") == ["Times", "Steps", "Where", "What"]
    assert [a.get("style") for tag, a in page.elements if tag == "th"] == ["white-space:nowrap"] * 4


# -- the command --------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_path(run: RunFolder) -> None:
    done = CliRunner().invoke(main, ["report", str(run.path)])
    assert done.output == f"{run.path / 'report.html'}\n"
    assert (run.path / "report.html").read_text().startswith("<!doctype html>")


def test_a_bad_folder_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        done = subprocess.run([sys.executable, "-m", "mmrl", "report", str(path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert re.fullmatch(rf"mmrl: {re.escape(str(path))} is not a (run )?folder:? .*\n", done.stderr)
        assert done.stdout == ""
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "none")


if __name__ == "__main__":
    print(write_report(fake_run(Path(sys.argv[1])).path))
