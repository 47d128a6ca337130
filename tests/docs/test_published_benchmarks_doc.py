"""docs/published-benchmarks.md: rows as each benchmark publishes them are read with its options, right answers earn all, and the
figures have the published groups."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark_clips import CLIPS, OPTIONS, SOUNDS
from benchmark_places import EXPRESSIONS, REGIONS
from benchmark_rows import PICTURES
from mmrl import Case, Score, UserError
from mmrl.api.media.decoding import cached_frames
from mmrl.config.load import load_config
from mmrl.registry import plugins

pytest.importorskip("mmrl_vqa")
pytest.importorskip("mmrl_video")
pytest.importorskip("mmrl_audio")
PAGE = (Path(__file__).parents[2] / "docs" / "published-benchmarks.md").read_text()
LINES = {
    name.strip(): (options.strip().strip("`"), about)
    for name, options, about in re.findall(r"^\| (.*?) \|(.*?)\|(.*?)\|$", PAGE, re.M)
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "val2014").mkdir()
    for name in ("a.png", "val2014/COCO_val2014_1.png"):
        Image.new("RGB", (28, 28), "olive").save(name)
    return tmp_path


def asked(name, rows, id, **more):
    """(the task, its prompts) of a benchmark's rows, with the options of the page."""
    options = tomllib.loads(f"options = {{{LINES[name][0]}}}")["options"]
    file = Path("rows.txt" if isinstance(rows, str) else "rows.json")
    file.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    task = plugins.registry().make_task(id, {"path": str(file), **options, **more})
    assert task.splits == ("test",)
    return task, list(task.prompts("test", 0))


def figures(task, prompts, verifier):
    scores = []
    for prompt in prompts:
        got = plugins.registry().make_verifier(verifier)(
            Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta)
        )
        scores.append(got.value if isinstance(got, Score) else got)
    return scores, task.summarise(list(zip(prompts, scores, strict=True)))


def test_the_page_has_no_other_benchmarks_and_its_run_file_is_one(here):
    assert {name for name in LINES if name not in ("benchmark", "---")} == {*PICTURES, *CLIPS, *EXPRESSIONS, *REGIONS, *SOUNDS}
    (run_file,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (here / "run.toml").write_text(run_file)
    assert load_config(here / "run.toml", []).tasks[0].options["groups"] == ["metadata.task", "metadata.category"]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name, here):
    rows, groups = PICTURES[name]
    task, prompts = asked(name, rows, "vqa/table", test_share=1)
    verifier = (re.findall(r"`(vqa/\S+)`", LINES[name][1]) or ["vqa/answer"])[0]
    scores, found = figures(task, prompts, verifier)
    assert len(scores) == len(rows) and scores == [1] * len(rows)
    assert groups <= set(found) and all(found[name] == 1 for name in groups - {"yes_share"})
    for row, prompt in zip(rows, prompts, strict=True):
        if row.get("answer") in (row.get("choices") or ()):
            assert prompt.meta["options"]["ABCDE".index(prompt.answer)] == row["answer"]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name, here):
    pytest.importorskip("mmrl_grounding")
    (row,) = rows = EXPRESSIONS[name]
    task, prompts = asked(name, rows, "grounding/refer-data", shares={"test": 1})
    x, y, width, height = row["bbox"]
    assert [tuple(p.answer) for p in prompts] == [(x, y, x + width, y + height)] * len(row["answer"])
    for verifier in re.findall(r"`(grounding/\S+)`", LINES[name][1]):
        case = Case(completion=task.gold(prompts[0]), answer=prompts[0].answer, meta=prompts[0].meta, image_sizes=((28, 28),))
        assert plugins.registry().make_verifier(verifier)(case).value == 1


@pytest.mark.parametrize("name", REGIONS)
def test_regions(name, here):
    pytest.importorskip("mmrl_grounding")
    Image.fromarray(np.eye(28) > 0).save("m.png")
    task, prompts = asked(name, REGIONS[name], "grounding/region-data", shares={"test": 1})
    verify = plugins.registry().make_verifier("grounding/region")
    for prompt, row in zip(prompts, REGIONS[name], strict=True):
        assert (row.get("prompt") or row["question"]) in prompt.text
        right, wrong = (
            verify(Case(completion=text, answer=prompt.answer, meta=prompt.meta, image_sizes=((28, 28),)))
            for text in (task.gold(prompt), "(3, 9)")
        )
        assert (right.value, wrong.value) == (1, 0)


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name, here):
    from mmrl_video.drawn.films import encode

    (here / "clips" / "arkit").mkdir(parents=True)
    for clip in ("one", "arkit/41069025"):
        encode(np.full((8, 32, 32, 3), 90, np.uint8), 4, here / "clips" / f"{clip}.mp4")
    (here / "clips" / "friends_s01").mkdir()
    for number in range(1, 13):
        Image.new("RGB", (32, 32), "olive").save(here / "clips" / "friends_s01" / f"{number:05}.jpg")
    rows, groups = CLIPS[name]
    when = "##" in str(rows) or "timestamps" in str(rows) or "relevant_windows" in str(rows)
    task, prompts = asked(name, rows, "video/temporal-data" if when else "video/qa-data", shares={"test": 1}, videos="clips")
    verifier = (re.findall(r"`(video/\S+)`", LINES[name][1]) or ["video/tiou" if when else "video/answer"])[0]
    scores, found = figures(task, prompts, verifier)
    assert scores and scores == [1] * len(prompts) and groups <= set(found) and all(found[name] == 1 for name in groups)
    if name in OPTIONS:
        assert [(p.answer, p.meta["options"]) for p in prompts] == [OPTIONS[name]] * len(rows)
    if name == "TempCompass, multi-choice":
        assert [len(p.meta["options"]) for p in sorted(prompts, key=lambda p: p.id)] == [2, 3, 2]
    if "caption" in name:
        assert [(p.answer, p.meta["options"]) for p in prompts] == [("B", ["He runs.", "He sits."])] * 3
    if name == "MVBench":
        part, whole, folder = sorted(prompts, key=lambda p: (p.meta["duration"], "friends" in p.videos[0].path))
        assert folder.meta["duration"] == 2.0 and cached_frames(folder.videos[0]).indices == (3, 4, 6, 7)
        assert (part.videos[0].start_s, part.videos[0].end_s, part.meta["duration"]) == (0.5, 1.0, 0.5)
        assert whole.meta["duration"] == 2.0 and cached_frames(whole.videos[0]).duration_s == 2.0
        with pytest.raises(UserError, match=r"no row of rows\.json has the columns begin and end of part"):
            asked(name, rows, "video/qa-data", shares={"test": 1}, videos="clips", part=["begin", "end"])


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(name, here):
    from mmrl.api.media.sounds import Waveform
    from mmrl.api.media.wav import encode_wav

    for folder in ("test-mini-audios", "Sound_QA_avqa"):
        (here / folder).mkdir()
        (here / folder / "a.wav").write_bytes(encode_wav(Waveform(samples_T=np.full(3200, 0.1, np.float32), rate=16_000)))
    rows, groups = SOUNDS[name]
    task, prompts = asked(name, rows, "audio/choice-data", test_share=1)
    scores, found = figures(task, prompts, "audio/choice")
    assert scores == [1] * len(rows) and groups <= set(found) and all(found[name] == 1 for name in groups)
