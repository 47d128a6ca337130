"""Episodes of evaluations: which are kept, how they are written, and how the report shows them and the figures beside them."""

import base64
import html
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from footage import noise, trajectory_data
from mmrl import UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.statistics import wilson
from mmrl.api.types import Prompt, Score, Status
from mmrl.run_folder import episodes, files
from mmrl.run_folder.reader import read_jsonl, read_run
from mmrl.run_folder.rollouts import rollout_row
from mmrl.run_folder.webp import decode_webp
from mmrl.run_folder.writer import RunFolder
from mmrl.ui.report import episodes as shown_episodes
from mmrl.ui.report import evaluations
from mmrl.ui.report.charts import evaluation_card
from pages import assert_self_contained, page_of

EVIL = "</figcaption><script>alert(1)</script>\" onload='x'"


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", {"seed": 1, "stages": [], "evaluate": {"temperature": 0.0}}, 1)


def rollout(number, success, at_end=None, task="robotics/pick", frames=None, said="pick up the ball", **more):
    frames = noise(3, 16, 16, seed=number) if frames is None else frames
    found = {
        "success": float(success),
        "success_at_end": float(success if at_end is None else at_end),
        "return": 0.5,
        "steps": 2.0,
    }
    return Trajectory(
        prompt=Prompt(messages=[], id=f"test-{number}", task=task, seed=900 + number, meta=more),
        group=0,
        status=Status.FINISHED if success else Status.TRUNCATED_TIME,
        data=replace(trajectory_data({"front": frames}, [[1], [1]]), instruction=said),
        outcome=found,
    )


def rows(*rollouts, limit=4, temperature=0.0):
    watched = episodes.EpisodePicker(limit)
    watched.see(rollouts, temperature)
    return list(watched.rows)


def figure(task="robotics/pick", value=0.5, n=64, temperature=0.0, metric=None, at_end=None, acts=True, **more):
    metric = metric or ("success" if acts else "accuracy")
    low, high = wilson(value * n, n)
    end = value if at_end is None else at_end
    extra = (
        {"episode/success": value, "episode/success_at_end": end, "episode/steps": 7.25, "episode/return": 0.5} if acts else {}
    )
    intervals = {"episode/success": (low, high), "episode/success_at_end": wilson(end * n, n)} if acts else {}
    held = {"extra": extra, "intervals": intervals, "samples": 1, "temperature": temperature}
    return {"task": task, "split": "test", "metric": metric, "value": value, "low": low, "high": high, "n": n, **held, **more}


# -- which are kept -----------------------------------------------------------------------------------------------------


def test_the_first_of_each_kind_are_kept_in_the_order_of_the_prompts():
    watched = episodes.EpisodePicker(2)
    for start in (0, 4):  # as an evaluation asks for them
        watched.see([rollout(i, success=i % 3 == 0) for i in range(start, start + 4)], 0.5)
    assert [row["prompt_id"] for row in watched.rows] == ["test-0", "test-3", "test-1", "test-2"]
    assert {row["temperature"] for row in watched.rows} == {0.5} and [row["seed"] for row in watched.rows] == [900, 903, 901, 902]


def test_what_broke_or_shows_nothing_is_not_kept():
    broken = replace(rollout(0, False), data=None, outcome={}, status=Status.ENVIRONMENT_ERROR)
    blind = rollout(1, True)
    blind = replace(blind, data=replace(blind.data, images={}))
    assert rows(broken, blind) == [] and rows(rollout(0, True), limit=0) == []


# -- how they are written -----------------------------------------------------------------------------------------------


def test_a_folder_has_a_video_for_each_row(run):
    frames = noise(3, 16, 16)
    kept = rows(rollout(1, True, frames=frames, variant="vision.texture"), rollout(2, False), rollout(3, False, task="a b/ü"))
    run.episodes(7, kept)
    (folder,) = read_run(run.path).episode_folders
    found = read_jsonl(folder / "episodes.jsonl")
    names = ["01-robotics-pick-success-1.webp", "01-robotics-pick-failure-1.webp", "02-a-b-failure-1.webp"]
    assert [re.sub("-+", "-", row["video"]) for row in found] == names
    assert sorted(path.name for path in folder.iterdir()) == sorted([*(row["video"] for row in found), "episodes.jsonl"])
    plain = {k: v for k, v in kept[0].items() if k != "video"}
    assert found[0] == {"step": 7, **plain, "video": names[0]} and found[0]["variant"] == "vision.texture"
    shown = decode_webp((folder / names[0]).read_bytes())
    assert [(np.asarray(picture) == frame).all() for (picture, _), frame in zip(shown, frames, strict=True)] == [True] * 3


