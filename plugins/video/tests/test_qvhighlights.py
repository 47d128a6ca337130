"""QVHighlights: ranked spans are asked for, and their figures are those of the published evaluation."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_video import qvhighlights
from mmrl_video.data.temporal import TemporalData
from mmrl_video.drawn.films import encode

from broken_rows import faults_of
from mmrl import Case, NoGold, UserError, open_task
from mmrl.config.load import parse_config
from mmrl.registry import plugins
from mmrl.train.resolve import resolve
from mmrl.ui.cli import main

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "tests" / "golden" / "qvhighlights.jsonl").read_text(encoding="utf-8").splitlines()
]
PUBLISHED = {
    **{f"MR-full-{name}": name for name in ("R1@0.5", "R1@0.7", "mAP@0.5", "mAP@0.75")},
    **{f"MR-{name}-mAP": name for name in ("short", "middle", "long")},
}


def judged(text, true, **meta):
    return qvhighlights.ap(Case(completion=text, answer=true, meta={"ranked": True, **meta}))


def test_the_figures_are_those_of_the_published_evaluation():
    *queries, whole = ROWS
    scores = [judged(", ".join(f"{a} to {b}" for a, b in one["said"]), one["relevant_windows"]) for one in queries]
    assert len(scores) == 120
    for one, score in zip(queries, scores, strict=True):
        assert score.value == pytest.approx(sum(one["ap"]) / 10), one
        assert (score.parts["mAP@0.5"], score.parts["mAP@0.75"]) == pytest.approx((one["ap"][0], one["ap"][5])), one
    parts = {name: [score.parts[name] for score in scores if name in score.parts] for name in PUBLISHED.values()}
    found = {name: 100 * sum(values) / len(values) for name, values in parts.items()}
    assert found == pytest.approx({ours: whole["brief"][theirs] for theirs, ours in PUBLISHED.items()}, abs=0.0051)
    mean = 100 * sum(score.value for score in scores) / len(scores)
    assert mean == pytest.approx(whole["brief"]["MR-full-mAP"], abs=0.0051)


def test_hits_are_those_of_the_published_evaluation():
    *queries, whole = ROWS
    scores = []
    for one in queries:
        answer = {str(n): max(own) for n, own in zip(one["relevant_clip_ids"], one["saliency_scores"], strict=True)}
        scores.append(qvhighlights.hit(Case(completion=str(2 * one["clip"] + 1.5), answer=answer)))
    found = {"VeryGood": [s.value for s in scores]} | {name: [s.parts[name] for s in scores] for name in ("Fair", "Good")}
    assert {name: round(100 * sum(own) / len(own), 2) for name, own in found.items()} == {
        name: whole["brief"][f"HL-min-{name}-Hit1"] for name in found
    }


def all_scores(one):
    """Of each clip of a query in order."""
    known = dict(zip(one["relevant_clip_ids"], one["saliency_scores"], strict=True))
    return [known.get(clip, [0, 0, 0]) for clip in range(75)]


def test_the_precision_of_rated_clips_is_that_of_the_published_evaluation():
    *queries, whole = ROWS
    scores = []
    for one in queries:
        score = qvhighlights.saliency(Case(completion=", ".join(map(str, one["numbers"])), answer=all_scores(one)))
        fair, good, best = (sum(own) / 3 for own in one["precisions"])
        assert (score.parts["Fair"], score.parts["Good"], score.value) == pytest.approx((fair, good, best)), one
        scores.append(score)
    found = {"VeryGood-mAP": [s.value for s in scores], "VeryGood-Hit1": [s.parts["HIT@1"] for s in scores]}
    found |= {f"{name}-mAP": [s.parts[name] for s in scores] for name in ("Fair", "Good")}
    for name, values in found.items():
        assert 100 * sum(values) / len(values) == pytest.approx(whole["numbers"][f"HL-min-{name}"], abs=0.0051), name


def test_rated_clips_by_hand():
    def rated(text, **meta):
        return qvhighlights.saliency(Case(completion=text, answer=[[0, 4], [4, 4], [3, 0], [0, 0]], meta=meta))

    # good to the first annotator are the second clip and the third, to the other one the first two
    assert rated("2, 4, 1, 0").parts == pytest.approx({"Fair": (5 / 6 + 1) / 2, "Good": (5 / 6 + 1) / 2, "HIT@1": 1})
    assert rated("2, 4, 1, 0").value == 1 == rated("[1, 3.5, 0, 0]").value, "very good: to the one the second, to the other two"
    assert rated("4, 2, 1, 0").value == (1 / 2 + 1) / 2, "the one is the second"
    assert rated("0 0 4 0").value == (1 / 4 + 1 / 2) / 2 and rated("0 0 4 0").parts["HIT@1"] == 0
    assert rated("1, 1, 1, 1").value == (1 / 4 + 2 / 4) / 2, "equal numbers come together"
    assert rated("0, 4").value == rated("0, 4, 0, 0, 9, 9").value == (1 + (1 + 2 / 4) / 2) / 2
    for text in ("", "none", "1, 2, -3, 4", "1 to 2", "<answer>1</answer> <answer>2</answer>", "1 " * 5_000):
        assert rated(text).value == 0 and rated(text).parts == {"Fair": 0, "Good": 0, "HIT@1": 0}, text
    assert rated("<think>t</think><answer>2, 4, 1, 0</answer>", style="tags").value == 1


def test_a_second_by_hand():
    def hit(text, **meta):
        return qvhighlights.hit(Case(completion=text, answer={"3": 4, "4": 3, "40": 4}, meta=meta))

    for text, value in (("6", 1), ("7.9", 1), ("at 7 seconds", 1), ("01:21", 1), ("8", 0), ("5.9", 0), ("82", 0), ("-1", 0)):
        assert hit(text).value == value, text
    for text in ("", "never", "6 or 7", "9" * 400, "6" * 5_000):
        assert hit(text).value == 0 and hit(text).parts == {"Fair": 0, "Good": 0}, text
    assert hit("8").parts == {"Fair": 1, "Good": 1} and hit("<think>t</think><answer>7</answer>", style="tags").value == 1
    assert hit("7", style="tags").value == 0


def test_by_hand():
    """Two true spans; the first answer is one of them, the second neither, the third the other with an IoU of 0.8."""
    true = [[0, 10], [50, 90]]
    assert judged("0 to 10, 20 to 30, 50 to 82", true).parts == {
        **{"mAP@0.5": pytest.approx((1 + 2 / 3) / 2), "mAP@0.75": pytest.approx((1 + 2 / 3) / 2), "R1@0.5": 1, "R1@0.7": 1},
        **{"short": 1, "long": pytest.approx(7 / 10 / 3)},  # 0.5 to 0.8, at rank 3
    }
    assert judged("20 to 30, 0 to 10", true).parts["mAP@0.5"] == 0.25
    assert judged("0 to 10, 0 to 10", true).value == 0.5, "a true span is taken once"
    assert judged(", ".join(["20 to 30"] * 10 + ["0 to 10"]), true).value == 0, "the first ten count"
    assert judged("10 to 20", [[10, 20]]).parts.keys() == {"mAP@0.5", "mAP@0.75", "R1@0.5", "R1@0.7", "short"}


BAD = ["", "never", "10 to 0", "-1 to 5", "<answer>0 to 10</answer> <answer>0 to 10</answer>", "0 to 10 " * 5_000]


@pytest.mark.parametrize("text", [*BAD, "[[0, 10], [20]]"])
def test_what_can_not_be_read_is_wrong(text):
    score = judged(text, [[0, 10]])
    assert score.value == 0 and not any(score.parts.values()) and score.detail == "no spans of time"
    with pytest.raises(ValueError, match="is not a span of time"):
        judged(text, [[10, 0]])


SPAN = st.tuples(st.integers(0, 20), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
SPANS = st.lists(SPAN, min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(SPANS, SPANS, st.sampled_from(qvhighlights.THRESHOLDS))
def test_average_precision_has_its_properties(found, true, threshold):
    value = qvhighlights.average_precision(found, true, threshold)
    assert 0 <= value <= 1
    assert value == qvhighlights.average_precision([*found, (100, 101)], true, threshold), "a wrong span at the end costs nothing"
    assert qvhighlights.average_precision([(100, 101), *found], true, threshold) <= value
    assert qvhighlights.average_precision(true[:1], true[:1], threshold) == 1


@pytest.fixture
def table(tmp_path):
    encode(np.full((80, 32, 32, 3), 90, np.uint8), 4, tmp_path / "clip.mp4")
    rows = [
        {"qid": n, "query": "A family plays.", "duration": 20, "vid": "clip", "relevant_windows": windows}
        | {"relevant_clip_ids": [1, 2], "saliency_scores": [[0, 1, 1], [2, 4 - n, 1]]}
        for n, windows in enumerate(([[0, 4], [10, 18]], [[2, 6]]))
    ]
    (tmp_path / "highlight_val_release.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "highlight_val_release.jsonl")


@pytest.mark.parametrize("style", ["short", "tags"])
def test_ranked_spans_are_asked_for_also_where_there_is_one(table, style):
    options = {"path": table, "shares": {"test": 1}, "ranked": True, "style": style}
    task = plugins.registry().make_task("video/temporal-data", options)
    prompts = sorted(task.prompts("test", 0), key=lambda prompt: prompt.id)
    verify = {name: plugins.registry().make_verifier(f"video/{name}") for name in ("ap@qvhighlights", "tiou", "format")}
    for prompt, said in zip(prompts, ("10 to 18, 0 to 5", "2 to 6, 0 to 5"), strict=True):
        assert "the likeliest first" in prompt.text
        text = f"<think>t</think><answer>{said}</answer>" if style == "tags" else said
        for completion, right in ((task.gold(prompt), True), (text, False)):
            case = Case(completion=completion, answer=prompt.answer, meta=prompt.meta)
            scores = {name: one(case) for name, one in verify.items()}
            assert scores["format"].value == 1 and scores["tiou"].value == 1, "of the first"
            assert (scores["ap@qvhighlights"].value == 1) == (right or len(prompt.meta["spans"]) == 1)
    assert task.summarise([(prompt, 0.5) for prompt in prompts]) == {}, "the mean of a precision is no IoU"


def test_options_that_exclude_each_other(table):
    for options, message in (
        ({"nearest": True, "ranked": True}, "nearest and ranked ask for different answers: choose one"),
        ({"ranked": True, "highlight": True}, "ranked and highlight ask for different answers: choose one"),
        ({"highlight": True, "saliency": True}, "highlight and saliency ask for different answers: choose one"),
        ({"saliency": True, "style": "timezero"}, "saliency needs a style of short, tags, and timezero asks for one span"),
        ({"ranked": True, "style": "time-r1"}, "ranked needs a style of short, tags, and time-r1 asks for one span"),
        ({"highlight": True, "style": "timezero"}, "highlight needs a style of short, tags, and timezero asks for one span"),
        ({"ranked": "yes"}, "ranked"),
        ({"highlight": 1}, "highlight"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            TemporalData(path=table, shares={"test": 1}, **options)


@pytest.mark.parametrize(("option", "verifier"), [("ranked", "ap"), ("highlight", "hit"), ("saliency", "saliency")])
def test_a_run_whose_verifiers_score_something_else_is_refused(option, verifier, table, tmp_path):
    def task(*verifiers):
        entry = {"id": "video/temporal-data", "options": {"path": table, "shares": {"test": 1}, option: True}}
        return resolve(
            parse_config(
                {
                    **{"name": "x", "runs_dir": str(tmp_path), "policy": {"model": "tiny:qwen2_5_vl"}},
                    "tasks": [entry | ({"verifiers": dict.fromkeys(verifiers, 1.0)} if verifiers else {})],
                    "stages": [{"kind": "rl", "steps": 1}],
                }
            ),
            train=False,
        ).metrics

    needed = f"video/{verifier}@qvhighlights"
    write = f"""and not video/tiou or video/format: write verifiers = {{"{needed}" = 1.0}} into its [[tasks]] entry"""
    with pytest.raises(
        UserError, match=re.escape(f"task 'video/temporal-data': {option} = true asks for what {needed} scores, {write}")
    ):
        task()
    assert task(needed) == {"video/temporal-data": needed}
    assert task(needed, "video/format") == {"video/temporal-data": needed}


@pytest.mark.parametrize("style", ["short", "tags"])
def test_the_second_of_the_best_moment_is_asked_for(table, style):
    task = plugins.registry().make_task(
        "video/temporal-data", {"path": table, "shares": {"test": 1}, "highlight": True, "style": style}
    )
    good, fair = sorted(task.prompts("test", 0), key=lambda prompt: prompt.id)
    assert "Which moment shows this best: A family plays? " in good.text and good.answer == {"1": 1, "2": 4}
    verify = {name: plugins.registry().make_verifier(f"video/{name}") for name in ("hit@qvhighlights", "format")}
    case = Case(completion=task.gold(good), answer=good.answer, meta=good.meta)
    assert task.gold(good).count("5") == 1 and [one(case).value for one in verify.values()] == [1, 1]
    with pytest.raises(NoGold, match="no clip of it is very good"):
        task.gold(fair)
    assert task.summarise([(good, 1.0)]) == {}
    with pytest.raises(ValueError, match=r"for video/hit@qvhighlights, which `verifiers` of the task must name"):
        plugins.registry().make_verifier("video/tiou")(Case(completion=task.gold(good), answer=good.answer, meta=good.meta))


@pytest.mark.parametrize("style", ["short", "tags"])
def test_a_number_for_each_clip_is_asked_for(table, style):
    options = {"path": table, "shares": {"test": 1}, "saliency": True, "style": style}
    task = plugins.registry().make_task("video/temporal-data", options)
    good, _ = sorted(task.prompts("test", 0), key=lambda prompt: prompt.id)
    assert "How well does each 2 seconds of the video show this: A family plays? " in good.text
    assert "10 numbers from 0, not at all, to 4, very well, in the order of the video, separated by commas" in good.text
    assert good.answer == [[0, 0, 0], [0, 1, 1], [2, 4, 1], *[[0, 0, 0]] * 7]
    verify = {name: plugins.registry().make_verifier(f"video/{name}") for name in ("saliency@qvhighlights", "format")}

    def scores(text):
        case = Case(completion=text, answer=good.answer, meta=good.meta)
        return [one(case).value for one in verify.values()]

    said = "0, 0.667, 2.33, 0, 0, 0, 0, 0, 0, 0"
    assert task.saliency and good.meta["said"] == said
    with pytest.raises(NoGold, match="its annotators call different clips very good"):
        task.gold(good)  # only the second of them calls one so
    text = f"<think>t</think><answer>{said}</answer>" if style == "tags" else said
    assert scores(text) == [1 / 3, 1] and scores(text.replace(", 0, 0, 0, 0", "")) == [1 / 3, 0], "numbers are missing"
    agreed = replace(good, answer=[[0] * 3, [3] * 3, [4] * 3], meta={**good.meta, "said": "0, 3, 4"})
    assert "0, 3, 4" in task.gold(agreed) and task.summarise([(good, 1.0)]) == {}


@pytest.mark.parametrize(("option", "verifier"), [("ranked", "ap"), ("highlight", "hit"), ("saliency", "saliency")])
def test_a_preview_and_another_program_score_what_the_option_asks_for(option, verifier, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [f'path="{table}"', "shares={test=1}", f"{option}=true"]
    done = CliRunner().invoke(
        main, ["preview", "video/temporal-data", "--split", "test", *(word for text in given for word in ("--set", text))]
    )
    assert done.exit_code == 0, done.output
    assert f"video/{verifier}@qvhighlights" in done.stdout and "video/tiou" not in done.stdout and "tiou" not in done.stderr
    opened = open_task("video/temporal-data", {"path": table, "shares": {"test": 1}, option: True})
    assert opened.metric == f"video/{verifier}@qvhighlights"
    opened.close()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"relevant_clip_ids": [1, 10]}, "it has 10 clips of 2 s, with scores up to clip 10"),
        ({"saliency_scores": [[1], [2, 3]]}, "of the same annotators"),
        ({"saliency_scores": None}, "it has no relevant_clip_ids with as many saliency_scores"),
    ],
)
def test_a_row_whose_clips_can_not_be_rated_is_named(table, change, message):
    lines = Path(table).read_text().splitlines()
    Path(table).write_text(json.dumps(json.loads(lines[0]) | change))
    (fault,) = faults_of(TemporalData(path=table, shares={"test": 1}, saliency=True))
    assert message in fault and "line 1" in fault


@pytest.mark.parametrize(
    "change, message",
    [
        ({"saliency_scores": None}, "it has no relevant_clip_ids with as many saliency_scores"),
        ({"relevant_clip_ids": []}, "it has no relevant_clip_ids with as many saliency_scores"),
        ({"relevant_clip_ids": [1]}, "it has no relevant_clip_ids with as many saliency_scores"),
        ({"relevant_clip_ids": [1, -2]}, "the scores of its clip -2 are [2, 4, 1] and not numbers from 0 to 4"),
        ({"saliency_scores": [[1], [5]]}, "the scores of its clip 2 are [5] and not numbers from 0 to 4"),
        ({"saliency_scores": [[1], []]}, "the scores of its clip 2 are [] and not numbers"),
    ],
)
def test_a_row_without_scores_is_named(table, change, message):
    lines = Path(table).read_text().splitlines()
    Path(table).write_text(json.dumps(json.loads(lines[0]) | change))
    (fault,) = faults_of(TemporalData(path=table, shares={"test": 1}, highlight=True))
    assert message in fault and "line 1" in fault