def test_the_same_evaluation_again_leaves_nothing_of_the_old_one(run):
    run.episodes(7, rows(*(rollout(i, False) for i in range(3))))
    run.episodes(7, rows(rollout(1, True)))
    (folder,) = (run.path / "episodes").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["01-robotics-pick-success-1.webp", "episodes.jsonl"]


def test_a_disk_that_is_full_leaves_the_old_ones(run, monkeypatch):
    run.episodes(7, rows(rollout(1, True)))

    def full(video):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(episodes.webp, "encode_webp", full)
    with pytest.raises(UserError, match="free some space"):
        run.episodes(7, rows(rollout(2, False)))
    (folder,) = (run.path / "episodes").iterdir()
    assert folder.name == "step-000007" and (folder / "01-robotics-pick-success-1.webp").is_file()


def test_words_leave_no_folder(run):
    run.episodes(3, [])
    assert not (run.path / "episodes").exists() and read_run(run.path).episode_folders == []
    assert 'class="episodes"' not in shown_episodes.section(read_run(run.path))


def test_only_the_first_the_best_and_the_last_stay(run):
    for step, best in ((0, 0), (10, 10), (20, 10), (30, 30), (40, 30)):
        run.episodes(step, rows(rollout(step, True)))
        run.keep_episodes((best, step))
    assert [path.name for path in read_run(run.path).episode_folders] == ["step-000000", "step-000030", "step-000040"]
    run.rewind(30)
    assert [path.name for path in read_run(run.path).episode_folders] == ["step-000000", "step-000030"]


def test_rollouts_have_a_video_too(run):
    one, other = (rollout_row(rollout(i, True, frames=noise(3, 16, 16)), Score(1.0), 0.5) for i in (1, 2))
    run.rollouts(1, [{**one, "group": 0}, {**other, "group": 0}, rollout_row(rollout(3, False), Score(0.0), -0.5)])
    found = read_jsonl(read_run(run.path).rollout_files[0])
    paths = [row["messages"][0]["content"][0]["path"] for row in found]
    assert paths[0] == paths[1] != paths[2], "equal ones are stored once"
    assert len(list((run.path / "rollouts" / "media").iterdir())) == 2
    page = page_of(run)
    assert_self_contained(page)
    assert page.count("img", "moving") == 2, "of equal rollouts one is shown"
    assert page.count("img", "moving") == page.count("img", "still") and page.texts("div").count("pick up the ball") == 1


# -- how the report shows them ------------------------------------------------------------------------------------------


def test_the_report_shows_each_evaluation_that_was_kept(run):
    for step in (0, 20, 40):
        run.evaluation(step, "rl", figure(value=step / 64))
        run.episodes(step, rows(*(rollout(i, success=i < step / 10) for i in range(6))))
    run.summary({"best_step": 20, "best": {}, "before": {}, "last": {}, "seconds": {}})
    page = page_of(run)
    assert_self_contained(page)
    tabs = [words for tag, words in page.words if tag == "label"]
    assert tabs == ["before any training", "step 20 (best)", "step 40 (last)"]
    assert page.count("button", "film") == 4 + (2 + 4) + (4 + 2) == page.count("img", "moving") == page.count("img", "still")
    assert "2 steps, time limit, return 0.5" in page.texts("p") and "2 steps, return 0.5" in page.texts("p")
    assert "test-0, seed 900" in page.texts("p") and page.texts("p").count("pick up the ball") == 16
    assert page.count("button", "pause") == 1


def test_what_was_lost_again_says_so(run):
    run.episodes(1, rows(rollout(1, True, at_end=False)))
    assert "no longer at the end, 2 steps, return 0.5" in page_of(run).texts("p")


def test_hostile_instructions_and_names_stay_text(run, tmp_path):
    (tmp_path / "secret.webp").write_bytes(b"secret")
    run.evaluation(1, "rl", figure(task=EVIL, split=EVIL))
    run.evaluation(1, "rl", figure(task="b", metric=EVIL, temperature=EVIL, samples=EVIL, intervals={"episode/success": EVIL}))
    run.episodes(1, rows(rollout(1, True, said=EVIL, task=EVIL), rollout(2, False, said=EVIL, task=EVIL)))
    run.rollouts(1, [rollout_row(rollout(1, True, said=EVIL, task=EVIL), Score(1.0), 0.5)])
    (folder,) = read_run(run.path).episode_folders
    (good, bad) = read_jsonl(folder / "episodes.jsonl")
    evil = [{**bad, "video": name} for name in ("../../../secret.webp", "/etc/passwd", EVIL, "", None, "gone.webp", "fake.webp")]
    (folder / "fake.webp").write_bytes(b"RIFF\x00\x00\x00\x00WEBPVP8 ")
    evil += [
        {**bad, "outcome": {"success": EVIL, "steps": EVIL, "return": EVIL}, "status": EVIL, "seed": EVIL, "prompt_id": EVIL}
    ]
    (folder / "episodes.jsonl").write_bytes(b"".join(map(files.line, [good, *evil, {**bad, "outcome": EVIL}])))
    page = page_of(run)
    assert_self_contained(page)
    assert page.texts("p").count(EVIL) == 1 + len(evil) and page.texts("h3").count(EVIL) >= 1
    assert len(page.texts("script")) == 1 and "secret" not in (run.path / "report.html").read_text()
    words = page.texts("span")
    assert words.count("video is missing") == 6 and "not a video: fake.webp" in words


def test_every_task_has_its_first_videos_where_not_all_fit(run, monkeypatch):
    monkeypatch.setattr(shown_episodes, "BUDGET", 120_000)
    made = [rollout(i, success=i % 2 == 0, task=f"t/{i // 8}", frames=noise(3, 32, 32, seed=i)) for i in range(32)]
    run.episodes(1, [row for k in range(4) for row in rows(*made[8 * k : 8 * k + 8])])
    section = shown_episodes.section(read_run(run.path))
    assert len(section) < 120_000 + 32 * 1200
    cards = section.split("<details ")[1:]
    counts = [card.count('class="moving') for card in cards]
    assert len(cards) == 4 and min(counts) >= 1 and max(counts) - min(counts) <= 1 and sum(counts) < 32
    assert section.count("left out for size") == 32 - sum(counts)


def test_still_moments_stand_for_each_video(run):
    run.episodes(1, rows(rollout(1, True, frames=np.stack([np.full((16, 16, 3), v, np.uint8) for v in (0, 100, 200)]))))
    page = page_of(run)
    (still,) = [a["src"] for tag, a in page.elements if tag == "img" and "still" in a["class"]]
    with Image.open(io.BytesIO(base64.b64decode(still.partition(",")[2]))) as picture:
        assert picture.size == (32, 32)
        values = [picture.convert("RGB").getpixel(place)[0] for place in ((8, 8), (24, 8), (8, 24))]
    assert np.abs(np.subtract(values, (0, 100, 200))).max() < 8
    style = "".join(page.texts("style"))
    assert "prefers-reduced-motion" in style and "@media print" in style


# -- the table ----------------------------------------------------------------------------------------------------------


def table(run):
    """The texts of the table's cells, by row."""
    rows = [re.split("</t[dh]>", row)[:-1] for row in shown_table(run).split("<tr>")[1:]]
    return [[html.unescape(re.sub("<[^>]+>", " ", cell)).strip() for cell in row] for row in rows]


def shown_table(run):
    return evaluations.section(read_run(run.path))


def test_the_table_has_every_task_the_best_first_with_intervals(run):
    for step, gain in ((0, 0.0), (10, 0.25)):
        for task, value in (("a", 0.125), ("b", 0.5), ("c", 0.25)):
            run.evaluation(step, "rl", figure(task, value + gain, at_end=value))
    head, *body = table(run)
    assert head == ["Task", "0%  100%", "Success rate, at any time", "At the end", "Steps", "Return", "n"]
    assert [row[0] for row in body] == ["b", "c", "a"]
    low, high = (f"{100 * bound:.1f}%" for bound in wilson(48, 64))
    assert body[0][2].split() == ["75.0%", low, "to", high]
    low, high = (f"{100 * bound:.1f}%" for bound in wilson(32, 64))
    assert body[0][3].split() == ["50.0%", low, "to", high] and body[0][4:] == ["7.25", "0.5", "64"]
    drawn = shown_table(run)
    assert re.findall(r'<u class="(\w+)" style="left:([\d.]+)%', drawn)[:2] == [("before", "50.0"), ("last", "75.0")]
    assert "Greedy. Held-out prompts" in drawn


def test_success_at_any_time_has_a_column_where_it_is_not_the_metric(run):
    run.evaluation(0, "rl", figure("a", 0.5, extra={"episode/success": 0.75, "episode/success_at_end": 0.5}, intervals={}))
    head, row = table(run)
    assert head[2:] == ["Success rate", "At any time", "At the end", "n"] and row[3:5] == ["75.0%", "50.0%"]


def test_tasks_that_were_asked_otherwise_or_scored_otherwise_say_so(run):
    run.evaluation(0, "rl", figure("a", 0.5))
    run.evaluation(0, "rl", figure("b", 0.25, temperature=0.7, samples=4, metric="robotics/quick"))
    head, first, second = table(run)
    assert head[:3] == ["Task", "Metric", "Sampling"] and first[:3] == ["a", "success", "greedy"]
    assert second[:3] == ["b", "robotics/quick", "sampled at temperature 0.7, 4 times each"]


def test_a_run_that_an_older_version_began_has_one_row_and_one_line(run):
    run.metrics(1, "rl", {"reward/mean": 0.5})
    run.evaluation(0, "rl", figure("a", 0.25, metric="accuracy"))
    run.evaluation(10, "rl", figure("a", 0.75))
    head, *body = table(run)
    assert head[2] == "Success rate, at any time" and [row[0] for row in body] == ["a"] and "75.0%" in body[0][2]
    assert 'class="before"' in shown_table(run)
    card = evaluation_card(read_run(run.path).evals, [])
    assert card.count('<path class="line') == 1 and "75.0%" in card and "a success (test)" in card


def test_a_figure_that_is_no_number_is_told_beside_the_chart(run):
    for step, value in ((0, 0.25), (10, 0.75), (20, math.nan)):
        run.evaluation(step, "rl", {**figure("a", 0.25), "value": value})
    card = evaluation_card(read_run(run.path).evals, [])
    assert "1 value is not a number" in card and "75.0%" in card


def test_one_task_of_words_has_a_card_and_no_table(run):
    run.evaluation(0, "rl", figure("a", 0.5, acts=False))
    assert shown_table(run) == "" and page_of(run).count("article", "result") == 1
    run.evaluation(0, "rl", figure("b", 0.75, acts=False))
    assert [row[0] for row in table(run)] == ["Task", "b", "a"] and len(table(run)[0]) == 4


def test_many_tasks_have_the_table_in_place_of_cards(run):
    for i in range(14):
        run.evaluation(0, "rl", figure(f"variant-{i}", i / 14, n=70))
    page = page_of(run)
    assert_self_contained(page)
    assert page.count("article", "result") == 0 and page.count("th", "") >= 14 + 7
    assert "variant-13" in page.texts("th") and page.count("path", "band") == 0


def test_figures_of_older_runs_are_shown_as_they_are(run):
    """Without samples, temperature, intervals and videos, and success by its old name; rollouts as strips."""
    old = {k: v for k, v in figure(metric="accuracy").items() if k not in ("samples", "temperature", "intervals")}
    run.evaluation(0, "rl", old)
    assert table(run)[0][2] == "Accuracy, at any time" and "50.0%" in table(run)[1][2]
    row = rollout_row(rollout(1, True), Score(1.0), 0.5)
    text = row["messages"][0]["content"][1]
    strip = {"type": "image", "image": Image.new("RGB", (128, 16))}
    run.rollouts(1, [{**row, "messages": [{"role": "user", "content": [strip, text]}]}])
    page = page_of(run)
    assert_self_contained(page)
    assert page.count("img") == 1 and page.count("button", "pause") == 0
    assert [cell for cell in table(run)[1] if cell][1].split()[0] == "50.0%"
